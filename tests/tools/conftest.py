"""Running the tools in this process, on a model and a data set small enough for a test."""
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    'model.backbone.init_cfg': 'None',
    'model.backbone.embed_dims': '32',
    'model.backbone.depths': '[1,1,2,1]',
    'model.backbone.num_heads': '[1,2,4,8]',
    'model.decode_head.in_channels': '[32,64,128,256]',
    'model.decode_head.channels': '32',
    'model.decode_head.pool_scales': '[1,2]',
    'model.auxiliary_head.in_channels': '128',
    'model.auxiliary_head.channels': '32',
    'crop_size': '(64,64)',
    'train_dataloader.dataset.pipeline.2.scale': '(96,64)',
    'val_dataloader.dataset.pipeline.1.scale': '(96,64)',
    'test_dataloader.dataset.pipeline.1.scale': '(96,64)',
    'train_dataloader.num_workers': '0',
    'train_dataloader.persistent_workers': 'False',
    'val_dataloader.num_workers': '0',
    'val_dataloader.persistent_workers': 'False',
    'test_dataloader.num_workers': '0',
    'test_dataloader.persistent_workers': 'False',
    'default_hooks.logger.interval': '1',
    'default_hooks.checkpoint.interval': '2',
    'train_cfg.max_iters': '2',
    'train_cfg.val_interval': '2',
    'param_scheduler.0.end': '1',
    'param_scheduler.1.begin': '1',
    'randomness.seed': '0',
}


def options(**more):
    """``--cfg-options`` for the small model; ``__`` in a name stands for a dot."""
    chosen = {**SMALL, **{key.replace('__', '.'): value for key, value in more.items()}}
    return ['--cfg-options', *(f'{key}={value}' for key, value in chosen.items())]


def forget_earlier_runs():
    """mmengine keeps loggers, hubs and visualizers by name for the life of the process, and a second run would find them."""
    from mmengine.logging import MessageHub, MMLogger
    from mmseg.visualization import SegLocalVisualizer
    for keeper in (MMLogger, MessageHub, SegLocalVisualizer):
        keeper._instance_dict.clear()


class Tool:
    """``tools/NAME.py``, run in this process."""

    def __init__(self, name):
        spec = importlib.util.spec_from_file_location(f'mesa_seg_tool_{name}', ROOT / 'tools' / f'{name}.py')
        self.module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)

    def main(self, argv):
        forget_earlier_runs()
        return self.module.main(argv)


@pytest.fixture(scope='session')
def tool():
    """Load ``tools/NAME.py``."""
    from mesa_seg import compat
    compat.prepare()
    return Tool


@pytest.fixture(scope='session')
def toy(tmp_path_factory):
    """Folder of a toy data set of 6 and 2 images."""
    from mesa_seg.data.toy import write_dataset
    folder = tmp_path_factory.mktemp('data') / 'toy'
    write_dataset(str(folder), train=6, val=2, width=96, height=64, classes=20)
    return str(folder)
