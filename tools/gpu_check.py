"""Check Mesa-Seg on this machine's NVIDIA GPU, and measure it: ``python tools/gpu_check.py [--json FILE]``.

It takes at most 8 minutes (``--minutes``), needs the project with its compiled modules and no network, and says

* which GPU, driver and torch it found;
* whether every operator agrees with the CPU operator and with float64, gives the same bits again, runs on the current
  stream and inside CUDA graphs, leaves no memory behind, and handles more than 2^31 values;
* whether a converted model has stock's gradients: also under autocast and torch.compile, on a side stream, in a CUDA graph,
  on a second GPU where there is one;
* the time of each kernel against the speed of a copy;
* loss, memory and time of whole training steps, stock beside Mesa, and the largest batch in 24 GiB.

It ends with status 0 when all is well, 1 when something is wrong (and says what), 2 without a GPU or compiled operators.
"""
import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
PARTS = ('operators', 'modules', 'speed', 'training')


def describe():
    """dict: the GPU, its memory and driver, torch; what else one wants to know about a table."""
    import torch

    from mesa_seg.version import __version__
    found = dict(mesa_seg=__version__, torch=torch.__version__, cuda=torch.version.cuda, python=sys.version.split()[0])
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found.update(gpu=properties.name, capability=f'{properties.major}.{properties.minor}',
                     gib=round(properties.total_memory / 2**30, 1), multiprocessors=properties.multi_processor_count,
                     gpus=torch.cuda.device_count())
    try:
        said = subprocess.run(['nvidia-smi', '--query-gpu=driver_version', '--format=csv,noheader'], capture_output=True,
                              text=True, timeout=20)
        found['driver'] = said.stdout.splitlines()[0].strip() if said.returncode == 0 and said.stdout else None
    except (OSError, subprocess.TimeoutExpired):
        found['driver'] = None
    return found


def unready():
    """str | None: why nothing can be checked here."""
    import torch
    if torch.version.cuda is None:
        return f'this torch ({torch.__version__}) is a CPU build; install a CUDA build and build Mesa-Seg against it'
    if not torch.cuda.is_available():
        return 'torch sees no NVIDIA GPU'
    from mesa_seg.ops import KERNELS
    missing = [device for device in ('CPU', 'CUDA') if KERNELS.get(device) != 'compiled']
    if missing:
        return (f'the compiled operators for {" and ".join(missing)} are not loaded; build them with '
                '`pip install --no-build-isolation -e .` where nvcc is on the PATH')
    return None


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--json', type=Path, metavar='FILE', help='also write everything measured to this file')
    parser.add_argument('--minutes', type=float, default=8.0, help='stop starting new checks in time for this')
    parser.add_argument('--only', choices=PARTS, action='append', help='a part to run (default: all)')
    parser.add_argument('--floors', action='store_true',
                        help='print the least that each kernel must move, and its time at stated bandwidths; needs no GPU')
    args = parser.parse_args(argv)

    from mesa_seg import compat
    compat.prepare()
    if args.floors:
        from gpu_checks.speed import floors

        import mesa_seg  # noqa: F401  the operators
        print(floors())
        return 0
    found = describe()
    for name, value in found.items():
        print(f'{name:16} {value}')
    reason = unready()
    if reason:
        print(f'gpu_check: nothing was checked: {reason}')
        return 2

    import importlib

    from gpu_checks.context import Context
    context = Context(seconds=60 * args.minutes)
    context.results['found'] = found
    for part in args.only or PARTS:
        print(f'== {part} ({context.left:.0f} s left)', flush=True)
        context.attempt(part, importlib.import_module(f'gpu_checks.{part}').run, context)
    if args.json:
        args.json.write_text(json.dumps(dict(context.results, problems=context.problems, skipped=context.skipped),
                                        indent=1))
    for text in context.skipped:
        print(f'not done: {text}')
    print(f'gpu_check: {len(context.problems)} problems in {context.seconds - context.left:.0f} s')
    for text in context.problems:
        print(f'  {text}')
    return 1 if context.problems else 0


if __name__ == '__main__':
    sys.exit(main())
