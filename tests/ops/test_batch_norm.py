"""BatchNorm (+ ReLU) that keeps codes: against float64 autograd, against the reference, and what a user counts on."""
import math

import pytest
import torch
import torch.nn.functional as F

from mesa_seg import ops
from mesa_seg.reference import batch_norm as reference

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CODINGS = [(8, 0), (4, 0), (2, 0), (8, 64), (4, 64), (2, 16), (8, 1000), (4, 24)]
ROUNDING = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SHAPES = [  # batch, channels, positions, groups
    (2, 6, 5, 3), (3, 4, 1, 2), (1, 8, 33, 1), (0, 8, 4, 2), (2, 4, 0, 2), (2, 64, 64, 2), (2, 6, 1030, 3), (1, 2, 9000, 1)]


def given(groups, block_size):
    """Ranges for each group that some values lie outside of; None with blocks."""
    if block_size:
        return None
    return torch.tensor([-2.5, 2.7]) + torch.arange(groups)[:, None] * 0.1


def make(batch, channels, positions, dtype=torch.float32):
    """x, mean, rstd, weight, bias and a gradient; the statistics are x's own where it has values."""
    x = (torch.randn(batch, channels, positions) * 2 + 1).to(dtype)
    if x.numel():
        var, mean = torch.var_mean(x.float(), (0, 2), correction=0)
    else:
        mean, var = torch.zeros(channels), torch.ones(channels)
    return x, mean, (var + 1e-5).rsqrt(), torch.randn(channels), torch.randn(channels), torch.randn(x.shape).to(dtype)


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('batch, channels, positions, groups', SHAPES)
def test_stats(batch, channels, positions, groups, dtype):
    x = (torch.randn(batch, channels, positions) * 2 + 30).to(dtype)
    mean, var = ops.batch_norm_stats(x)
    assert mean.dtype == var.dtype == torch.float32 and mean.shape == var.shape == (channels,)
    if x.numel() == 0:
        assert mean.isnan().all() and var.isnan().all()
        return
    expected_var, expected_mean = torch.var_mean(x.double(), (0, 2), correction=0)
    torch.testing.assert_close(mean, expected_mean.float(), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(var, expected_var.float(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize('relu', [False, True])
@pytest.mark.parametrize('memory_format', ['contiguous', 'channels last'])
def test_the_four_steps_are_batch_norm(relu, memory_format):
    batch, channels, positions = 2, 12, 300
    x, _, _, weight, bias, grad = make(batch, channels, positions)
    if memory_format == 'channels last':
        x, grad = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (x, grad))
    leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
    expected = F.batch_norm(leaves[0], None, None, *leaves[1:], training=True)
    expected = expected.relu() if relu else expected
    expected_grads = torch.autograd.grad(expected, leaves, grad.double())

    mean, var = ops.batch_norm_stats(x)
    rstd, ranges = (var + 1e-5).rsqrt(), torch.tensor([[-4.0, 4.0]] * 3)
    y, mask, codes, _ = ops.batch_norm_quantize(x, mean, rstd, weight, bias, relu, ranges, 3, 8, 0, 1, True)
    torch.testing.assert_close(y, expected.float(), rtol=1e-5, atol=1e-5)
    count = batch * positions
    sum_g, sum_gx = ops.batch_norm_backward_reduce(grad, mask, codes, ranges, 3, 8, 0)
    gx = ops.batch_norm_backward(grad, mask, codes, ranges, rstd, weight, sum_g / count, sum_gx / count, 3, 8, 0)
    assert (gx - expected_grads[0]).norm() < 0.003 * expected_grads[0].norm()
    assert (sum_gx - expected_grads[1]).norm() < 0.06 * expected_grads[1].norm()
    torch.testing.assert_close(sum_g, expected_grads[2].float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize('bits, block_size', CODINGS)
@pytest.mark.parametrize('batch, channels, positions, groups', SHAPES)
def test_backward_is_the_formula_at_the_rebuilt_output(batch, channels, positions, groups, bits, block_size):
    x, mean, rstd, weight, bias, grad = make(batch, channels, positions)
    ranges, shape = given(groups, block_size), (batch, groups, channels // groups * positions)
    for relu, w in ((False, None), (True, weight)):
        y, mask, codes, found = ops.batch_norm_quantize(x, mean, rstd, w, bias, relu, ranges, groups, bits, block_size, 3,
                                                        True)
        assert mask.numel() == ((x.numel() + 7) // 8 if relu else 0)
        used = found if block_size else ranges
        normalised = ops.dequantize(codes, used, *shape, bits, block_size, torch.float32).view_as(x).double()
        g = torch.where(y > 0, grad, 0.0).double() if relu else grad.double()
        sum_g, sum_gx = ops.batch_norm_backward_reduce(grad, mask, codes, used, groups, bits, block_size)
        torch.testing.assert_close(sum_g, g.sum((0, 2)).float(), rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(sum_gx, (g * normalised).sum((0, 2)).float(), rtol=1e-5, atol=1e-4)
        mean_g, mean_gx = torch.randn(channels), torch.randn(channels)
        gx = ops.batch_norm_backward(grad, mask, codes, used, rstd, w, mean_g, mean_gx, groups, bits, block_size)
        expected = g - mean_g.double()[:, None] - normalised * mean_gx.double()[:, None]
        expected = expected * (rstd if w is None else rstd * w).double()[:, None]
        torch.testing.assert_close(gx, expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('bits, block_size', CODINGS)
def test_compiled_equals_reference(compiled, bits, block_size, dtype):
    for batch, channels, positions, groups in SHAPES:
        x, mean, rstd, weight, bias, grad = make(batch, channels, positions, dtype)
        ranges = given(groups, block_size)
        for relu, stochastic in ((True, True), (False, False)):
            arguments = x, mean, rstd, weight.to(dtype), bias, relu, ranges, groups, bits, block_size, 11, stochastic
            out, expected = ops.batch_norm_quantize(*arguments), reference.batch_norm_quantize(*arguments)
            assert out[0].dtype == dtype and out[0].is_contiguous()
            assert all(torch.equal(a, e) for a, e in zip(out, expected, strict=True))
            _, mask, codes, found = out
            arguments = grad, mask, codes, found if block_size else ranges
            coding = groups, bits, block_size
            sums = ops.batch_norm_backward_reduce(*arguments, *coding)
            for a, e in zip(sums, reference.batch_norm_backward_reduce(*arguments, *coding), strict=True):
                torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-3)
            arguments = *arguments, rstd, weight.to(dtype), mean, rstd, *coding
            torch.testing.assert_close(ops.batch_norm_backward(*arguments), reference.batch_norm_backward(*arguments),
                                       rtol=ROUNDING[dtype], atol=1e-5)


def test_mask_is_of_the_rounded_output():
    # 2^-30 is 0 in float16: torch's ReLU would see 0 there and let no gradient through
    x, one = torch.tensor([[[2.0**-30, 1.0, -1.0, math.nan]]]).half(), torch.ones(1)
    x[0, 0, 0] = 2.0**-20
    weight = one * 2.0**-10
    y, mask, _, _ = ops.batch_norm_quantize(x, torch.zeros(1), one, weight, None, True, None, 1, 8, 16, 0, False)
    assert y[0, 0, :3].tolist() == [0.0, 2.0**-10, 0.0] and y[0, 0, 3].isnan() and mask.tolist() == [0b0010]


@pytest.mark.parametrize('bits, block_size', [(8, 0), (4, 0), (4, 64), (8, 1000)])
@pytest.mark.parametrize('positions', [1, 100, 4099])
def test_threads_do_not_matter(compiled, positions, bits, block_size):
    channels = 6 * max(1, 40000 // positions)
    x, _, _, weight, bias, grad = make(2, channels, positions)
    ranges, out = given(3, block_size), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        mean, var = ops.batch_norm_stats(x)
        rstd = (var + 1e-5).rsqrt()
        y, mask, codes, found = ops.batch_norm_quantize(x, mean, rstd, weight, bias, True, ranges, 3, bits, block_size, 9,
                                                        True)
        arguments = grad, mask, codes, found if block_size else ranges
        sums = ops.batch_norm_backward_reduce(*arguments, 3, bits, block_size)
        gx = ops.batch_norm_backward(*arguments, rstd, weight, *sums, 3, bits, block_size)
        out.append((mean, var, y, mask, codes, found, *sums, gx))
    assert all(torch.equal(a, b) for other in out[1:] for a, b in zip(out[0], other, strict=True))


def test_not_finite():
    x, mean, rstd, weight, bias, grad = make(2, 4, 50)
    x[0, 1, 3], x[1, 2, 4] = math.nan, math.inf
    for ranges, bits, block_size in ((given(2, 0), 8, 0), (None, 4, 64)):
        y, mask, codes, found = ops.batch_norm_quantize(x, mean, rstd, weight, bias, True, ranges, 2, bits, block_size, 0,
                                                        True)
        assert y.isnan().sum() == 1 and y[0, 1, 3].isnan() and found.isfinite().all()
        used = found if block_size else ranges
        sums = ops.batch_norm_backward_reduce(grad, mask, codes, used, 2, bits, block_size)
        assert all(s.isfinite().all() for s in sums)
    assert ops.batch_norm_stats(x)[0].isfinite().tolist() == [True, False, False, True]


@pytest.mark.parametrize('relu', [False, True])
@pytest.mark.parametrize('block_size', [0, 16])
def test_opcheck(block_size, relu):
    mesa = torch.ops.mesa_seg
    x, mean, rstd, weight, bias, grad = make(2, 6, 7)
    ranges = given(3, block_size)
    torch.library.opcheck(mesa.batch_norm_stats.default, (x.half(),))
    arguments = x, mean, rstd, weight, bias, relu, ranges, 3, 4, block_size, 1, True
    torch.library.opcheck(mesa.batch_norm_quantize.default, arguments)
    _, mask, codes, found = ops.batch_norm_quantize(*arguments)
    arguments = grad.bfloat16(), mask, codes, found if block_size else ranges
    torch.library.opcheck(mesa.batch_norm_backward_reduce.default, (*arguments, 3, 4, block_size))
    torch.library.opcheck(mesa.batch_norm_backward.default, (*arguments, rstd, None, mean, rstd, 3, 4, block_size))


X, C4, RANGES = torch.randn(2, 4, 16), torch.ones(4), torch.tensor([[-1.0, 1.0]] * 2)
CODES, MASK = torch.zeros(128, dtype=torch.uint8), torch.zeros(16, dtype=torch.uint8)


@pytest.mark.parametrize('call, error, words', [
    (lambda: ops.batch_norm_stats(X[0]), ValueError, ['x', '[B, C, S]', '(4, 16)']),
    (lambda: ops.batch_norm_stats(X.double()), TypeError, ['x', 'float64']),
    (lambda: ops.batch_norm_quantize(X, C4[1:], C4, C4, C4, True, RANGES, 2, 8, 0, 0, True), ValueError, ['mean', '(4,)']),
    (lambda: ops.batch_norm_quantize(X, C4, C4.half(), C4, C4, True, RANGES, 2, 8, 0, 0, True), TypeError, ['rstd', 'float16']),
    (lambda: ops.batch_norm_quantize(X, C4, C4, C4[1:], C4, True, RANGES, 2, 8, 0, 0, True), ValueError, ['weight', '(3,)']),
    (lambda: ops.batch_norm_quantize(X, C4, C4, C4, C4, True, RANGES, 3, 8, 0, 0, True), ValueError, ['groups', '4', '3']),
    (lambda: ops.batch_norm_quantize(X, C4, C4, C4, C4, True, None, 2, 8, 0, 0, True), ValueError, ['ranges', 'None']),
    (lambda: ops.batch_norm_backward_reduce(X, MASK[1:], CODES, RANGES, 2, 8, 0), ValueError, ['mask', '(16,)', '(15,)']),
    (lambda: ops.batch_norm_backward_reduce(X, MASK.bool(), CODES, RANGES, 2, 8, 0), TypeError, ['mask', 'uint8', 'bool']),
    (lambda: ops.batch_norm_backward_reduce(X, MASK, CODES[1:], RANGES, 2, 8, 0), ValueError, ['codes', '128', '127']),
    (lambda: ops.batch_norm_backward(X, MASK, CODES, RANGES, C4, C4, C4[1:], C4, 2, 8, 0), ValueError, ['mean_g', '(3,)']),
])
def test_bad_arguments_are_named(call, error, words):
    with pytest.raises(error) as raised:
        call()
    assert all(word in str(raised.value) for word in words), str(raised.value)
