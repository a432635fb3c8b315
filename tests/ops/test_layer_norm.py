"""LayerNorm that keeps codes: against torch and float64, against the reference, and what a user counts on."""
import math

import pytest
import torch
import torch.nn.functional as F

from mesa_seg import ops
from mesa_seg.reference import layer_norm as reference
from mesa_seg.reference.quantize import unpack

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CODINGS = [(8, 0), (4, 0), (2, 0), (8, 64), (4, 64), (2, 16), (8, 1000), (4, 24)]
ROUNDING = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SHAPES = [  # rows, channels, groups
    (10, 96, 3), (7, 20, 5), (1, 33, 1), (0, 96, 3), (300, 48, 2), (513, 36, 3), (5, 1, 1), (3, 2100, 4), (40, 8, 8)]


def given(groups, block_size):
    """Ranges for each group that some values lie outside of; None with blocks."""
    if block_size:
        return None
    return torch.tensor([-2.5, 2.7]) + torch.arange(groups)[:, None] * 0.1


def make(rows, channels, dtype=torch.float32):
    """x, weight, bias and a gradient."""
    x = (torch.randn(rows, channels) * 3 + 1).to(dtype)
    return x, torch.randn(channels), torch.randn(channels), torch.randn(rows, channels).to(dtype)


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('rows, channels, groups', SHAPES)
def test_forward_is_layer_norm(rows, channels, groups, dtype):
    x, weight, bias, _ = make(rows, channels, dtype)
    for w, b in ((weight, bias), (weight, None), (None, None), (weight.to(dtype), bias.to(dtype))):
        y, rstd, _, _ = ops.layer_norm_quantize(x, w, b, 1e-5, given(groups, 0), groups, 8, 0, 0, True)
        expected = F.layer_norm(x.double(), [channels], *(p if p is None else p.double() for p in (w, b)), 1e-5)
        assert y.dtype == dtype and y.shape == x.shape and y.is_contiguous() and rstd.dtype == torch.float32
        torch.testing.assert_close(y, expected.to(dtype), rtol=ROUNDING[dtype], atol=5e-6)
        var = (x.double() - x.double().mean(1, keepdim=True)).square().mean(1)
        torch.testing.assert_close(rstd, (var + 1e-5).rsqrt().float(), rtol=2e-6, atol=1e-4 if channels == 1 else 0.0)


def test_a_mean_far_from_zero_costs_no_more_than_in_torch():
    x = torch.randn(500, 96) + 1000
    exact = F.layer_norm(x.double(), [96])
    y, _, _, _ = ops.layer_norm_quantize(x, None, None, 1e-5, given(3, 0), 3, 8, 0, 0, True)
    assert (y - exact).norm() < 2 * (F.layer_norm(x, [96]) - exact).norm()


@pytest.mark.parametrize('bits, block_size', CODINGS)
@pytest.mark.parametrize('rows, channels, groups', SHAPES)
def test_backward_is_the_formula_at_the_rebuilt_output(rows, channels, groups, bits, block_size):
    x, weight, bias, grad = make(rows, channels)
    ranges = given(groups, block_size)
    for w in (weight, None):
        _, rstd, codes, found = ops.layer_norm_quantize(x, w, bias, 1e-5, ranges, groups, bits, block_size, 3, True)
        used = found if block_size else ranges
        gx, gw, gb = ops.layer_norm_backward(grad, codes, used, rstd, w, groups, bits, block_size)
        normalised = ops.dequantize(codes, used, rows, groups, channels // groups, bits, block_size, torch.float32)
        normalised, g = normalised.view(rows, channels).double(), grad.double()
        scaled = g if w is None else g * w.double()
        expected = scaled - scaled.mean(1, keepdim=True) - normalised * (scaled * normalised).mean(1, keepdim=True)
        expected = expected * rstd.double()[:, None]
        assert gw.dtype == gb.dtype == torch.float32
        scale = expected.abs().max().item() if rows else 0.0
        torch.testing.assert_close(gx, expected.float(), rtol=1e-5, atol=2e-6 * scale)
        torch.testing.assert_close(gw, (g * normalised).sum(0).float(), rtol=1e-5, atol=2e-5)
        torch.testing.assert_close(gb, g.sum(0).float(), rtol=1e-5, atol=2e-5)


def test_gradients_are_those_of_layer_norm_up_to_quantising():
    x, weight, bias, grad = make(400, 96)
    leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
    expected = torch.autograd.grad(F.layer_norm(leaves[0], [96], *leaves[1:]), leaves, grad.double())
    ranges = ops.group_range(F.layer_norm(x, [96]).view(400, 3, 32))
    _, rstd, codes, _ = ops.layer_norm_quantize(x, weight, bias, 1e-5, ranges, 3, 8, 0, 0, True)
    actual = ops.layer_norm_backward(grad, codes, ranges, rstd, weight, 3, 8, 0)
    for a, e, limit in zip(actual, expected, (0.002, 0.02, 1e-6), strict=True):
        assert (a - e).norm() < limit * e.norm()


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('bits, block_size', CODINGS)
def test_compiled_equals_reference(compiled, bits, block_size, dtype):
    for rows, channels, groups in SHAPES:
        x, weight, bias, grad = make(rows, channels, dtype)
        ranges = given(groups, block_size)
        for stochastic in (True, False):
            arguments = x, weight, bias, 1e-5, ranges, groups, bits, block_size, 11, stochastic
            _, rstd, codes, found = ops.layer_norm_quantize(*arguments)
            _, expected_rstd, expected_codes, expected_found = reference.layer_norm_quantize(*arguments)
            torch.testing.assert_close(rstd, expected_rstd, rtol=2e-6, atol=0.0)
            assert codes.shape == expected_codes.shape and found.dtype == expected_found.dtype
            # mean and 1/sigma may differ in their last bit: a value at the border of two codes takes the other one, and a
            # block's range the neighbouring bfloat16
            torch.testing.assert_close(found, expected_found, rtol=1e-2 if block_size else 1e-5, atol=2e-6)
            n = x.numel()
            apart = unpack(codes, n, bits).int() - unpack(expected_codes, n, bits).int()
            assert (apart != 0).sum() <= 2 + 1e-3 * n * (4 if block_size else 1)
            assert n == 0 or apart.abs().max() <= (2 if block_size else 1)
        used = expected_found if block_size else ranges
        arguments = grad, expected_codes, used, expected_rstd, weight, groups, bits, block_size
        for a, e in zip(ops.layer_norm_backward(*arguments), reference.layer_norm_backward(*arguments), strict=True):
            assert a.dtype == e.dtype and a.shape == e.shape
            scale = e.abs().max().item() if e.numel() else 0.0
            torch.testing.assert_close(a, e, rtol=ROUNDING[a.dtype], atol=1e-5 * scale + 1e-5)


@pytest.mark.parametrize('bits, block_size', [(8, 0), (4, 0), (4, 64), (8, 1000)])
@pytest.mark.parametrize('channels, groups', [(96, 3), (36, 3)])
def test_threads_do_not_matter(compiled, channels, groups, bits, block_size):
    x, weight, bias, grad = make(3000, channels)
    ranges, out = given(groups, block_size), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        y, rstd, codes, found = ops.layer_norm_quantize(x, weight, bias, 1e-5, ranges, groups, bits, block_size, 9, True)
        used = found if block_size else ranges
        grads = ops.layer_norm_backward(grad, codes, used, rstd, weight, groups, bits, block_size)
        out.append((y, rstd, codes, found, *grads))
    assert all(torch.equal(a, b) for other in out[1:] for a, b in zip(out[0], other, strict=True))


def test_not_finite():
    x = torch.randn(6, 64)
    x[1, 5], x[3, 7] = math.nan, math.inf
    for ranges, bits, block_size in ((given(2, 0), 8, 0), (None, 4, 64)):
        y, rstd, codes, found = ops.layer_norm_quantize(x, None, None, 1e-5, ranges, 2, bits, block_size, 0, True)
        assert y[[1, 3]].isnan().any(1).all() and y[[0, 2, 4, 5]].isfinite().all() and found.isfinite().all()
        gx, _, _ = ops.layer_norm_backward(torch.ones(6, 64), codes, found if block_size else ranges, rstd, None, 2, bits,
                                           block_size)
        assert gx[[0, 2, 4, 5]].isfinite().all()


def test_strides_do_not_matter():
    x, weight, bias, grad = make(50, 24)
    ranges = given(3, 0)
    first, second = (ops.layer_norm_quantize(t, weight, bias, 1e-5, ranges, 3, 4, 0, 2, True)
                     for t in (x, x.t().contiguous().t()))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    first, second = (ops.layer_norm_backward(t, first[2], ranges, first[1], weight, 3, 4, 0)
                     for t in (grad, grad.t().contiguous().t()))
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize('block_size', [0, 16])
def test_opcheck(block_size):
    mesa = torch.ops.mesa_seg
    x, weight, bias, grad = make(6, 24)
    ranges = given(3, block_size)
    _, rstd, codes, found = ops.layer_norm_quantize(x, weight, bias, 1e-5, ranges, 3, 4, block_size, 1, True)
    torch.library.opcheck(mesa.layer_norm_quantize.default,
                          (x, weight, bias, 1e-5, ranges, 3, 4, block_size, 1, True))
    torch.library.opcheck(mesa.layer_norm_quantize.default, (x.half(), None, None, 1e-5, None, 1, 8, 16, 1, False))
    torch.library.opcheck(mesa.layer_norm_backward.default,
                          (grad.bfloat16(), codes, found if block_size else ranges, rstd, weight, 3, 4, block_size))


X, W, RANGES = torch.randn(4, 32), torch.randn(32), torch.tensor([[-1.0, 1.0]] * 2)
CODES, RSTD = torch.zeros(128, dtype=torch.uint8), torch.ones(4)


@pytest.mark.parametrize('call, error, words', [
    (lambda: ops.layer_norm_quantize(X.double(), W, W, 1e-5, RANGES, 2, 8, 0, 0, True), TypeError, ['x', 'float64']),
    (lambda: ops.layer_norm_quantize(X[0], W, W, 1e-5, RANGES, 2, 8, 0, 0, True), ValueError, ['x', '[rows, C]', '(32,)']),
    (lambda: ops.layer_norm_quantize(X, W[1:], W, 1e-5, RANGES, 2, 8, 0, 0, True), ValueError, ['weight', '(32,)', '(31,)']),
    (lambda: ops.layer_norm_quantize(X, W, W.int(), 1e-5, RANGES, 2, 8, 0, 0, True), TypeError, ['bias', 'int32']),
    (lambda: ops.layer_norm_quantize(X, W, W, 1e-5, RANGES, 5, 8, 0, 0, True), ValueError, ['groups', '32', '5']),
    (lambda: ops.layer_norm_quantize(X, W, W, 1e-5, None, 2, 8, 0, 0, True), ValueError, ['ranges', '[2, 2]', 'None']),
    (lambda: ops.layer_norm_quantize(X, W, W, 1e-5, RANGES, 2, 1, 0, 0, True), ValueError, ['bits', '1']),
    (lambda: ops.layer_norm_backward(X, CODES, RANGES, RSTD[1:], W, 2, 8, 0), ValueError, ['rstd', '(4,)', '(3,)']),
    (lambda: ops.layer_norm_backward(X, CODES, RANGES, RSTD.half(), W, 2, 8, 0), TypeError, ['rstd', 'float32', 'float16']),
    (lambda: ops.layer_norm_backward(X, CODES[1:], RANGES, RSTD, W, 2, 8, 0), ValueError, ['codes', '128', '127']),
])
def test_bad_arguments_are_named(call, error, words):
    with pytest.raises(error) as raised:
        call()
    assert all(word in str(raised.value) for word in words), str(raised.value)
