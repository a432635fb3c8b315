"""The LayerNorm kernels against the CPU operators, forward bit for bit, and float64."""
import pytest
import torch

from tests.cuda.normalised import close, given_ranges

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def check(device, monkeypatch, x, groups, bits, block_size, affine=True, orders=2):
    rows, channels = x.shape
    weight, bias = (torch.randn(channels) + 1, torch.randn(channels)) if affine else (None, None)
    ranges = None if block_size else given_ranges(groups)
    args = (x, weight, bias, 1e-5, ranges, groups, bits, block_size, 5, True)
    y, rstd, codes, found = torch.ops.mesa_seg.layer_norm_quantize(*args)
    used = found if block_size else ranges
    grad = torch.randn(x.shape).to(x.dtype)
    backward = (grad, codes, used, rstd, weight, groups, bits, block_size)
    want = torch.ops.mesa_seg.layer_norm_backward(*backward)
    first = None
    for _ in device.orders(monkeypatch, orders):
        got = device.call('layer_norm_quantize', *args)
        for g, w in zip(got, (y, rstd, codes, found), strict=True):
            assert torch.equal(g, w)
        got = device.call('layer_norm_backward', *backward)
        close(got[0], want[0], 2)
        for g, w in zip(got[1:], want[1:], strict=True):
            close(g, w, 4, atol=1e-5 * max(1, rows) ** 0.5)
        if first is not None:  # the order of threads changes no bit
            assert all(torch.equal(a, b) for a, b in zip(first, got, strict=True))
        first = got


@pytest.mark.parametrize('bits,block_size', [(8, 0), (4, 0), (2, 0), (8, 64), (4, 128), (2, 24)])
@pytest.mark.parametrize('dtype', DTYPES)
def test_rows_in_registers(device, dtype, bits, block_size, monkeypatch):
    for rows, channels, groups in ((19, 96, 3), (5, 384, 12), (70, 32, 1), (7, 12, 3)):
        check(device, monkeypatch, torch.randn(rows, channels).mul(3).add(1).to(dtype), groups, bits, block_size,
              affine=channels != 32, orders=2 if channels == 96 else 1)


@pytest.mark.parametrize('block_size', [0, 40, 1000])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
def test_other_rows(device, dtype, block_size, monkeypatch):
    """Longer than registers hold, odd, one value, strided, none."""
    for x, groups in ((torch.randn(2, 10_256), 1), (torch.randn(1, 4103), 1), (torch.randn(1, 1027), 1),
                      (torch.randn(9, 21), 3), (torch.randn(1, 1), 1), (torch.randn(64, 12).t(), 2),
                      (torch.randn(20, 40)[:, 4:36], 1), (torch.randn(0, 32), 1)):
        check(device, monkeypatch, x.to(dtype), groups, 4, block_size, orders=1)


@pytest.mark.parametrize('block_size', [0, 64, 1024])
@pytest.mark.parametrize('dtype', DTYPES)
def test_long_rows(device, dtype, block_size, monkeypatch):
    """Several teams a row: of one warp, of several; some of them idle."""
    for rows, channels, groups in ((5, 768, 24), (11, 1536, 48), (1, 1544, 1), (2, 4096, 1)):
        check(device, monkeypatch, torch.randn(rows, channels).to(dtype), groups, 4, block_size,
              orders=2 if channels == 1536 and block_size else 1)


@pytest.mark.parametrize('block_size', [0, 64])
def test_not_finite(device, block_size, monkeypatch):
    x = torch.randn(12, 96)
    x[2, 5], x[4, 7], x[9] = torch.inf, torch.nan, 3.0
    args = (x, None, None, 1e-5, None if block_size else given_ranges(3), 3, 8, block_size, 5, True)
    want = torch.ops.mesa_seg.layer_norm_quantize(*args)
    for g, w in zip(device.call('layer_norm_quantize', *args), want, strict=True):
        assert torch.equal(g.nan_to_num(7.0), w.nan_to_num(7.0))
    assert (want[0][9] == 0).all()  # a row of one value: exactly its mean


def test_few_blocks(device, monkeypatch):
    device.limit_grid(monkeypatch, 1)
    check(device, monkeypatch, torch.randn(150, 64), 2, 8, 0, orders=1)
    check(device, monkeypatch, torch.randn(90, 64), 2, 8, 64, orders=1)
    check(device, monkeypatch, torch.randn(40, 21), 3, 8, 0, orders=1)


def test_against_float64(device):
    torch.manual_seed(0)
    x = torch.randn(33, 96) * 4 + 100  # a mean far from 0
    weight, bias = torch.randn(96), torch.randn(96)
    ranges = torch.tensor([[-4.0, 4.0]]).repeat(3, 1)
    y, rstd, codes, _ = device.call('layer_norm_quantize', x, weight, bias, 1e-5, ranges, 3, 8, 0, 3, False)
    exact = torch.nn.functional.layer_norm(x.double(), (96,), weight.double(), bias.double(), 1e-5)
    assert (y - exact).abs().max() < 2e-5
    grad = torch.randn(33, 96)
    gx, gw, gb = device.call('layer_norm_backward', grad, codes, ranges, rstd, weight, 3, 8, 0)
    n = torch.ops.mesa_seg.dequantize(codes, ranges, 33, 3, 32, 8, 0, torch.float32).view(33, 96).double()
    g = grad.double() * weight.double()
    want = (g - g.mean(1, True) - n * (g * n).mean(1, True)) * rstd.double()[:, None]
    assert (gx - want).abs().max() < 1e-5
    assert (gw - (grad.double() * n).sum(0)).abs().max() < 1e-4
    assert (gb - grad.double().sum(0)).abs().max() < 1e-4
