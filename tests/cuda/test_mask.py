"""The mask kernels against the CPU operators, bit for bit."""
import pytest
import torch

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SIZES = [0, 1, 3, 7, 8, 17, 129, 4096, 5003]


def values(n, dtype):
    x = torch.randn(n, generator=torch.Generator().manual_seed(n)).to(dtype)
    if n > 6:
        x[:6] = torch.tensor([0.0, -0.0, float('nan'), float('inf'), float('-inf'), 1e-30])
    return x


@pytest.mark.parametrize('n', SIZES)
def test_pack_and_unpack(device, n, monkeypatch):
    mask = torch.rand(n + 1) < 0.4
    for start in (0, 1):  # 1: an address that is not aligned
        m = mask[start:start + n]
        bits = torch.ops.mesa_seg.pack_mask(m)
        for _ in device.orders(monkeypatch):
            assert torch.equal(device.call('pack_mask', m), bits)
            assert torch.equal(device.call('unpack_mask', bits, n), m)


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('n', SIZES)
def test_relu_and_multiply(device, n, dtype, monkeypatch):
    for start in (0, 1):
        x = values(n + 1, dtype)[start:start + n]
        y, bits = torch.ops.mesa_seg.relu_mask(x)
        product = torch.ops.mesa_seg.mask_multiply(x, bits, 1.25)
        for _ in device.orders(monkeypatch):
            got, got_bits = device.call('relu_mask', x)
            torch.testing.assert_close(got, y, rtol=0, atol=0, equal_nan=True)
            assert torch.equal(got_bits, bits)
            got = device.call('mask_multiply', x, bits, 1.25)
            torch.testing.assert_close(got, product, rtol=0, atol=0, equal_nan=True)


def test_strided(device):
    x = values(4 * 6 * 5, torch.float32).view(4, 6, 5).transpose(0, 2)
    y, bits = torch.ops.mesa_seg.relu_mask(x)
    got, got_bits = device.call('relu_mask', x)
    torch.testing.assert_close(got, y, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got_bits, bits)
    assert torch.equal(device.call('pack_mask', x > 0), bits)


def test_few_blocks(device, monkeypatch):
    """A tensor larger than the grid: what more than 65,535 blocks would be."""
    device.limit_grid(monkeypatch, 2)
    x = values(20011, torch.float32)
    y, bits = torch.ops.mesa_seg.relu_mask(x)
    got, got_bits = device.call('relu_mask', x)
    torch.testing.assert_close(got, y, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got_bits, bits)
    assert torch.equal(device.call('pack_mask', x > 0), bits)
    assert torch.equal(device.call('unpack_mask', bits, x.numel()), torch.ops.mesa_seg.unpack_mask(bits, x.numel()))
    assert torch.equal(device.call('mask_multiply', y, bits, 2.0), torch.ops.mesa_seg.mask_multiply(y, bits, 2.0))
