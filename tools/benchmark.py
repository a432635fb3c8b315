"""Measure: ``python tools/benchmark.py {train,ops,loss,predict} ...``; ``--help`` after a name says more.

Each benchmark is a module of ``tools/benchmarks`` with ``add_arguments(parser)`` and ``run(args)``.
"""
import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import benchmarks  # noqa: E402

from mesa_seg import compat  # noqa: E402


def main(argv=None):
    """Run one benchmark.

    Args:
        argv (list[str] | None): arguments; those of the command line where it is None.
    """
    compat.prepare()
    from mesa_seg.engine.errors import run
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if not module.name.startswith('_')]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    subparsers = parser.add_subparsers(dest='benchmark', required=True, metavar='{' + ','.join(names) + '}')
    # only the chosen one is imported: each brings in what it needs
    chosen = next((arg for arg in (sys.argv[1:] if argv is None else argv) if not arg.startswith('-')), None)
    for name in names:
        if name == chosen:
            module = importlib.import_module(f'benchmarks.{name}')
            subparser = subparsers.add_parser(name, description=module.__doc__,
                                              formatter_class=argparse.RawDescriptionHelpFormatter)
            module.add_arguments(subparser)
        else:
            subparsers.add_parser(name)
    args = parser.parse_args(argv)
    run(lambda: module.run(args))


if __name__ == '__main__':
    main()
