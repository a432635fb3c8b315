"""mmcv's deformable attention, of Mask2Former's pixel decoder."""
import copy

import pytest
import torch

import mesa_seg  # noqa: F401  makes the packages importable
from mesa_seg import convert
from mesa_seg.models.any_model import compress
from tests.kept import kept

SHAPES = torch.tensor([[8, 6], [4, 3]])


@pytest.fixture
def stock():
    module = pytest.importorskip('mmcv.ops.multi_scale_deform_attn', reason='this mmcv has no mmcv.ops')
    torch.manual_seed(0)
    attention = module.MultiScaleDeformableAttention(32, num_heads=4, num_levels=2, num_points=3, dropout=0., batch_first=True)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return attention.train()


def arguments(reference_last=2):
    tokens = int(SHAPES.prod(1).sum())
    generator = torch.Generator().manual_seed(1)
    query, position = torch.randn(2, 2, tokens, 32, generator=generator)
    return query, dict(query_pos=position, spatial_shapes=SHAPES, level_start_index=torch.tensor([0, 48]),
                       reference_points=torch.rand(2, tokens, 2, reference_last, generator=generator),
                       key_padding_mask=torch.rand(2, tokens, generator=generator) < 0.2)


def run(module, query, keywords):
    """Result, bytes kept, and gradients of the input and the parameters."""
    leaf = query.clone().requires_grad_()
    constant = [x for x in keywords.values() if x is not None]
    y, size = kept(lambda: module(leaf, **keywords), *module.parameters(), leaf, *constant)
    return y.detach(), size, torch.autograd.grad(y.square().sum(), [leaf, *module.parameters()])


@pytest.mark.parametrize('reference_last', [2, 4])
def test_result_gradients_and_bytes(stock, reference_last):
    mesa = copy.deepcopy(stock)
    assert not convert(mesa, dict(granularity='block')).left
    query, keywords = arguments(reference_last)
    expected, stock_size, exact = run(stock, query, keywords)
    y, size, found = run(mesa, query, keywords)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    for a, b in zip(found, exact, strict=True):
        assert (a - b).norm() <= 0.05 * b.norm()
    assert size <= 0.3 * stock_size
    assert torch.equal(mesa.eval()(query, **keywords), stock.eval()(query, **keywords))


def test_tokens_first(stock):
    stock.batch_first = False
    mesa = copy.deepcopy(stock)
    convert(mesa)
    query, keywords = arguments()
    keywords['query_pos'] = keywords['query_pos'].transpose(0, 1)
    torch.testing.assert_close(mesa(query.transpose(0, 1), **keywords), stock(query.transpose(0, 1), **keywords))


def test_leftovers_do_not_touch_the_places(stock):
    """Rounded places would read other pixels: the gradient of the offsets would be another."""
    mesa, both = copy.deepcopy(stock), copy.deepcopy(stock)
    convert(mesa, dict(granularity='block'))
    compress(both, dict(granularity='block'), leftovers=dict(min_numel=64))
    query, keywords = arguments()
    exact = run(stock, query, keywords)[2]
    names = ['query', *(name for name, _ in stock.named_parameters())]
    for model in (mesa, both):
        found = dict(zip(names, run(model, query, keywords)[2], strict=True))
        expected = exact[names.index('sampling_offsets.weight')]
        assert (found['sampling_offsets.weight'] - expected).norm() <= 0.05 * expected.norm()


def test_reference_points_of_another_shape_are_named(stock):
    convert(stock)
    query, keywords = arguments(3)
    with pytest.raises(ValueError, match='reference_points of shape.*3.*2 .points. or 4'):
        stock(query, **keywords)


def test_places_stay_exact_under_autocast(stock):
    mesa = copy.deepcopy(stock)
    convert(mesa, dict(granularity='block'))
    query, keywords = arguments()
    grads = []
    for model in (stock, mesa):
        with torch.autocast('cpu', torch.bfloat16):
            y = model(query, **keywords)
        y.float().square().sum().backward()
        grads.append(model.sampling_offsets.weight.grad)
    assert (grads[1] - grads[0]).norm() < 0.1 * grads[0].norm()


def test_shapes_that_do_not_fit_are_named(stock):
    convert(stock)
    query, keywords = arguments()
    with pytest.raises(RuntimeError, match='spatial_shapes: expected maps of 60 places'):
        stock(query, **dict(keywords, spatial_shapes=SHAPES + 1))
