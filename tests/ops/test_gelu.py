"""GELU that keeps codes: against float64, against the reference, and what a user counts on."""
import math

import pytest
import torch
import torch.nn.functional as F

from mesa_seg import ops
from mesa_seg.reference import gelu as reference

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CODINGS = [(8, 0), (4, 0), (2, 0), (8, 64), (4, 64), (2, 16), (8, 1000), (4, 24)]
ROUNDING = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
# Few codes a range and many: looked up in a table, or evaluated for each value.
SHAPES = [(10, 3, 7), (90, 3, 32), (1, 48, 32), (2, 2, 1501), (1, 1, 1), (400, 3, 32), (0, 3, 7), (3, 2, 0)]


def form(tanh):
    return 'tanh' if tanh else 'none'


def given(groups, block_size):
    """Ranges for each group that some values lie outside of; None with blocks."""
    if block_size:
        return None
    return torch.tensor([-3.0, 3.5]) + torch.arange(groups)[:, None] * 0.1


def exact(x, tanh):
    """GELU and its derivative in float64."""
    x = x.double().requires_grad_()
    y = F.gelu(x, approximate=form(tanh))
    return y.detach(), torch.autograd.grad(y.sum(), x)[0]


@pytest.mark.parametrize('tanh', [False, True])
def test_exact_to_float32_rounding(tanh):
    x = torch.cat((torch.linspace(-9, 9, 200_001), torch.linspace(-0.01, 0.01, 2001), torch.randn(1000) * 50))
    y, codes, _ = ops.gelu_quantize(x[None, None], torch.tensor([[-9.0, 9.0]]), 8, 0, 0, False, tanh)
    expected, _ = exact(x, tanh)
    error = (y.reshape(-1).double() - expected).abs()
    # x times a share that is right to some units in the last place of 1; torch's own is no better
    assert (error / x.double().abs().clamp(min=1e-30)).max() < 4e-7
    near = (x > -1) & (x.abs() > 1e-30)
    assert (error[near] / expected[near].abs()).max() < 5e-7
    h = ops.dequantize(codes, torch.tensor([[-9.0, 9.0]]), 1, 1, x.numel(), 8, 0, torch.float32)
    slope = ops.gelu_backward(torch.ones_like(h), codes, torch.tensor([[-9.0, 9.0]]), 8, 0, tanh)
    assert (slope.double() - exact(h, tanh)[1]).abs().max() < 8e-7


@pytest.mark.parametrize('bits, block_size', CODINGS)
@pytest.mark.parametrize('tanh', [False, True])
def test_gradient_is_the_formula_at_the_rebuilt_input(bits, block_size, tanh):
    for shape in SHAPES:
        x, grad = torch.randn(shape) * 2, torch.randn(shape)
        ranges = given(shape[1], block_size)
        _, codes, found = ops.gelu_quantize(x, ranges, bits, block_size, 3, True, tanh)
        used = found if block_size else ranges
        h = ops.dequantize(codes, used, *shape, bits, block_size, torch.float32)
        y, slope = exact(h, tanh)
        gx = ops.gelu_backward(grad, codes, used, bits, block_size, tanh)
        torch.testing.assert_close(gx, (slope * grad).float(), rtol=2e-6, atol=5e-6)
        rebuilt = ops.gelu_dequantize(codes, used, *shape, bits, block_size, tanh, torch.float32)
        torch.testing.assert_close(rebuilt, y.float(), rtol=2e-6, atol=3e-6)


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('bits, block_size', CODINGS)
def test_compiled_equals_reference(compiled, bits, block_size, dtype):
    tolerance = {'rtol': ROUNDING[dtype], 'atol': 4e-6}
    for shape in SHAPES:
        for stochastic, tanh in ((True, False), (False, True)):
            x, grad = (torch.randn(shape) * 2).to(dtype), torch.randn(shape).to(dtype)
            arguments = x, given(shape[1], block_size), bits, block_size, 11, stochastic, tanh
            y, codes, found = ops.gelu_quantize(*arguments)
            expected_y, expected_codes, expected_found = reference.gelu_quantize(*arguments)
            assert y.dtype == dtype and y.shape == x.shape and y.is_contiguous()
            torch.testing.assert_close(y, expected_y, **tolerance)
            assert torch.equal(codes, expected_codes) and torch.equal(found, expected_found)
            used = found if block_size else arguments[1]
            torch.testing.assert_close(ops.gelu_backward(grad, codes, used, bits, block_size, tanh),
                                       reference.gelu_backward(grad, codes, used, bits, block_size, tanh), **tolerance)
            arguments = codes, used, *shape, bits, block_size, tanh, dtype
            torch.testing.assert_close(ops.gelu_dequantize(*arguments), reference.gelu_dequantize(*arguments), **tolerance)


@pytest.mark.parametrize('bits, block_size', CODINGS)
def test_same_codes_as_the_quantizer(bits, block_size):
    x = torch.randn(60, 3, 40)
    ranges = given(3, block_size)
    _, codes, found = ops.gelu_quantize(x, ranges, bits, block_size, 5, True, False)
    expected_codes, expected_found = ops.quantize(x, ranges, bits, block_size, 5, True)
    assert torch.equal(codes, expected_codes) and torch.equal(found, expected_found)


def test_strides_do_not_matter():
    x, grad, ranges = torch.randn(50, 6, 8), torch.randn(50, 6, 8), given(6, 0)
    apart, grad_apart = (torch.randn(8, 50, 6).permute(1, 2, 0).copy_(t) for t in (x, grad))
    first, second = (ops.gelu_quantize(t, ranges, 4, 0, 2, True, False) for t in (x, apart))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    codes = first[1]
    codes_apart = torch.empty(2 * codes.numel(), dtype=torch.uint8)[::2].copy_(codes)
    ranges_apart = ranges.t().contiguous().t()
    first, second = (ops.gelu_backward(*t, 4, 0, False)
                     for t in ((grad, codes, ranges), (grad_apart, codes_apart, ranges_apart)))
    assert torch.equal(first, second)


@pytest.mark.parametrize('bits, block_size', CODINGS)
def test_threads_do_not_matter(compiled, bits, block_size):
    x, grad, ranges = torch.randn(2000, 3, 33), torch.randn(2000, 3, 33), given(3, block_size)
    out = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        y, codes, found = ops.gelu_quantize(x, ranges, bits, block_size, 9, True, False)
        gx = ops.gelu_backward(grad, codes, found if block_size else ranges, bits, block_size, False)
        out.append((y, codes, found, gx))
    assert all(torch.equal(a, b) for other in out[1:] for a, b in zip(out[0], other, strict=True))


@pytest.mark.parametrize('tanh', [False, True])
def test_not_finite(tanh):
    x = torch.tensor([math.inf, -math.inf, math.nan, 1e30, -1e30, 0.0, -0.0, 1e-40, 1e38, -3e38]).repeat(8)[None, None]
    y, codes, found = ops.gelu_quantize(x, torch.tensor([[-1.0, 1.0]]), 8, 0, 0, False, tanh)
    finite = x.isfinite()
    torch.testing.assert_close(y[finite], exact(x[finite], tanh)[0].float())
    assert y[x.isnan()].isnan().all() and not y[x == math.inf].isfinite().any()
    assert found.isfinite().all()
    gx = ops.gelu_backward(torch.ones_like(x), codes, torch.tensor([[-1.0, 1.0]]), 8, 0, tanh)
    assert gx.isfinite().all()


@pytest.mark.parametrize('block_size', [0, 16])
def test_opcheck(block_size):
    mesa = torch.ops.mesa_seg
    x, ranges = torch.randn(6, 3, 8), given(3, block_size)
    _, codes, found = ops.gelu_quantize(x, ranges, 4, block_size, 1, True, True)
    used = found if block_size else ranges
    torch.library.opcheck(mesa.gelu_quantize.default, (x, ranges, 4, block_size, 1, True, True))
    torch.library.opcheck(mesa.gelu_quantize.default, (x.transpose(0, 2).half(), None, 8, 16, 1, False, False))
    torch.library.opcheck(mesa.gelu_backward.default, (x.bfloat16(), codes, used, 4, block_size, False))
    torch.library.opcheck(mesa.gelu_dequantize.default, (codes, used, 6, 3, 8, 4, block_size, False, torch.float16))


X, RANGES, CODES = torch.randn(4, 2, 16), torch.tensor([[-1.0, 1.0]] * 2), torch.zeros(128, dtype=torch.uint8)


@pytest.mark.parametrize('call, error, words', [
    (lambda: ops.gelu_quantize(X.long(), RANGES, 8, 0, 0, True, False), TypeError, ['x', 'float32', 'int64']),
    (lambda: ops.gelu_quantize(X[0], RANGES, 8, 0, 0, True, False), ValueError, ['x', '3-D', '(2, 16)']),
    (lambda: ops.gelu_quantize(X, RANGES, 5, 0, 0, True, False), ValueError, ['bits', '5']),
    (lambda: ops.gelu_quantize(X, RANGES[1:], 8, 0, 0, True, False), ValueError, ['ranges', '(2, 2)', '(1, 2)']),
    (lambda: ops.gelu_quantize(X, RANGES, 8, 64, 0, True, False), ValueError, ['ranges', 'None']),
    (lambda: ops.gelu_backward(X, CODES[1:], RANGES, 8, 0, False), ValueError, ['codes', '128', '127']),
    (lambda: ops.gelu_backward(X[0], CODES, RANGES, 8, 0, False), ValueError, ['grad', '3-D']),
    (lambda: ops.gelu_dequantize(CODES, RANGES, 4, 2, 16, 8, 0, False, torch.int32), TypeError, ['dtype', 'int32']),
    (lambda: ops.gelu_dequantize(CODES, RANGES, 4, 2, -16, 8, 0, False, torch.float32), ValueError, ['inner', '-16']),
])
def test_bad_arguments_are_named(call, error, words):
    with pytest.raises(error) as raised:
        call()
    assert all(word in str(raised.value) for word in words), str(raised.value)
