"""Quantising: values to codes of 8, 4 or 2 bits and back.

Every tensor is viewed as ``[outer, groups, inner]`` (3-D, any strides; nothing is copied). Codes are kept in the
logical contiguous order of that view: the *linear index*. Code ``i`` sits in byte ``i*bits//8`` from bit ``i*bits%8``
on; bits of the last byte that no code needs are 0.

Two granularities:

* **head** (``block_size=0``): one float32 ``(lo, hi)`` for each group, given by the caller (running estimates);
* **block**: the exact range of each run of ``block_size`` consecutive linear indices (the last may be shorter), kept as
  bfloat16 with ``lo`` rounded down and ``hi`` up, so that it still covers the block.

A value ``x`` in a range ``[lo, hi]`` becomes ``floor((x - lo) / step + u)`` with ``step = (hi - lo) / (2**bits - 1)``
and comes back as ``lo + code * step``. ``u`` is 0.5 (nearest), or uniform in [0, 1) in steps of 2^-16, a function of
the seed and the linear index alone (stochastic: the mean over seeds is ``x``). Values outside the range saturate at
both ends. **Not finite:** NaN becomes code 0, that is ``lo``; +inf and -inf saturate; none of the three ever counts in
a range. A range with ``hi <= lo`` gives code 0 everywhere.

Inputs are float32, float16 or bfloat16, the arithmetic is float32, and every backend gives the same codes bit for bit.
Mesa (arXiv 2111.11124, section 3) is the source of running ranges a head, ActNN (arXiv 2104.14129) of ranges a block.
"""
import torch

from mesa_seg.ops._checks import (
    check_codes,
    check_coding,
    check_dtype,
    check_float,
    check_given_ranges,
    check_size,
    check_view,
)
from mesa_seg.ops._library import operator
from mesa_seg.reference import quantize as _reference


def _code_bytes(numel, bits):
    return (numel * bits + 7) // 8


def _fake_quantize(x, ranges, bits, block_size, seed, stochastic):
    outer, groups, inner = x.shape
    numel = outer * groups * inner
    codes = x.new_empty([_code_bytes(numel, bits)], dtype=torch.uint8)
    if block_size:
        return codes, x.new_empty([(numel + block_size - 1) // block_size, 2], dtype=torch.bfloat16)
    return codes, x.new_empty([groups, 2], dtype=torch.float32)


def _fake_dequantize(codes, ranges, outer, groups, inner, bits, block_size, dtype):
    return codes.new_empty([outer, groups, inner], dtype=dtype)


def _fake_dequantize_affine(codes, ranges, outer, groups, inner, bits, block_size, scale, shift, spatial, relu, dtype):
    return codes.new_empty([outer, groups, inner], dtype=dtype)


_quantize = operator(
    'quantize(Tensor x, Tensor? ranges, int bits, int block_size, int seed, bool stochastic)'
    ' -> (Tensor codes, Tensor ranges)',
    reference=_reference.quantize, fake=_fake_quantize).default
_dequantize = operator(
    'dequantize(Tensor codes, Tensor ranges, int outer, int groups, int inner, int bits, int block_size,'
    ' ScalarType dtype) -> Tensor',
    reference=_reference.dequantize, fake=_fake_dequantize).default
_dequantize_affine = operator(
    'dequantize_affine(Tensor codes, Tensor ranges, int outer, int groups, int inner, int bits, int block_size,'
    ' Tensor? scale, Tensor? shift, int spatial, bool relu, ScalarType dtype) -> Tensor',
    reference=_reference.dequantize_affine, fake=_fake_dequantize_affine).default
_group_range = operator(
    'group_range(Tensor x) -> Tensor',
    reference=_reference.group_range, fake=lambda x: x.new_empty([x.shape[1], 2], dtype=torch.float32)).default
_update_ranges = operator(
    'update_ranges(Tensor(a!) running, Tensor observed, float decay) -> ()',
    reference=_reference.update_ranges, fake=lambda running, observed, decay: None).default


def quantize(x, ranges, bits, block_size, seed, stochastic):
    """Values to codes, and their range, in one pass.

    Args:
        x (Tensor): ``[outer, groups, inner]``, float32, float16 or bfloat16, any strides.
        ranges (Tensor | None): head: float32 ``[groups, 2]`` of (lo, hi); block: None.
        bits (int): 8, 4 or 2.
        block_size (int): 0 for head, else values a block: a multiple of 8 from 16 to 1024.
        seed (int): any 64-bit integer; it and the linear index determine the random bits.
        stochastic (bool): stochastic rounding; else to nearest, and ``seed`` does not matter.

    Returns:
        tuple[Tensor, Tensor]: codes, uint8 ``[ceil(numel*bits/8)]``, and ranges. Head: this tensor's own (min, max) of
        finite values, float32 ``[groups, 2]``, (inf, -inf) for a group that has none: what :func:`update_ranges` takes.
        Block: the ranges that the codes were made with, bfloat16 ``[ceil(numel/block_size), 2]``, (0, 0) for a block
        without a finite value: what :func:`dequantize` takes.

    Raises:
        TypeError, ValueError: an argument is not as above; the message names it.
    """
    check_view('x', x)
    check_coding(bits, block_size)
    check_given_ranges(ranges, x.shape[1], block_size)
    return _quantize(x, ranges, bits, block_size, seed, stochastic)


def dequantize(codes, ranges, outer, groups, inner, bits, block_size, dtype):
    """Codes to values.

    Args:
        codes (Tensor): uint8 ``[ceil(outer*groups*inner*bits/8)]``, as :func:`quantize` made them.
        ranges (Tensor): head: the float32 ``[groups, 2]`` that the codes were made with; block: :func:`quantize`'s
            second output, bfloat16 ``[ceil(outer*groups*inner/block_size), 2]``.
        outer, groups, inner (int): shape of the view that was quantised.
        bits, block_size (int): as in :func:`quantize`.
        dtype (torch.dtype): float32, float16 or bfloat16.

    Returns:
        Tensor: ``[outer, groups, inner]``, contiguous, of ``dtype``.

    Raises:
        TypeError, ValueError: an argument is not as above; the message names it.
    """
    _check_dequantize(codes, ranges, outer, groups, inner, bits, block_size, dtype)
    return _dequantize(codes, ranges, outer, groups, inner, bits, block_size, dtype)


def dequantize_affine(codes, ranges, outer, groups, inner, bits, block_size, scale, shift, spatial, relu, dtype):
    """Codes to ``value * scale[c] + shift[c]``, then ReLU if asked: what follows a normalisation, in one pass.

    Args:
        codes, ranges, outer, groups, inner, bits, block_size: as in :func:`dequantize`.
        scale, shift (Tensor | None): ``[C]`` each, a float dtype; None is 1 and 0. The channel of linear index ``i`` is
            ``i // spatial % C``.
        spatial (int): neighbouring values that share a channel: 1 for tokens ``[.., C]``, ``H*W`` for ``[B, C, H, W]``.
        relu (bool): 0 instead of negative results (NaN stays).
        dtype (torch.dtype): float32, float16 or bfloat16; the arithmetic is float32.

    Returns:
        Tensor: ``[outer, groups, inner]``, contiguous, of ``dtype``.

    Raises:
        TypeError, ValueError: an argument is not as above; the message names it.
    """
    _check_dequantize(codes, ranges, outer, groups, inner, bits, block_size, dtype)
    if spatial < 1:
        raise ValueError(f'spatial: expected at least 1, got {spatial}')
    channels = None
    for name, p in (('scale', scale), ('shift', shift)):
        if p is None:
            continue
        check_float(name, p)
        if p.dim() != 1 or p.numel() == 0:
            raise ValueError(f'{name}: expected shape [C], got {tuple(p.shape)}')
        if channels is not None and p.numel() != channels:
            raise ValueError(f'{name}: expected {channels} channels as in scale, got {p.numel()}')
        channels = p.numel()
        if outer * groups * inner % (channels * spatial):
            raise ValueError(f'{name}: {channels} channels of {spatial} neighbouring values (spatial) do not divide '
                             f'{outer}*{groups}*{inner} = {outer * groups * inner} values')
    return _dequantize_affine(codes, ranges, outer, groups, inner, bits, block_size, scale, shift, spatial, relu, dtype)


def _check_dequantize(codes, ranges, outer, groups, inner, bits, block_size, dtype):
    check_coding(bits, block_size)
    check_size(outer=outer, groups=groups, inner=inner)
    check_codes(codes, ranges, outer * groups * inner, groups, bits, block_size)
    check_dtype(dtype)


def group_range(x):
    """(min, max) of each group's finite values.

    Args:
        x (Tensor): ``[outer, groups, inner]``, float32, float16 or bfloat16, any strides.

    Returns:
        Tensor: float32 ``[groups, 2]``; (inf, -inf) for a group without a finite value.

    Raises:
        TypeError, ValueError: ``x`` is not as above.
    """
    check_view('x', x)
    return _group_range(x)


def update_ranges(running, observed, decay):
    """``running = decay * running + (1 - decay) * observed``, in place (Mesa, arXiv 2111.11124, section 3.2).

    Args:
        running (Tensor): float32 ``[groups, 2]``, contiguous; written.
        observed (Tensor): float32 ``[groups, 2]`` of one step. A group with lo > hi (nothing finite) is left alone.
        decay (float): in [0, 1]; 0 takes over ``observed``.

    Raises:
        TypeError, ValueError: an argument is not as above; the message names it.
    """
    for name, p in (('running', running), ('observed', observed)):
        if p.dtype != torch.float32:
            raise TypeError(f'{name}: expected float32, got {p.dtype}')
        if p.dim() != 2 or p.shape[1] != 2 or p.shape != running.shape:
            expected = '[groups, 2]' if name == 'running' else f'{tuple(running.shape)} as running'
            raise ValueError(f'{name}: expected shape {expected}, got {tuple(p.shape)}')
    if not running.is_contiguous():
        raise ValueError(f'running: expected a contiguous tensor, got strides {running.stride()}')
    if not 0 <= decay <= 1:
        raise ValueError(f'decay: expected a number in [0, 1], got {decay!r}')
    _update_ranges(running, observed, decay)
    torch.autograd.graph.increment_version(running)  # an operator from outside torch does not count its own writes
