"""The BatchNorm kernels against the CPU operators (bit for bit, but for sums) and float64."""
import pytest
import torch

from tests.cuda.normalised import close, given_ranges

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# [B, C, S] and groups: vectors, odd positions, one value, more than a chunk of statistics
SHAPES = [((2, 4, 48), 2), ((3, 6, 25), 3), ((1, 1, 1), 1), ((2, 2, 4400), 1)]


def check(device, monkeypatch, x, groups, bits, block_size, relu=True, affine=True, orders=1):
    batch, channels, positions = x.shape
    mean, var = torch.ops.mesa_seg.batch_norm_stats(x)
    rstd = (var + 1e-5).rsqrt()
    weight, bias = (torch.randn(channels), torch.randn(channels)) if affine else (None, None)
    ranges = None if block_size else given_ranges(groups)
    args = (x, mean, rstd, weight, bias, relu, ranges, groups, bits, block_size, 5, True)
    y, mask, codes, found = torch.ops.mesa_seg.batch_norm_quantize(*args)
    used = found if block_size else ranges
    grad = torch.randn(x.shape).to(x.dtype)
    reduce = (grad, mask, codes, used, groups, bits, block_size)
    sums = torch.ops.mesa_seg.batch_norm_backward_reduce(*reduce)
    means = [s / max(1, batch * positions) for s in sums]
    backward = (grad, mask, codes, used, rstd, weight, *means, groups, bits, block_size)
    gx = torch.ops.mesa_seg.batch_norm_backward(*backward)
    first = None
    for _ in device.orders(monkeypatch, orders):
        got_stats = device.call('batch_norm_stats', x)
        close(got_stats[0], mean, 2)
        close(got_stats[1], var, 2)
        got = device.call('batch_norm_quantize', *args)
        for g, w in zip(got, (y, mask, codes, found), strict=True):
            assert torch.equal(g, w)
        got_sums = device.call('batch_norm_backward_reduce', *reduce)
        for g, w in zip(got_sums, sums, strict=True):
            close(g, w, 4, atol=1e-5 * (batch * positions) ** 0.5)
        assert torch.equal(device.call('batch_norm_backward', *backward), gx)
        if first is not None:  # the order of threads changes no bit
            assert all(torch.equal(a, b) for a, b in zip(first, (*got_stats, *got_sums), strict=True))
        first = (*got_stats, *got_sums)


@pytest.mark.parametrize('bits,block_size', [(8, 0), (4, 64), (2, 24)])
@pytest.mark.parametrize('dtype', DTYPES)
def test_against_cpu(device, dtype, bits, block_size, monkeypatch):
    for shape, groups in SHAPES:
        check(device, monkeypatch, torch.randn(shape).mul(2).add(1).to(dtype), groups, bits, block_size,
              orders=2 if shape[2] == 48 else 1)


def test_options(device, monkeypatch):
    x = torch.randn(3, 4, 48)
    check(device, monkeypatch, x, 2, 4, 0, relu=False)
    check(device, monkeypatch, x, 2, 2, 0, affine=False)
    check(device, monkeypatch, x.transpose(1, 2).contiguous().transpose(1, 2), 4, 8, 0)  # channels-last
    check(device, monkeypatch, torch.randn(3 * 4 * 48 + 1)[1:].view(3, 4, 48), 4, 8, 16)  # not aligned


def test_few_blocks(device, monkeypatch):
    device.limit_grid(monkeypatch, 1)
    check(device, monkeypatch, torch.randn(2, 3, 4800), 1, 8, 0)
    check(device, monkeypatch, torch.randn(5, 3, 301), 3, 4, 32)


def test_empty(device):
    mean, var = device.call('batch_norm_stats', torch.empty(0, 3, 8))
    assert mean.isnan().all() and var.isnan().all()
    x, c = torch.empty(0, 4, 8), torch.ones(4)
    y, mask, codes, found = device.call('batch_norm_quantize', x, c, c, c, c, True, given_ranges(2), 2, 8, 0, 0, True)
    assert y.shape == x.shape and mask.numel() == codes.numel() == 0
    assert torch.equal(found, torch.tensor([[float('inf'), float('-inf')]] * 2))
    sums = device.call('batch_norm_backward_reduce', x, mask, codes, given_ranges(2), 2, 8, 0)
    assert all(torch.equal(s, torch.zeros(4)) for s in sums)


def test_statistics_against_float64(device):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5000) * 0.1 + torch.tensor([1000.0, -3.0, 0.0])[:, None]  # a mean far from 0
    mean, var = device.call('batch_norm_stats', x)
    exact = x.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(mean.double(), exact.mean(1), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(var.double(), exact.var(1, correction=0), rtol=1e-4, atol=1e-9)
