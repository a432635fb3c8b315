"""The UPerNet + Swin recipes are MMSegmentation's own, and every size builds."""
from pathlib import Path

import pytest

from mesa_seg import compat

compat.prepare()

import mmseg  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmseg.registry import MODELS  # noqa: E402
from mmseg.utils import register_all_modules  # noqa: E402

register_all_modules()

CONFIGS = Path(__file__).parents[2] / 'configs'
STOCK = Path(mmseg.__file__).parent / '.mim/configs/swin'
# Ours, and what mmseg calls it.
RECIPES = dict(
    t='tiny-patch4-window7-in1k', s='small-patch4-window7-in1k', b='base-patch4-window7-in1k',
    b_in22k='base-patch4-window7-in22k', b_w12='base-patch4-window12-in1k-384x384',
    b_w12_in22k='base-patch4-window12-in22k-384x384', l='large-patch4-window7-in22k',
    l_w12='large-patch4-window12-in22k-384x384')
DIMS = dict(t=96, s=96, b=128, l=192)


def load(size):
    return Config.fromfile(CONFIGS / f'upernet_swin_{size}_ade20k.py')


@pytest.mark.parametrize('size', RECIPES)
def test_recipe_is_mmsegs(size):
    if not STOCK.is_dir():
        pytest.skip(f'this mmseg comes without its configs ({STOCK})')
    ours, theirs = load(size), Config.fromfile(STOCK / f'swin-{RECIPES[size]}-pre_upernet_8xb2-160k_ade20k-512x512.py')
    for part in ('backbone', 'decode_head', 'auxiliary_head', 'data_preprocessor'):
        assert dict(ours.model[part]) == dict(theirs.model[part]), part
    for key in ('optim_wrapper', 'param_scheduler', 'train_cfg'):
        assert ours[key] == theirs[key], key
    assert ours.train_dataloader.batch_size == theirs.train_dataloader.batch_size
    for loader in ('train_dataloader', 'val_dataloader'):
        assert ours[loader].dataset.pipeline == theirs[loader].dataset.pipeline


@pytest.mark.parametrize('size', RECIPES)
def test_model_builds(size):
    model = load(size).model
    assert model.backbone.pop('init_cfg').type == 'Pretrained'
    model.backbone.depths = [1, 1, 1, 1]  # the recipe's depths are checked above; blocks only cost time here
    model = MODELS.build(model)
    dims = [DIMS[size[0]] * 2**i for i in range(4)]
    assert model.backbone.num_features == dims
    assert [module.in_channels for module in model.decode_head.lateral_convs] == dims[:3]
    window = 12 if 'w12' in size else 7
    assert model.backbone.stages[0].blocks[0].attn.w_msa.window_size == (window, window)
