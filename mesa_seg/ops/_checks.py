"""The checks that the operators share. Each error names the argument, says what came and what was expected."""
import torch

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_float(name, x):
    if x.dtype not in FLOAT_DTYPES:
        raise TypeError(f'{name}: expected float32, float16 or bfloat16, got {x.dtype}')


def check_view(name, x):
    """``x`` is a float tensor ``[outer, groups, inner]``."""
    check_float(name, x)
    if x.dim() != 3:
        raise ValueError(f'{name}: expected a 3-D view [outer, groups, inner], got shape {tuple(x.shape)}')


def check_coding(bits, block_size):
    if bits not in (8, 4, 2):
        raise ValueError(f'bits: expected 8, 4 or 2, got {bits!r}')
    if block_size != 0 and not (16 <= block_size <= 1024 and block_size % 8 == 0):
        raise ValueError('block_size: expected 0 (ranges given for each group) or a multiple of 8 from 16 to 1024, '
                         f'got {block_size!r}')


def check_given_ranges(ranges, groups, block_size):
    """``ranges`` on the way in: one float32 (lo, hi) a group without blocks, none with blocks."""
    if block_size:
        if ranges is not None:
            raise ValueError(f'ranges: expected None with block_size {block_size} (each block has its own range), got '
                             f'a tensor of shape {tuple(ranges.shape)}')
    elif ranges is None:
        raise ValueError(f'ranges: expected float32 [{groups}, 2] with block_size 0, got None')
    else:
        _check_ranges(ranges, torch.float32, (groups, 2))


def check_codes(codes, ranges, numel, groups, bits, block_size):
    """``codes`` and ``ranges`` as quantising made them for ``numel`` values in ``groups`` groups."""
    expected = ((numel * bits + 7) // 8,)
    if codes.dtype != torch.uint8:
        raise TypeError(f'codes: expected uint8, got {codes.dtype}')
    if tuple(codes.shape) != expected:
        raise ValueError(f'codes: expected shape {expected} for {numel} values of {bits} bits, got '
                         f'{tuple(codes.shape)}')
    if block_size:
        _check_ranges(ranges, torch.bfloat16, ((numel + block_size - 1) // block_size, 2))
    else:
        _check_ranges(ranges, torch.float32, (groups, 2))


def _check_ranges(ranges, dtype, shape):
    if ranges.dtype != dtype:
        raise TypeError(f'ranges: expected {dtype}, got {ranges.dtype}')
    if tuple(ranges.shape) != shape:
        raise ValueError(f'ranges: expected shape {shape}, got {tuple(ranges.shape)}')


def check_size(**sizes):
    for name, size in sizes.items():
        if size < 0:
            raise ValueError(f'{name}: expected a size of at least 0, got {size}')


def check_shape(name, x, layout):
    """``x`` is a float tensor of as many dimensions as ``layout`` names, as in ``'[rows, C]'``."""
    check_float(name, x)
    if x.dim() != layout.count(',') + 1:
        raise ValueError(f'{name}: expected {layout}, got shape {tuple(x.shape)}')


def check_groups(groups, channels):
    if groups < 1 or channels % groups:
        raise ValueError(f'groups: expected a divisor of the {channels} channels, got {groups!r}')


def check_vector(name, p, size, *, float32=False):
    """``p`` is None or a float tensor ``[size]``; with ``float32``, a float32 one."""
    if float32 and p.dtype != torch.float32:
        raise TypeError(f'{name}: expected float32, got {p.dtype}')
    if p is None:
        return
    check_float(name, p)
    if tuple(p.shape) != (size,):
        raise ValueError(f'{name}: expected shape {(size,)}, got {tuple(p.shape)}')


def check_dtype(dtype):
    if dtype not in FLOAT_DTYPES:
        raise TypeError(f'dtype: expected torch.float32, torch.float16 or torch.bfloat16, got {dtype}')
