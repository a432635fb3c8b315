"""Offsets that 32 bits do not count: rows that lie 2^31 elements apart. Of such a tensor only the pages in use exist."""
import pytest
import torch

from tests.cuda.normalised import given_ranges

FAR = 2**31 + 32  # elements; rows stay aligned


def far_apart(values, dim=0):
    """``values`` in storage where neighbours along ``dim``, of size 2, are FAR elements apart."""
    assert values.shape[dim] == 2
    try:
        storage = torch.empty(FAR + values.numel(), dtype=values.dtype)
    except RuntimeError as error:
        pytest.skip(f'no room for {2 * FAR / 2**30:.0f} GiB of addresses: {error}')
    strides = list(values.select(dim, 0).contiguous().stride())
    strides.insert(dim, FAR)
    return storage.as_strided(values.shape, strides).copy_(values)


@pytest.mark.parametrize('dim', [0, 1, 2])
def test_quantize(device, dim):
    if device.name != 'emulated':
        pytest.skip('the emulator alone has memory that is not there; gpu_check has whole tensors of that size')
    torch.manual_seed(0)
    shape = [2 if d == dim else n for d, n in enumerate((3, 3, 64))]
    values = torch.randn(shape).bfloat16()
    x = far_apart(values, dim)
    ranges = given_ranges(shape[1])
    assert torch.equal(device.call('group_range', x), device.call('group_range', values))
    for block_size in (0, 64):
        how = (None if block_size else ranges, 4, block_size, 7, True)
        for got, want in zip(device.call('quantize', x, *how), device.call('quantize', values, *how), strict=True):
            assert torch.equal(got, want)


def test_layer_norm(device):
    if device.name != 'emulated':
        pytest.skip('the emulator alone has memory that is not there')
    torch.manual_seed(0)
    values = torch.randn(2, 96).bfloat16()
    x = far_apart(values)
    for block_size in (0, 64):
        how = (None, None, 1e-5, None if block_size else given_ranges(3), 3, 8, block_size, 5, True)
        got, want = (device.call('layer_norm_quantize', t, *how) for t in (x, values))
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
