"""What the tests of the normalisations share: statistics differ in the last bits between devices, so codes may differ
where a value lies at the edge of two."""
import torch

ROUNDING = {torch.float32: 3e-6, torch.float16: 1.2e-3, torch.bfloat16: 1e-2}


def given_ranges(groups):
    return torch.tensor([[-2.5, 2.75], [-1.0, 1.5], [-3.0, 3.0]]).repeat((groups + 2) // 3, 1)[:groups].contiguous()


def unpack(codes, n, bits):
    return torch.stack([codes >> s & 2**bits - 1 for s in range(0, 8, bits)], 1).flatten()[:n].to(torch.int32)


def assert_same_codes(got, want, n, bits):
    """Equal but for one in a hundred, which is a neighbour."""
    assert got.shape == want.shape
    difference = (unpack(got, n, bits) - unpack(want, n, bits)).abs()
    assert n == 0 or int(difference.max()) <= 1
    assert int((difference > 0).sum()) <= 1 + n // 100


def close(got, want, factor=1.0, atol=None):
    tolerance = ROUNDING[want.dtype] * factor
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance if atol is None else atol, equal_nan=True)


def close_ranges(got, want):
    tolerance = 1e-5 if want.dtype == torch.float32 else 2e-2  # a step of bfloat16
    torch.testing.assert_close(got.float(), want.float(), rtol=tolerance, atol=tolerance)
