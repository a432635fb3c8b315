"""The GELU kernels against the CPU operators: codes and ranges bit for bit, values to float32 rounding."""
import pytest
import torch

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def given_ranges(groups):
    return torch.tensor([[-3.0, 4.0], [-1.0, 1.5], [0.0, 0.0]]).repeat((groups + 2) // 3, 1)[:groups].contiguous()


def close(got, want):
    step = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[want.dtype]
    torch.testing.assert_close(got, want, rtol=step, atol=2e-6, equal_nan=True)


def check(device, monkeypatch, x, bits, block_size, tanh, orders=2):
    ranges = None if block_size else given_ranges(x.shape[1])
    args = (x, ranges, bits, block_size, 99, True, tanh)
    y, codes, found = torch.ops.mesa_seg.gelu_quantize(*args)
    used = found if block_size else ranges
    grad = torch.randn(x.shape).to(x.dtype)
    gx = torch.ops.mesa_seg.gelu_backward(grad, codes, used, bits, block_size, tanh)
    again = torch.ops.mesa_seg.gelu_dequantize(codes, used, *x.shape, bits, block_size, tanh, x.dtype)
    for _ in device.orders(monkeypatch, orders):
        got = device.call('gelu_quantize', *args)
        close(got[0], y)
        assert torch.equal(got[1], codes) and torch.equal(got[2], found)
        close(device.call('gelu_backward', grad, codes, used, bits, block_size, tanh), gx)
        close(device.call('gelu_dequantize', codes, used, *x.shape, bits, block_size, tanh, x.dtype), again)


@pytest.mark.parametrize('tanh', [False, True])
@pytest.mark.parametrize('bits,block_size', [(8, 0), (4, 0), (2, 0), (8, 128), (4, 64), (2, 24)])
@pytest.mark.parametrize('dtype', DTYPES)
def test_against_cpu(device, dtype, bits, block_size, tanh, monkeypatch):
    for shape in ((21, 3, 32), (3, 2, 5), (1, 1, 1), (0, 2, 8)):
        x = torch.randn(shape).mul(2).to(dtype)
        if x.numel() > 500:
            x[0, 0, :4] = torch.tensor([float('nan'), 50.0, -100.0, 1e4])
        check(device, monkeypatch, x, bits, block_size, tanh, orders=1 if tanh else 2)


def test_strided_and_few_blocks(device, monkeypatch):
    device.limit_grid(monkeypatch, 1)
    x = torch.randn(32, 40, 3).permute(1, 2, 0)
    for bits, block_size in ((8, 0), (4, 64)):
        check(device, monkeypatch, x, bits, block_size, False, orders=1)
        check(device, monkeypatch, x.contiguous(), bits, block_size, False, orders=1)


def test_against_float64(device):
    x = torch.linspace(-8, 8, 4096).view(16, 8, 32)
    ranges = torch.stack((x.amin((0, 2)), x.amax((0, 2))), 1)
    for tanh in (False, True):
        y, codes, _ = device.call('gelu_quantize', x, ranges, 8, 0, 0, False, tanh)
        exact = torch.nn.functional.gelu(x.double(), approximate='tanh' if tanh else 'none')
        assert (y - exact).abs().max() < 1e-6
        h = torch.ops.mesa_seg.dequantize(codes, ranges, *x.shape, 8, 0, torch.float32).double().requires_grad_()
        torch.nn.functional.gelu(h, approximate='tanh' if tanh else 'none').sum().backward()
        got = device.call('gelu_backward', torch.ones_like(x), codes, ranges, 8, 0, tanh)
        assert (got - h.grad).abs().max() < 2e-6
