"""The Mesa components against their stock twins, at a small size."""
import copy

import pytest
import torch
from mmengine.structures import PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample

import mesa_seg  # noqa: F401
from tests.kept import kept

NORM = dict(type='SyncBN', requires_grad=True)


def config(mesa=None, **backbone):
    prefix, extra = ('', {}) if mesa is None else ('Mesa', dict(mesa=mesa))
    head = dict(num_classes=19, norm_cfg=NORM, align_corners=False, dropout_ratio=0.1)
    return dict(
        type='EncoderDecoder',
        backbone=dict(type=f'{prefix}SwinTransformer', embed_dims=32, depths=[2, 2, 2, 2], num_heads=[1, 2, 4, 8],
                      window_size=7, drop_path_rate=0.3, **backbone, **extra),
        decode_head=dict(type=f'{prefix}UPerHead', in_channels=[32, 64, 128, 256], in_index=[0, 1, 2, 3], channels=32,
                         loss_decode=dict(type='CrossEntropyLoss', loss_weight=1.0), **head, **extra),
        auxiliary_head=dict(type=f'{prefix}FCNHead', in_channels=128, in_index=2, channels=32, num_convs=1,
                            concat_input=False, loss_decode=dict(type='CrossEntropyLoss', loss_weight=0.4), **head, **extra),
        train_cfg=dict(), test_cfg=dict(mode='whole'))


def pair(mesa, **backbone):
    torch.manual_seed(0)
    stock = MODELS.build(config(**backbone))
    twin = MODELS.build(config(mesa, **backbone))
    assert str(twin.load_state_dict(stock.state_dict())) == '<All keys matched successfully>'
    return stock, twin


def batch(size=96):
    generator = torch.Generator().manual_seed(1)
    samples = []
    for _ in range(2):
        label = torch.randint(0, 19, (1, size, size), generator=generator)
        label[:, :5] = 255
        samples.append(SegDataSample(gt_sem_seg=PixelData(data=label), metainfo=dict(img_shape=(size, size))))
    return torch.randn(2, 3, size, size, generator=generator), samples


def loss_of(model, seed=3):
    torch.manual_seed(seed)
    losses = model.loss(*batch())
    return sum(v for k, v in losses.items() if 'loss' in k), losses


def gradient_error(stock, twin):
    error = sum((a.grad - b.grad).norm()**2 for a, b in zip(stock.parameters(), twin.parameters(), strict=False))
    return (error / sum(a.grad.norm()**2 for a in stock.parameters())).sqrt().item()


@pytest.mark.parametrize('backbone', [{}, dict(with_cp=True), dict(frozen_stages=1), dict(patch_norm=False)], ids=str)
def test_training_follows_stock(backbone):
    stock, twin = pair(dict(), **backbone)
    stock.train(), twin.train()
    losses = [loss_of(model) for model in (stock, twin)]
    assert losses[0][1].keys() == losses[1][1].keys()
    for key, value in losses[0][1].items():
        torch.testing.assert_close(value, losses[1][1][key], rtol=1e-5, atol=1e-5)
    for loss, _ in losses:
        loss.backward()
    frozen = [p for p in stock.parameters() if p.grad is None]
    assert [n for n, p in twin.named_parameters() if p.grad is None] == [n for n, p in stock.named_parameters() if p.grad is None]
    for p in (*frozen, *(p for p in twin.parameters() if p.grad is None)):
        p.grad = torch.zeros_like(p)
    assert gradient_error(stock, twin) < 0.03


def test_a_fraction_is_kept():
    stock, twin = pair(dict())
    sizes = [kept(lambda model=model: loss_of(model)[0], *model.parameters(), *model.buffers())[1] for model in (stock, twin)]
    assert sizes[1] < 0.2 * sizes[0]


def test_eval_is_bit_identical_and_so_is_training_switched_off():
    stock, twin = pair(dict())
    loss_of(twin)[0].backward()
    twin.load_state_dict(stock.state_dict())
    images, _ = batch()
    with torch.no_grad():
        assert torch.equal(stock.eval()(images), twin.eval()(images))
    stock, twin = pair(dict(enable=False))
    losses = [loss_of(model)[0] for model in (stock, twin)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(stock.parameters(), twin.parameters(), strict=False))


@pytest.mark.parametrize('mesa,limit', [(dict(bits=4, granularity='block'), 0.3), (dict(bits=2, granularity='block'), 1.2)],
                         ids=str)
def test_fewer_bits(mesa, limit):
    stock, twin = pair(mesa)
    for model in (stock, twin):
        loss_of(model)[0].backward()
    assert gradient_error(stock, twin) < limit


def test_gradients_of_the_whole_model_are_near_and_right_in_the_mean():
    stock, twin = pair(dict())
    for model in (stock, twin):
        for module in model.modules():
            if hasattr(module, 'drop_prob'):
                module.drop_prob = 0.0
            elif isinstance(module, torch.nn.Dropout2d):
                module.p = 0.0
    loss_of(stock)[0].backward()
    exact = [p.grad for p in stock.parameters()]
    norm = sum(g.norm()**2 for g in exact).sqrt()
    loss_of(twin)  # a first forward, so that all seeds below round with running ranges
    total, errors, seeds = [torch.zeros_like(g) for g in exact], [], 24
    for seed in range(seeds):
        twin.zero_grad()
        loss_of(twin, seed)[0].backward()
        errors.append(gradient_error(stock, twin))
        for sum_, p in zip(total, twin.parameters(), strict=True):
            sum_ += p.grad
    assert sum(errors[:3]) / 3 < 0.02
    mean_error = sum((t / seeds - g).norm()**2 for t, g in zip(total, exact, strict=True)).sqrt() / norm
    assert mean_error < 0.35 * sum(errors) / seeds  # 1 / sqrt(24) = 0.2 where nothing is biased


def test_mesa_as_published_keeps_each_copy():
    _, shared = pair(dict())
    _, published = pair(dict(reuse=False))
    sizes = [kept(lambda model=model: model.backbone(batch()[0]), *model.parameters(), *model.buffers())[1]
             for model in (shared, published)]
    assert sizes[1] > 1.3 * sizes[0]


def test_a_step_repeats_with_the_seed():
    _, twin = pair(dict())
    grads = []
    for _ in range(2):
        copied = copy.deepcopy(twin)
        loss_of(copied)[0].backward()
        grads.append(copied.decode_head.fpn_bottleneck.conv.weight.grad)
    assert torch.equal(*grads)


def test_a_mistake_in_mesa_is_named():
    with pytest.raises(ValueError, match="unknown key 'bit'"):
        MODELS.build(config(dict(bit=8)))
