"""Train a segmentation model: ``python tools/train.py CONFIG``. See ``--help`` and README.md."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

try:
    from mesa_seg import compat
except ImportError as error:  # a package is missing: the message says which, and what to install
    sys.exit(f'error: {error}')


def parse(argv=None):
    from mesa_seg.engine.cli import parser
    result = parser('Train a segmentation model')
    result.add_argument('--resume', nargs='?', const='auto', metavar='auto|FILE',
                        help='go on from the latest checkpoint in the work dir (auto, the default), or from FILE')
    result.add_argument('--amp', action='store_true', help='mixed precision: float16 on a GPU, bfloat16 without one')
    argv = list(sys.argv[1:] if argv is None else argv)
    # `--resume CONFIG`, as MMSegmentation's own flag without a value allows it.
    for index, (word, following) in enumerate(zip(argv, argv[1:], strict=False)):
        if word == '--resume' and following.endswith('.py'):
            argv[index] = '--resume=auto'
    return result.parse_args(argv)


def main(argv=None):
    compat.prepare()
    args = parse(argv)

    from mmengine.runner import Runner
    from mmseg.registry import RUNNERS
    from mmseg.utils import register_all_modules

    from mesa_seg.engine import checks
    from mesa_seg.engine.cli import configure
    from mesa_seg.engine.distributed import processes
    from mesa_seg.engine.errors import explained
    from mesa_seg.engine.optim_wrapper import use_amp

    register_all_modules(init_default_scope=False)
    cfg = configure(args)
    if args.resume:
        cfg.resume = True
        if args.resume != 'auto':
            cfg.load_from = args.resume
    checks.check_checkpoint(cfg.get('load_from'), '--resume' if args.resume else 'load_from')
    checks.check_pretrained(cfg.model)
    checks.check_work_dir(cfg.work_dir)
    checks.check_data(cfg.get('train_dataloader'))
    if cfg.get('val_cfg') is not None:
        checks.check_data(cfg.get('val_dataloader'))
    checks.check_batch(cfg, processes(args.launcher))
    with explained(cfg, building=True):
        if args.amp:
            use_amp(cfg)
        runner = RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
    with explained(cfg):
        runner.train()


if __name__ == '__main__':
    from mesa_seg.engine.errors import run
    run(main)
