"""``MesaConversionHook``: one line of a config converts any model before it trains."""
from types import SimpleNamespace

import pytest
import torch
from mmengine.logging import MMLogger
from mmengine.model import is_model_wrapper
from mmengine.registry import MODEL_WRAPPERS
from mmengine.runner import Runner
from mmengine.structures import PixelData
from torch import nn

from mesa_seg.engine.hooks import MesaConversionHook
from mesa_seg.models.any_model import compress
from mesa_seg.models.decode_heads.fused_loss import FusedLossMixin
from mesa_seg.nn import MesaConv2d, MesaRoot
from mesa_seg.nn._module import MesaModule
from tests.kept import kept

from mmseg.registry import MODELS  # isort: skip
from mmseg.structures import SegDataSample  # isort: skip
from mmseg.utils import register_all_modules  # isort: skip

register_all_modules()


def config():
    """SegFormer (arXiv 2105.15203), very small."""
    return dict(
        type='EncoderDecoder', data_preprocessor=dict(type='SegDataPreProcessor', size=(64, 64)),
        backbone=dict(type='MixVisionTransformer', embed_dims=8, num_layers=[1, 1, 1, 1], num_heads=[1, 2, 4, 8], mlp_ratio=2),
        decode_head=dict(
            type='SegformerHead', in_channels=[8, 16, 32, 64], in_index=[0, 1, 2, 3], channels=16, dropout_ratio=0.1,
            num_classes=5, norm_cfg=dict(type='SyncBN'), align_corners=False, loss_decode=dict(type='CrossEntropyLoss')))


def data(count=2, size=64):
    generator = torch.Generator().manual_seed(0)
    samples = []
    for _ in range(count):
        label = torch.randint(0, 5, (1, size // 8, size // 8), generator=generator)
        label = label.repeat_interleave(8, 1).repeat_interleave(8, 2)
        sample = SegDataSample(gt_sem_seg=PixelData(data=label), metainfo=dict(img_shape=(size, size), ori_shape=(size, size)))
        samples.append(dict(inputs=torch.randn(3, size, size, generator=generator), data_samples=sample))
    return samples


def runner_of(model):
    return SimpleNamespace(model=model, logger=MMLogger.get_instance('test'))


def step(model):
    """Loss, gradients by name, and bytes kept."""
    batch = data()
    inputs = torch.stack([sample['inputs'] for sample in batch])
    model.train().zero_grad()
    torch.manual_seed(0)
    losses, size = kept(lambda: model(inputs, [sample['data_samples'] for sample in batch], mode='loss'),
                        *model.parameters(), *model.buffers())
    loss = losses['decode.loss_ce']
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, size


def test_a_run_trains_the_converted_model_and_writes_stock_checkpoints(tmp_path):
    torch.manual_seed(0)
    runner = Runner(
        config(), str(tmp_path), train_dataloader=dict(batch_size=2, dataset=data(4), sampler=dict(type='InfiniteSampler'),
                                                       collate_fn=dict(type='pseudo_collate')),
        train_cfg=dict(by_epoch=False, max_iters=3), optim_wrapper=dict(optimizer=dict(type='AdamW', lr=1e-3)),
        custom_hooks=[dict(type='MesaConversionHook', leftovers=True)], default_scope='mmseg', experiment_name='conversion',
        default_hooks=dict(logger=dict(type='LoggerHook', interval=1)))
    runner.train()
    model = runner.model
    assert isinstance(model, MesaRoot) and isinstance(model.decode_head, FusedLossMixin)
    assert isinstance(model.backbone.layers[0][1][0].ffn.layers[0], MesaConv2d)
    # The runner took SyncBatchNorm away, as it does in a single process; what it put in its place is converted, too.
    assert isinstance(model.decode_head.fusion_conv.bn, MesaModule)
    checkpoint = torch.load(next(tmp_path.glob('*.pth')), weights_only=False)
    MODELS.build(config()).load_state_dict(checkpoint['state_dict'], strict=True)


def test_loss_is_stocks_and_little_is_kept():
    torch.manual_seed(0)
    stock, mesa = MODELS.build(config()), MODELS.build(config())
    mesa.load_state_dict(stock.state_dict())
    hook = MesaConversionHook()
    hook.before_run(runner_of(mesa))
    hook.before_run(runner_of(mesa))  # a second run with the same hook converts nothing again
    loss, exact, stock_size = step(stock)
    mesa_loss, found, size = step(mesa)
    torch.testing.assert_close(mesa_loss, loss, rtol=1e-5, atol=0)
    error = sum((found[k] - exact[k]).square().sum() for k in exact) / sum(g.square().sum() for g in exact.values())
    assert error.sqrt() <= 0.03
    assert size <= 0.25 * stock_size
    assert not [reason for reason in hook.conversion.left.values() if 'not one that' in reason]


def test_a_wrapped_model_is_converted_inside_its_wrapper():

    @MODEL_WRAPPERS.register_module(force=True)
    class Wrapper(nn.Module):

        def __init__(self, module):
            super().__init__()
            self.module = module

    model = MODELS.build(config())
    assert is_model_wrapper(Wrapper(model))
    MesaConversionHook().before_run(runner_of(Wrapper(model)))
    assert isinstance(model, MesaRoot)


def test_switched_off_it_leaves_the_model_alone():
    model = MODELS.build(config())
    classes = [type(module) for module in model.modules()]
    MesaConversionHook(dict(enable=False), leftovers=True).before_run(runner_of(model))
    assert [type(module) for module in model.modules()] == classes and not model._forward_pre_hooks


def test_a_wrong_setting_is_an_error_of_the_config():
    with pytest.raises(ValueError, match='bitz'):
        MesaConversionHook(dict(bitz=8))


def test_leftovers_alone_draw_the_same_random_numbers():
    """Seeds of rounding leave dropout's numbers as they are; the next step rounds with others."""
    torch.manual_seed(0)
    stock, mesa = MODELS.build(config()), MODELS.build(config())
    mesa.load_state_dict(stock.state_dict())
    compress(mesa, fused_loss=False, leftovers=dict(min_numel=64))
    assert len(mesa._forward_pre_hooks) == 1
    torch.testing.assert_close(step(mesa)[0], step(stock)[0], rtol=1e-5, atol=0)
    mesa.eval()
    with torch.no_grad():
        mesa(torch.randn(1, 3, 64, 64))


def test_an_error_in_the_forward_ends_the_watch():
    model = MODELS.build(config()).train()
    compress(model, leftovers=True)
    with pytest.raises(Exception):  # noqa: B017  whatever mmseg raises
        model(None, None, mode='loss')
    x = torch.randn(4, requires_grad=True)
    assert x.exp().grad_fn._saved_result is not None
    step(model)
