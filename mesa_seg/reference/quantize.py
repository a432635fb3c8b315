"""Quantising in plain PyTorch: the oracle of the tests, and the path where no compiled module loads.

Bit for bit what ``csrc/common/quantize.h`` and ``csrc/common/random.h`` compute: float32 throughout, one rounding an
operation. The smaller functions are also the building blocks of the other families' references.
"""
import torch

_MASK32 = 0xffffffff


# --- random bits -------------------------------------------------------------------------------------------------

def _mix32(x):
    x ^= x >> 16
    x = x * 0x21f0aaad & _MASK32
    x ^= x >> 15
    x = x * 0x735a2d97 & _MASK32
    return x ^ x >> 15


def _stream_key(seed, high):
    a = _mix32(seed & _MASK32 ^ _mix32(high + 0x9e3779b9 & _MASK32))
    return a, _mix32(seed >> 32 & _MASK32 ^ a)


def random_u16(seed, start, n, device=None):
    """The 16 random bits of the elements with linear index ``start`` to ``start + n - 1``: int64 [n] in [0, 65536)."""
    index = torch.arange(start, start + n, dtype=torch.int64, device=device)
    if n and start >> 33 != (start + n - 1) >> 33:  # the key changes on the way
        cut = (((start >> 33) + 1) << 33) - start
        return torch.cat((random_u16(seed, start, cut, device), random_u16(seed, start + cut, n - cut, device)))
    a, b = _stream_key(seed, start >> 33)
    x = index >> 1 & _MASK32 ^ a
    x = x ^ x >> 16
    x = (x * 0x21f0aaad & _MASK32) + b & _MASK32
    x = x ^ x >> 15
    x = x * 0x735a2d97 & _MASK32
    out = x ^ x >> 15
    return torch.where((index & 1).bool(), out >> 16, out & 0xffff)


def rounding_offset(seed, start, n, stochastic, device=None):
    """What is added before cutting to an integer: float32 [n], uniform in [0, 1) in steps of 2^-16, or all 0.5."""
    if not stochastic:
        return torch.full((n,), 0.5, device=device)
    return random_u16(seed, start, n, device).to(torch.float32) * (1.0 / 65536.0)


# --- one element -------------------------------------------------------------------------------------------------

def make_step(lo, hi, bits):
    """``(lo, step, 1/step)`` of ranges, float32 of one shape; step and inverse are 0 unless ``hi > lo``."""
    qmax = torch.full_like(lo, 2**bits - 1)  # a tensor: some devices divide by a number as by its inverse
    delta = hi / qmax - lo / qmax
    some = delta > 0
    zero = torch.zeros_like(delta)
    return lo, torch.where(some, delta, zero), torch.where(some, torch.ones_like(delta) / delta, zero)


def encode(x, lo, inverse, offset, bits):
    """float32 values to codes (uint8, one a value): saturates at both ends, NaN becomes 0."""
    qmax = 2**bits - 1
    t = (x - lo) * inverse
    t = torch.where(t > 0, t, 0.0)
    t = torch.where(t < qmax, t, float(qmax))
    return (t + offset).to(torch.int32).to(torch.uint8)


def decode(codes, lo, step):
    """Codes (uint8, one a value) to float32 values."""
    return lo + codes.to(torch.float32) * step


def pack(codes, bits):
    """uint8 [n] of values below ``2**bits`` to uint8 [ceil(n*bits/8)], little end first."""
    if bits == 8:
        return codes
    per = 8 // bits
    codes = torch.nn.functional.pad(codes, (0, -codes.numel() % per)).reshape(-1, per)
    out = codes[:, 0].clone()
    for i in range(1, per):
        out |= codes[:, i] << i * bits
    return out


def unpack(packed, n, bits):
    """The inverse of :func:`pack`: uint8 [n]."""
    if bits == 8:
        return packed
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    return (packed[:, None] >> shifts & 2**bits - 1).reshape(-1)[:n]


# --- ranges ------------------------------------------------------------------------------------------------------

def finite_range(x, dim):
    """(min, max) of the finite values of float32 ``x`` over ``dim``; (inf, -inf) where there is none."""
    finite = x.isfinite()
    lo = torch.where(finite, x, float('inf')).amin(dim)
    hi = torch.where(finite, x, float('-inf')).amax(dim)
    return lo, hi


def _to_bfloat16(x, away_when_negative):
    """Cut to bfloat16, away from zero where the sign is as said and bits are lost, but never to infinity."""
    u = x.contiguous().view(torch.int32)
    high = u >> 16 & 0xffff
    grow = ((u & 0xffff) != 0) & ((u < 0) == away_when_negative) & ((high & 0x7fff) < 0x7f7f)
    high = high + grow.to(torch.int32)
    return (high << 16).view(torch.float32).to(torch.bfloat16)


def block_ranges(x, block_size):
    """Ranges of each run of ``block_size`` values of float32 ``x`` [n]: bfloat16 [ceil(n/block_size), 2].

    Lower ends are rounded down and upper ends up; a block with no finite value has (0, 0).
    """
    if x.numel() == 0:
        return torch.empty((0, 2), dtype=torch.bfloat16, device=x.device)
    x = torch.nn.functional.pad(x, (0, -x.numel() % block_size), value=float('nan')).reshape(-1, block_size)
    lo, hi = finite_range(x, 1)
    none = lo > hi
    lo, hi = torch.where(none, 0.0, lo), torch.where(none, 0.0, hi)
    return torch.stack((_to_bfloat16(lo, True), _to_bfloat16(hi, False)), 1)


def element_steps(ranges, outer, groups, inner, bits, block_size):
    """``(lo, step, 1/step)`` for every element, in linear order: float32 [outer*groups*inner] each."""
    n = outer * groups * inner
    steps = make_step(*ranges.to(torch.float32).unbind(1), bits)
    if block_size:
        return tuple(s.repeat_interleave(block_size)[:n] for s in steps)
    return tuple(s[None, :, None].expand(outer, groups, inner).reshape(-1) for s in steps)


# --- the operators -----------------------------------------------------------------------------------------------

def quantize(x, ranges, bits, block_size, seed, stochastic):
    outer, groups, inner = x.shape
    values = x.to(torch.float32).reshape(-1)
    if block_size:
        found = ranges = block_ranges(values, block_size)
    else:
        found = group_range(x)
    lo, _, inverse = element_steps(ranges, outer, groups, inner, bits, block_size)
    offset = rounding_offset(seed, 0, values.numel(), stochastic, x.device)
    return pack(encode(values, lo, inverse, offset, bits), bits), found


def dequantize_float(codes, ranges, outer, groups, inner, bits, block_size):
    """:func:`dequantize` before the cast: float32 [outer*groups*inner]."""
    lo, step, _ = element_steps(ranges, outer, groups, inner, bits, block_size)
    return decode(unpack(codes, lo.numel(), bits), lo, step)


def dequantize(codes, ranges, outer, groups, inner, bits, block_size, dtype):
    values = dequantize_float(codes, ranges, outer, groups, inner, bits, block_size)
    return values.to(dtype).reshape(outer, groups, inner)


def dequantize_affine(codes, ranges, outer, groups, inner, bits, block_size, scale, shift, spatial, relu, dtype):
    values = dequantize_float(codes, ranges, outer, groups, inner, bits, block_size)
    if values.numel():
        channels = [p.numel() for p in (scale, shift) if p is not None]
        if channels:
            values = values.reshape(-1, channels[0], spatial)
        if scale is not None:
            values = values * scale.to(torch.float32)[None, :, None]
        if shift is not None:
            values = values + shift.to(torch.float32)[None, :, None]
        if relu:
            values = torch.where(values < 0, 0.0, values)
    return values.to(dtype).reshape(outer, groups, inner)


def group_range(x):
    outer, groups, inner = x.shape
    if x.numel() == 0:
        return x.new_tensor([float('inf'), float('-inf')], dtype=torch.float32).repeat(groups, 1)
    return torch.stack(finite_range(x.to(torch.float32), (0, 2)), 1)


def update_ranges(running, observed, decay):
    # In float32, product by product: the compiled kernels do the same.
    keep = torch.full_like(running, decay)
    new = keep * running + (torch.ones_like(keep) - keep) * observed
    some = observed[:, :1] <= observed[:, 1:]
    running.copy_(torch.where(some, new, running))
