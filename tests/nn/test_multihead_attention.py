"""torch's MultiheadAttention and the wrappers of mmcv and mmseg around it."""
import pytest
import torch
from mmcv.cnn.bricks.transformer import MultiheadAttention
from torch import nn

from mesa_seg import convert
from tests.kept import kept

from mmseg.models.backbones.mit import EfficientMultiheadAttention  # isort: skip
from mmseg.models.backbones.twins import GlobalSubsampledAttention, LocallyGroupedSelfAttention  # isort: skip

B, L, S, C, HEADS = 2, 12, 9, 32, 4


def twins(make, **mesa):
    torch.manual_seed(0)
    stock = make().train()
    for p in stock.parameters():
        nn.init.normal_(p, std=0.3)
    twin = make().train()
    twin.load_state_dict(stock.state_dict())
    convert(twin, dict(granularity='block', **mesa))
    return stock, twin


def compare(stock, twin, call, inputs, tolerance=0.08):
    """Equal outputs and close gradients; returns the bytes that each keeps."""
    results = []
    for model in (stock, twin):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out, size = kept(lambda m=model, xs=leaves: call(m, *xs), *model.parameters(), *leaves)
        out.backward(torch.linspace(-1, 1, out.numel()).view(out.shape))
        results.append((out, [x.grad for x in leaves] + [p.grad for p in model.parameters()], size))
    (expected, exact, stock_size), (out, found, size) = results
    torch.testing.assert_close(out, expected)
    for a, b in zip(found, exact, strict=True):
        if b is not None:
            assert (a - b).norm() <= tolerance * b.norm() + 1e-4
    return stock_size, size


def data(batch_first=True, *lengths):
    return [torch.randn((B, n, C) if batch_first else (n, B, C)) for n in lengths]


@pytest.mark.parametrize('batch_first', [True, False])
@pytest.mark.parametrize('bias', [True, False])
def test_self_attention_keeps_its_input_once(batch_first, bias):
    stock, twin = twins(lambda: nn.MultiheadAttention(C, HEADS, bias=bias, batch_first=batch_first))
    _, size = compare(stock, twin, lambda m, x: m(x, x, x, need_weights=False)[0], data(batch_first, L))
    # The input, q, k, v and what the output projection reads: no L x L map.
    assert size <= 5 * B * L * C * 1.0625 + 64


def test_cross_attention():
    stock, twin = twins(lambda: nn.MultiheadAttention(C, HEADS, batch_first=True))
    for call in (lambda m, q, x: m(q, x, x, need_weights=False)[0], lambda m, q, x: m(q, x, x + 1, need_weights=False)[0],
                 lambda m, q, x: m(x, x, x + 1, need_weights=False)[0] + q.sum()):
        compare(stock, twin, call, data(True, L, S))


def test_other_channels_of_keys_and_values():
    stock, twin = twins(lambda: nn.MultiheadAttention(C, HEADS, kdim=24, vdim=40, batch_first=True))
    inputs = [torch.randn(B, L, C), torch.randn(B, S, 24), torch.randn(B, S, 40)]
    compare(stock, twin, lambda m, q, k, v: m(q, k, v, need_weights=False)[0], inputs)


def masks():
    attn = torch.zeros(L, S, dtype=torch.bool)
    attn[:, ::3] = True
    padding = torch.zeros(B, S, dtype=torch.bool)
    padding[1, -2:] = True
    return attn, padding


@pytest.mark.parametrize('which', ['bool', 'float', 'a head', 'padding', 'both', 'mixed'])
@pytest.mark.filterwarnings('ignore:Support for mismatched')
def test_masks(which):
    attn, padding = masks()
    additive = torch.randn(L, S)
    each = torch.randn(B * HEADS, L, S)
    arguments = {'bool': dict(attn_mask=attn), 'float': dict(attn_mask=additive), 'a head': dict(attn_mask=each),
                 'padding': dict(key_padding_mask=padding), 'both': dict(attn_mask=attn, key_padding_mask=padding),
                 'mixed': dict(attn_mask=additive, key_padding_mask=padding)}[which]
    stock, twin = twins(lambda: nn.MultiheadAttention(C, HEADS, batch_first=True))
    compare(stock, twin, lambda m, q, x: m(q, x, x, need_weights=False, **arguments)[0], data(True, L, S))


def test_weights_that_are_asked_for_are_stocks():
    stock, twin = twins(lambda: nn.MultiheadAttention(C, HEADS, batch_first=True))
    x, = data(True, L)
    for a, b in zip(stock(x, x, x), twin(x, x, x), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize('make', [lambda: nn.MultiheadAttention(C, HEADS, dropout=0.1),
                                  lambda: nn.MultiheadAttention(C, HEADS, add_bias_kv=True)])
def test_what_it_cannot_do_is_left(make):
    model = nn.Sequential(make())
    assert '0' in convert(model).left


@pytest.mark.parametrize('batch_first', [True, False])
def test_mmcvs_wrapper(batch_first):
    stock, twin = twins(lambda: MultiheadAttention(C, HEADS, batch_first=batch_first))
    stock_size, size = compare(stock, twin, lambda m, x: m(x), data(batch_first, L))
    assert size <= 0.3 * stock_size
    # With its own positions, query and key are one tensor and value another.
    compare(stock, twin, lambda m, x, pos: m(x, query_pos=pos), data(batch_first, L, L))


@pytest.mark.parametrize('ratio', [1, 2])
@pytest.mark.parametrize('cls', [EfficientMultiheadAttention, GlobalSubsampledAttention])
def test_reduced_attention(cls, ratio):
    stock, twin = twins(lambda: cls(C, HEADS, qkv_bias=True, sr_ratio=ratio))
    stock_size, size = compare(stock, twin, lambda m, x: m(x, (4, 3)), [torch.randn(B, 12, C)])
    assert size <= 0.4 * stock_size


@pytest.mark.parametrize('size', [(8, 9), (9, 6), (6, 9), (3, 12), (2, 2)])
@pytest.mark.parametrize('bias', [True, False])
def test_attention_inside_windows(size, bias):
    """In windows of 3; mmseg masks what it pads where both sides need it, and only there."""
    stock, twin = twins(lambda: LocallyGroupedSelfAttention(C, HEADS, qkv_bias=bias, window_size=3))
    tokens = size[0] * size[1]
    stock_size, size = compare(stock, twin, lambda m, x: m(x, size), [torch.randn(B, tokens, C)])
    assert size <= 0.5 * stock_size
    # The input, qkv and what the output projection reads, of real tokens alone, and a bit of masks and statistics.
    assert size <= 5 * B * tokens * C * 1.0625 + 9 * B * 9 + 4 * HEADS * 81


def test_dropout_inside_windows_is_left():
    assert 'attn' in convert(nn.ModuleDict(dict(attn=LocallyGroupedSelfAttention(C, HEADS, attn_drop_rate=0.1)))).left


def test_a_detached_key_gets_no_gradient():
    """The same values in another place of the graph are not the same tensor."""
    stock, twin = twins(lambda: nn.MultiheadAttention(C, HEADS, batch_first=True))
    compare(stock, twin, lambda m, x: m(x, x.detach(), x.detach(), need_weights=False)[0], data(True, L))


def test_under_autocast():
    stock, twin = twins(lambda: nn.MultiheadAttention(C, HEADS, batch_first=True))
    attn, _ = masks()
    x, y = data(True, L, S)
    with torch.autocast('cpu', torch.bfloat16):
        a, b = (m(x, y, y, need_weights=False, attn_mask=attn)[0] for m in (stock, twin))
    assert a.dtype == b.dtype == torch.bfloat16
    torch.testing.assert_close(a, b, rtol=0.05, atol=0.2)
