"""Parts of tools/gpu_check.py. Each module has ``run(context)``, which reports by ``context`` and raises nothing."""
