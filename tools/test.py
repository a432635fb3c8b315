"""Evaluate a checkpoint: ``python tools/test.py CONFIG CHECKPOINT``. See ``--help`` and README.md."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

try:
    from mesa_seg import compat
except ImportError as error:  # a package is missing: the message says which, and what to install
    sys.exit(f'error: {error}')


def parse(argv=None):
    from mesa_seg.engine.cli import parser
    result = parser('Evaluate a segmentation model')
    result.add_argument('checkpoint', help='checkpoint file')
    result.add_argument('--out', help='folder for the predicted label maps')
    result.add_argument('--show', action='store_true', help='show each prediction in a window')
    result.add_argument('--show-dir', help='folder for pictures of the predictions')
    result.add_argument('--wait-time', type=float, default=2, help='seconds between two shown pictures')
    result.add_argument('--tta', action='store_true', help="average over scales and flips (the config's tta_pipeline)")
    return result.parse_args(argv)


def _draw(cfg, args):
    from mesa_seg.engine.errors import UserError
    hook = cfg.get('default_hooks', {}).get('visualization')
    if hook is None:
        raise UserError('--show and --show-dir draw by default_hooks.visualization, which the config has not: add '
                        "visualization=dict(type='SegVisualizationHook').")
    hook.draw = True
    hook.setdefault('interval', 1)
    if args.show:
        hook.show = True
        hook.wait_time = args.wait_time
    if args.show_dir:
        cfg.visualizer.save_dir = args.show_dir


def main(argv=None):
    compat.prepare()
    args = parse(argv)

    from mmengine.runner import Runner
    from mmseg.utils import register_all_modules

    from mesa_seg.engine import checks
    from mesa_seg.engine.cli import configure
    from mesa_seg.engine.errors import UserError, explained

    register_all_modules(init_default_scope=False)
    cfg = configure(args)
    cfg.load_from = args.checkpoint
    checks.check_checkpoint(args.checkpoint, 'the checkpoint')
    checks.check_work_dir(cfg.work_dir)
    checks.check_data(cfg.get('test_dataloader'))
    if args.show or args.show_dir:
        _draw(cfg, args)
    if args.tta:
        if 'tta_model' not in cfg or 'tta_pipeline' not in cfg:
            raise UserError('--tta needs tta_model and tta_pipeline in the config (configs/_base_ has both).')
        cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline
        cfg.tta_model.module = cfg.model
        cfg.model = cfg.tta_model
    if args.out:
        cfg.test_evaluator.output_dir = args.out
        cfg.test_evaluator.keep_results = True
    with explained(cfg, building=True):
        runner = Runner.from_cfg(cfg)
    with explained(cfg):
        runner.test()


if __name__ == '__main__':
    from mesa_seg.engine.errors import run
    run(main)
