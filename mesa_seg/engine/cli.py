"""The options that ``tools/train.py`` and ``tools/test.py`` share: MMSegmentation's own."""
import argparse
import os
from functools import partial

from mmengine.config import DictAction
from mmengine.logging import print_log

from .config import load_config
from .distributed import prepare_cpu


def parser(description):
    """A parser with the shared options: ``config --work-dir --cfg-options --launcher --local_rank``."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument('config', help='config file')
    result.add_argument('--work-dir', help='folder for logs, checkpoints and results; default work_dirs/<config name>')
    result.add_argument(
        '--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE',
        help='override settings of the config: key.path=value; lists as key="[a,b]" or key=a,b, nested ones in quotes '
        'and without blanks. A variable of the config file (data_root, crop_size, mesa.bits) sets all made from it')
    result.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none',
                        help='how the processes of the job were started')
    result.add_argument('--local_rank', '--local-rank', type=int, default=0, help='set by the launcher')
    return result


def configure(args):
    """Read the config, put the shared options in, and start the processes.

    Args:
        args (argparse.Namespace): of a parser made by :func:`parser`.

    Returns:
        Config: ``work_dir`` and ``launcher`` set.
    """
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    first = os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')) == '0'
    cfg = load_config(args.config, args.cfg_options, partial(print_log, logger='current') if first else None)
    cfg.launcher = args.launcher
    if args.work_dir:
        cfg.work_dir = args.work_dir
    elif not cfg.get('work_dir'):
        cfg.work_dir = os.path.join('work_dirs', os.path.splitext(os.path.basename(args.config))[0])
    prepare_cpu(cfg, args.launcher)
    return cfg
