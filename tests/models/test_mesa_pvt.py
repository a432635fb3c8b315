"""Semantic FPN + PVT with compressed activations against its stock twin: same checkpoints and loss, far fewer bytes."""
import copy
import weakref

import pytest
import torch
from mmengine.structures import PixelData

import mesa_seg  # noqa: F401  registers the models

from mmseg.registry import MODELS  # isort: skip
from mmseg.structures import SegDataSample  # isort: skip
from mmseg.utils import register_all_modules  # isort: skip

register_all_modules()

SMALL = dict(embed_dims=(32, 64, 96, 128), depths=(1, 1, 2, 1), num_heads=(1, 2, 3, 4), mlp_ratios=(4, 4, 2, 2))
BACKBONES = [('PyramidVisionTransformer', {}), ('PyramidVisionTransformerV2', {}),
             ('PyramidVisionTransformerV2', dict(linear=True))]


def segmentor(backbone, mesa=None, **kwargs):
    """Stock without ``mesa``, its Mesa twin with it."""
    prefix, extra = ('', {}) if mesa is None else ('Mesa', dict(mesa=mesa))
    return MODELS.build(dict(
        type='EncoderDecoder',
        data_preprocessor=dict(type='SegDataPreProcessor'),
        backbone=dict(type=prefix + backbone, **{**SMALL, 'drop_path_rate': 0.2, **kwargs}, **extra),
        neck=dict(type=prefix + 'FPN', in_channels=list(SMALL['embed_dims']), out_channels=64, num_outs=4, **extra),
        decode_head=dict(
            type=prefix + 'FPNHead', in_channels=[64] * 4, in_index=[0, 1, 2, 3], feature_strides=[4, 8, 16, 32],
            channels=32, dropout_ratio=0.1, num_classes=12, norm_cfg=dict(type='SyncBN', requires_grad=True),
            align_corners=False, loss_decode=dict(type='CrossEntropyLoss'), **extra),
        train_cfg=dict(), test_cfg=dict(mode='whole')))


def batch(size=64):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 3, size, size, generator=generator)
    samples = []
    for _ in range(2):
        sample = SegDataSample(metainfo=dict(img_shape=(size, size), ori_shape=(size, size)))
        sample.gt_sem_seg = PixelData(data=torch.randint(0, 12, (1, size, size), generator=generator))
        samples.append(sample)
    return x, samples


class Kept:

    def __init__(self, tensor, everything):
        self.tensor = tensor
        everything.add(self)


def step(model, seed=0):
    """One training forward and backward: the loss, the gradients by name and the bytes kept in between."""
    x, samples = batch()
    mine = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept = weakref.WeakSet()  # what a checkpoint's first forward saves is gone again before the forward ends

    model.train().zero_grad()
    torch.manual_seed(seed)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: Kept(t, kept), lambda held: held.tensor):
        loss = model.loss(x, samples)['decode.loss_ce']
    storages = {held.tensor.untyped_storage() for held in kept}
    size = sum({s.data_ptr(): s.nbytes() for s in storages if s.data_ptr() not in mine}.values())
    del storages
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}, size


def distance(a, b):
    """Norm of the difference of two sets of gradients over the norm of the second."""
    return (sum((a[k] - b[k]).square().sum() for k in b) / sum(b[k].square().sum() for k in b)).sqrt().item()


@pytest.fixture(params=BACKBONES, ids=['v1', 'v2', 'v2-li'])
def twins(request):
    name, kwargs = request.param
    torch.manual_seed(0)
    stock, mesa = segmentor(name, **kwargs), segmentor(name, dict(), **kwargs)
    mesa.load_state_dict(stock.state_dict(), strict=True)
    return stock, mesa


def test_state_dict_is_the_stock_twins(twins):
    stock, mesa = twins
    step(mesa)
    assert list(mesa.state_dict()) == list(stock.state_dict())
    stock.load_state_dict(mesa.state_dict(), strict=True)


def test_evaluation_is_bit_identical(twins):
    stock, mesa = (model.eval() for model in twins)
    x, _ = batch()
    with torch.no_grad():
        assert torch.equal(stock.encode_decode(x, [dict(img_shape=(64, 64))]),
                           mesa.encode_decode(x, [dict(img_shape=(64, 64))]))


def test_training_is_stocks_in_a_fraction_of_the_bytes(twins):
    stock, mesa = twins
    loss, exact, stock_bytes = step(stock)
    mesa_loss, found, mesa_bytes = step(mesa)
    torch.testing.assert_close(mesa_loss, loss, rtol=1e-5, atol=0)
    assert distance(found, exact) <= 0.02
    assert mesa_bytes <= 0.2 * stock_bytes


def test_switched_off_is_bit_identical():
    torch.manual_seed(0)
    stock, mesa = segmentor('PyramidVisionTransformer'), segmentor('PyramidVisionTransformer', dict(enable=False))
    mesa.load_state_dict(stock.state_dict())
    loss, exact, stock_bytes = step(stock)
    same, found, mesa_bytes = step(mesa)
    assert torch.equal(loss, same) and stock_bytes == mesa_bytes
    assert all(torch.equal(found[name], exact[name]) for name in exact)


@pytest.mark.parametrize('name', ['PyramidVisionTransformer', 'PyramidVisionTransformerV2'])
def test_checkpointed_blocks_keep_a_compressed_input(name):
    torch.manual_seed(0)
    plain, checkpointed = segmentor(name, dict()), segmentor(name, dict(), with_cp=True)
    checkpointed.load_state_dict(plain.state_dict())
    loss, gradients, size = step(plain)
    same, found, smaller = step(checkpointed)
    torch.testing.assert_close(same, loss, rtol=1e-6, atol=0)
    assert distance(found, gradients) <= 0.03
    assert smaller < size


def test_laterals_are_rebuilt_and_not_kept():
    """The 3 x 3 convolutions of the neck read sums of laterals: nothing of those sums is kept."""
    torch.manual_seed(0)
    dims = list(SMALL['embed_dims'])
    mesa = MODELS.build(dict(type='MesaFPN', in_channels=dims, out_channels=64, num_outs=4, mesa=dict())).train()
    stock = MODELS.build(dict(type='FPN', in_channels=dims, out_channels=64, num_outs=4))
    stock.load_state_dict(mesa.state_dict())
    maps = [torch.randn(2, c, 32 // 2**i, 32 // 2**i) for i, c in enumerate(dims)]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        outs = mesa([x.clone().requires_grad_() * 1 for x in maps])  # no leaf carries a saved form
    codes = {t.untyped_storage().data_ptr(): t.numel() for t in kept if t.dtype == torch.uint8}
    assert sum(codes.values()) == sum(x.numel() for x in maps)
    weights = [torch.randn_like(out) for out in outs]
    sum((out * w).sum() for out, w in zip(outs, weights, strict=True)).backward()
    sum((out * w).sum() for out, w in zip(stock(maps), weights, strict=True)).backward()
    gradients = [{name: p.grad for name, p in model.named_parameters()} for model in (mesa, stock)]
    assert distance(*gradients) <= 0.02


def test_a_converted_model_can_be_copied():
    model = segmentor('PyramidVisionTransformer', dict())
    twin = copy.deepcopy(model)
    assert torch.equal(step(model)[0], step(twin)[0])
