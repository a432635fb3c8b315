"""Mask2Former (arXiv 2112.01527), whose head mmseg takes from mmdet."""
from pathlib import Path

import pytest
import torch

import mesa_seg  # noqa: F401  makes the packages importable
from mesa_seg.engine.config import load_config
from mesa_seg.engine.memory import KeptForBackward
from mesa_seg.engine.trial import Trial
from mesa_seg.engine.variants import without_dropping
from mesa_seg.models.any_model import compress


@pytest.fixture(scope='module')
def small_model():
    """mmseg's own config with a backbone, decoders and queries of next to nothing."""
    import mmseg
    pytest.importorskip('mmdet', reason='mmdet is not installed')
    path = Path(mmseg.__file__).parent / '.mim/configs/mask2former/mask2former_swin-t_8xb2-160k_ade20k-512x512.py'
    if not path.is_file():
        pytest.skip('this mmseg comes without its configs')
    model = load_config(path).model
    model.backbone.update(embed_dims=32, depths=[1, 1, 1, 1], num_heads=[1, 2, 4, 8])
    head = model.decode_head
    head.update(in_channels=[32, 64, 128, 256], num_queries=20, num_classes=11)
    head.loss_cls.class_weight = [1.0] * 11 + [0.1]
    head.pixel_decoder.encoder.num_layers = 1
    head.transformer_decoder.num_layers = 2
    head.train_cfg.num_points = 500
    return model


def measured(model, prepare=None):
    """Loss, bytes kept and gradients by name."""
    trial = Trial(model, 64, 2, prepare=prepare, classes=5)
    without_dropping(trial.segmentor)
    with KeptForBackward(trial.module) as kept:
        outputs = trial.forward()
    size = kept.report(outputs).total
    gradients, _ = trial.gradients()
    return outputs[0].item(), size, gradients


@pytest.mark.parametrize('leftovers, most', [(False, 0.3), (True, 0.25)])
def test_loss_is_stocks_and_little_is_kept(small_model, leftovers, most):
    loss, stock_size, exact = measured(small_model)
    conversions = []

    def prepare(model):
        conversions.append(compress(model, dict(bits=8), leftovers=leftovers and dict(min_numel=1000)))

    mesa_loss, size, found = measured(small_model, prepare)
    assert mesa_loss == pytest.approx(loss, rel=1e-5)
    assert size <= most * stock_size
    assert found.keys() == exact.keys() and not conversions[0].left
    off = sum((found[name] - exact[name]).square().sum() for name in exact)
    assert off.sqrt() <= 0.03 * torch.stack([g.square().sum() for g in exact.values()]).sum().sqrt()
