"""Training BatchNorm (and the ReLU behind it) that keeps x̂ quantised and one bit a value for the ReLU.

The step is four operators, so that the statistics can be summed over processes between them (SyncBatchNorm): statistics,
normalise and quantise, sums of the backward pass, gradient of the input.
"""
import torch

from mesa_seg.ops._checks import (
    check_codes,
    check_coding,
    check_given_ranges,
    check_groups,
    check_shape,
    check_vector,
)
from mesa_seg.ops._library import operator
from mesa_seg.ops._shapes import empty_codes, empty_ranges
from mesa_seg.reference import batch_norm as reference


def _channel_pair(x):
    channels = x.shape[1]
    return x.new_empty([channels], dtype=torch.float32), x.new_empty([channels], dtype=torch.float32)


def _quantize_fake(x, mean, rstd, weight, bias, relu, ranges, groups, bits, block_size, seed, stochastic):
    return (x.new_empty(x.shape), empty_codes(x, x.numel() if relu else 0, 1), empty_codes(x, x.numel(), bits),
            empty_ranges(x, x.numel(), groups, block_size))


_stats = operator(
    'batch_norm_stats(Tensor x) -> (Tensor mean, Tensor var)',
    reference=reference.batch_norm_stats, fake=_channel_pair).default
_quantize = operator(
    'batch_norm_quantize(Tensor x, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool relu, Tensor? ranges,'
    ' int groups, int bits, int block_size, int seed, bool stochastic)'
    ' -> (Tensor y, Tensor mask, Tensor codes, Tensor ranges)',
    reference=reference.batch_norm_quantize, fake=_quantize_fake).default
_backward_reduce = operator(
    'batch_norm_backward_reduce(Tensor grad, Tensor mask, Tensor codes, Tensor ranges, int groups, int bits,'
    ' int block_size) -> (Tensor sum_g, Tensor sum_gx)',
    reference=reference.batch_norm_backward_reduce,
    fake=lambda grad, mask, codes, ranges, groups, bits, block_size: _channel_pair(grad)).default
_backward = operator(
    'batch_norm_backward(Tensor grad, Tensor mask, Tensor codes, Tensor ranges, Tensor rstd, Tensor? weight,'
    ' Tensor mean_g, Tensor mean_gx, int groups, int bits, int block_size) -> Tensor',
    reference=reference.batch_norm_backward,
    fake=lambda grad, mask, codes, ranges, rstd, weight, mean_g, mean_gx, groups, bits, block_size:
        grad.new_empty(grad.shape)).default


def batch_norm_stats(x):
    """Mean and biased variance of each channel over the batch and the positions.

    Args:
        x (Tensor): [B, C, S], float32, float16 or bfloat16; contiguous, or channels-last (strides (S*C, 1, C)).

    Returns:
        tuple[Tensor, Tensor]: mean and var, float32 [C]; NaN where B*S is 0.

    Raises:
        TypeError, ValueError: an argument is not as above; the message names it.
    """
    check_shape('x', x, '[B, C, S]')
    return _stats(x)


def batch_norm_quantize(x, mean, rstd, weight, bias, relu, ranges, groups, bits, block_size, seed, stochastic):
    """y = x̂·weight + bias with x̂ = (x - mean)·rstd, then ReLU if asked; from the same pass the codes of x̂.

    Args:
        x (Tensor): [B, C, S], float32, float16 or bfloat16; contiguous, or channels-last (strides (S*C, 1, C)).
        mean, rstd (Tensor): float32 [C].
        weight, bias (Tensor | None): [C], float32 or the dtype of ``x``.
        relu (bool): clamp y at 0 (NaN stays NaN) and keep which values were above it.
        ranges (Tensor | None): float32 [groups, 2], the (lo, hi) to quantise x̂ with, where ``block_size`` is 0; else None.
        groups (int): a divisor of C; x̂ is quantised as [B, groups, C/groups*S].
        bits (int): 8, 4 or 2.
        block_size (int): values that share a range, a multiple of 8 in 16..1024; 0 for one range a group.
        seed (int): seed of the stochastic rounding.
        stochastic (bool): round stochastically; to nearest otherwise.

    Returns:
        tuple[Tensor, Tensor, Tensor, Tensor]: y, contiguous, shape and dtype of ``x``; mask uint8 [ceil(numel/8)] of y > 0
        (empty without ReLU); codes uint8 [ceil(numel*bits/8)], in the contiguous order of [B, C, S] whatever the strides
        of ``x``; x̂'s own (min, max) float32 [groups, 2] (``block_size`` 0) or the ranges of the blocks, bfloat16
        [nblocks, 2].

    Raises:
        TypeError, ValueError: an argument is not as above; the message names it.
    """
    check_shape('x', x, '[B, C, S]')
    channels = x.shape[1]
    check_vector('mean', mean, channels, float32=True)
    check_vector('rstd', rstd, channels, float32=True)
    check_vector('weight', weight, channels)
    check_vector('bias', bias, channels)
    check_groups(groups, channels)
    check_coding(bits, block_size)
    check_given_ranges(ranges, groups, block_size)
    return _quantize(x, mean, rstd, weight, bias, relu, ranges, groups, bits, block_size, seed, stochastic)


def batch_norm_backward_reduce(grad, mask, codes, ranges, groups, bits, block_size):
    """Sums over batch and positions that BatchNorm's backward needs: of g and of g·x̂ (gradients of bias and weight).

    Args:
        grad (Tensor): [B, C, S], float32, float16 or bfloat16. g is ``grad``, set to 0 where ``mask`` has no bit.
        mask (Tensor): uint8 [ceil(numel/8)], or empty where no ReLU was applied.
        codes (Tensor): uint8 [ceil(numel*bits/8)], from :func:`batch_norm_quantize`.
        ranges (Tensor): the ranges that the codes were made with: float32 [groups, 2], or bfloat16 [nblocks, 2].
        groups, bits, block_size: as given to :func:`batch_norm_quantize`.

    Returns:
        tuple[Tensor, Tensor]: sum_g and sum_gx, float32 [C]; they do not depend on the number of threads.

    Raises:
        TypeError, ValueError: an argument is not as above; the message names it.
    """
    _check_backward(grad, mask, codes, ranges, groups, bits, block_size)
    return _backward_reduce(grad, mask, codes, ranges, groups, bits, block_size)


def batch_norm_backward(grad, mask, codes, ranges, rstd, weight, mean_g, mean_gx, groups, bits, block_size):
    """Gradient of BatchNorm's input: (g - mean_g - x̂·mean_gx)·weight·rstd.

    Args:
        grad, mask, codes, ranges, groups, bits, block_size: as for :func:`batch_norm_backward_reduce`.
        rstd (Tensor): float32 [C].
        weight (Tensor | None): [C], float32 or the dtype of ``grad``.
        mean_g, mean_gx (Tensor): float32 [C], the sums over all processes divided by the number of values a channel.

    Returns:
        Tensor: contiguous, shape and dtype of ``grad``.

    Raises:
        TypeError, ValueError: an argument is not as above; the message names it.
    """
    _check_backward(grad, mask, codes, ranges, groups, bits, block_size)
    channels = grad.shape[1]
    check_vector('rstd', rstd, channels, float32=True)
    check_vector('weight', weight, channels)
    check_vector('mean_g', mean_g, channels, float32=True)
    check_vector('mean_gx', mean_gx, channels, float32=True)
    return _backward(grad, mask, codes, ranges, rstd, weight, mean_g, mean_gx, groups, bits, block_size)


def _check_backward(grad, mask, codes, ranges, groups, bits, block_size):
    check_shape('grad', grad, '[B, C, S]')
    check_groups(groups, grad.shape[1])
    check_coding(bits, block_size)
    check_codes(codes, ranges, grad.numel(), groups, bits, block_size)
    expected = ((grad.numel() + 7) // 8,)
    if mask.dtype != torch.uint8:
        raise TypeError(f'mask: expected uint8, got {mask.dtype}')
    if mask.numel() and tuple(mask.shape) != expected:
        raise ValueError(f'mask: expected shape {expected}, or an empty tensor, got {tuple(mask.shape)}')
