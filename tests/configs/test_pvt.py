"""The Semantic FPN + PVT recipes are the published ones, and every size builds."""
from pathlib import Path

import pytest
import torch

from mesa_seg import compat

compat.prepare()

from mmengine.config import Config  # noqa: E402
from mmseg.registry import MODELS  # noqa: E402
from mmseg.utils import register_all_modules  # noqa: E402

import mesa_seg  # noqa: E402, F401

register_all_modules()

CONFIGS = Path(__file__).parents[2] / 'configs'
V1 = dict(t=('tiny', [2, 2, 2, 2]), s=('small', [3, 4, 6, 3]), m=('medium', [3, 4, 18, 3]), l=('large', [3, 8, 27, 3]))
V2 = dict(b0=[2, 2, 2, 2], b1=[2, 2, 2, 2], b2=[3, 4, 6, 3], b3=[3, 4, 18, 3], b4=[3, 8, 27, 3], b5=[3, 6, 40, 3],
          b2_li=[3, 4, 6, 3])
RELEASES = 'https://github.com/whai362/PVT/releases/download/v2/'
ALL = [f'fpn_pvt_{size}_ade20k' for size in V1] + [f'fpn_pvt_v2_{size}_ade20k' for size in V2]


def load(name):
    return Config.fromfile(CONFIGS / f'{name}.py')


def build(cfg):
    """The config's model without weights and without reading a checkpoint."""
    model = cfg.model.copy()
    model.backbone.pop('init_cfg')
    with torch.device('meta'):
        return MODELS.build(model)


@pytest.mark.parametrize('name', ALL)
def test_recipe(name):
    cfg = load(name)
    optimizer = cfg.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.weight_decay) == ('AdamW', 2e-4, 1e-4)
    assert 'paramwise_cfg' not in cfg.optim_wrapper
    (schedule, ) = cfg.param_scheduler
    assert (schedule.type, schedule.power, schedule.eta_min, schedule.end) == ('PolyLR', 0.9, 0, 40000)
    assert cfg.train_cfg.max_iters == 40000
    assert cfg.train_dataloader.batch_size == 4
    assert cfg.model.data_preprocessor.size == (512, 512)
    crop = next(t for t in cfg.train_dataloader.dataset.pipeline if t.type == 'RandomCrop')
    assert crop.crop_size == (512, 512)
    for loader in (cfg.val_dataloader, cfg.test_dataloader):
        kinds = [t.type for t in loader.dataset.pipeline]
        # Resized after the aspect-preserving resize and before the labels load, which keep their own size.
        assert kinds == ['LoadImageFromFile', 'Resize', 'ResizeToMultiple', 'LoadAnnotations', 'PackSegInputs']
        assert loader.dataset.pipeline[2].size_divisor == 32
    head = cfg.model.decode_head
    assert (head.channels, head.feature_strides, head.num_classes) == (128, [4, 8, 16, 32], 150)
    assert (cfg.model.neck.out_channels, cfg.model.neck.num_outs) == (256, 4)
    assert cfg.model.backbone.drop_path_rate == 0.1


@pytest.mark.parametrize('size', V1)
def test_sizes_of_pvt(size):
    name, depths = V1[size]
    cfg = load(f'fpn_pvt_{size}_ade20k')
    assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint=f'{RELEASES}pvt_{name}.pth')
    backbone = build(cfg).backbone
    assert [len(getattr(backbone, f'block{i}')) for i in range(1, 5)] == depths
    assert [backbone.block1[0].attn.num_heads, backbone.block4[0].attn.num_heads] == [1, 8]
    assert [getattr(backbone, f'block{i}')[0].attn.sr_ratio for i in range(1, 5)] == [8, 4, 2, 1]
    assert backbone.block1[0].norm1.eps == 1e-6


@pytest.mark.parametrize('size', V2)
def test_sizes_of_pvt_v2(size):
    cfg = load(f'fpn_pvt_v2_{size}_ade20k')
    assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint=f'{RELEASES}pvt_v2_{size}.pth')
    model = build(cfg)
    assert [len(getattr(model.backbone, f'block{i}')) for i in range(1, 5)] == V2[size]
    channels = [32, 64, 160, 256] if size == 'b0' else [64, 128, 320, 512]
    assert [conv.conv.in_channels for conv in model.neck.lateral_convs] == channels
    assert [getattr(model.backbone, f'patch_embed{i}').proj.out_channels for i in range(1, 5)] == channels
    assert model.backbone.block1[0].mlp.fc1.out_features == channels[0] * (4 if size == 'b5' else 8)
    assert model.backbone.block1[0].attn.linear == (size == 'b2_li')
