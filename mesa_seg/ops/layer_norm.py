"""LayerNorm that keeps its normalised output x̂ quantised: forward and quantiser in one pass, backward from the codes.

With x̂ and 1/σ the input is not needed: g = grad·γ; gx = (g - mean(g) - x̂·mean(g·x̂))/σ; gγ = Σ grad·x̂; gβ = Σ grad.
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
from mesa_seg.reference import layer_norm as reference


def _quantize_fake(x, weight, bias, eps, ranges, groups, bits, block_size, seed, stochastic):
    return (x.new_empty(x.shape), x.new_empty([x.shape[0]], dtype=torch.float32), empty_codes(x, x.numel(), bits),
            empty_ranges(x, x.numel(), groups, block_size))


def _backward_fake(grad, codes, ranges, rstd, weight, groups, bits, block_size):
    channels = grad.shape[1]
    return (grad.new_empty(grad.shape), grad.new_empty([channels], dtype=torch.float32),
            grad.new_empty([channels], dtype=torch.float32))


_quantize = operator(
    'layer_norm_quantize(Tensor x, Tensor? weight, Tensor? bias, float eps, Tensor? ranges, int groups, int bits,'
    ' int block_size, int seed, bool stochastic) -> (Tensor y, Tensor rstd, Tensor codes, Tensor ranges)',
    reference=reference.layer_norm_quantize, fake=_quantize_fake).default
_backward = operator(
    'layer_norm_backward(Tensor grad, Tensor codes, Tensor ranges, Tensor rstd, Tensor? weight, int groups, int bits,'
    ' int block_size) -> (Tensor gx, Tensor gw, Tensor gb)',
    reference=reference.layer_norm_backward, fake=_backward_fake).default


def layer_norm_quantize(x, weight, bias, eps, ranges, groups, bits, block_size, seed, stochastic):
    """LayerNorm over the last dimension of ``x`` and, from the same pass, the codes of x̂ = (x - mean)/σ.

    Args:
        x (Tensor): [rows, C], float32, float16 or bfloat16.
        weight, bias (Tensor | None): [C], float32 or the dtype of ``x``.
        eps (float): added to the variance.
        ranges (Tensor | None): float32 [groups, 2], the (lo, hi) to quantise x̂ with, where ``block_size`` is 0; else None.
        groups (int): a divisor of C; x̂ is quantised as [rows, groups, C/groups].
        bits (int): 8, 4 or 2.
        block_size (int): values that share a range, a multiple of 8 in 16..1024; 0 for one range a group.
        seed (int): seed of the stochastic rounding.
        stochastic (bool): round stochastically; to nearest otherwise.

    Returns:
        tuple[Tensor, Tensor, Tensor, Tensor]: y [rows, C], contiguous, dtype of ``x``; rstd = 1/σ float32 [rows]; codes
        uint8 [ceil(numel*bits/8)]; x̂'s own (min, max) float32 [groups, 2] (``block_size`` 0) or the ranges of the
        blocks, bfloat16 [nblocks, 2].

    Raises:
        TypeError, ValueError: an argument is not as above; the message names it.
    """
    check_shape('x', x, '[rows, C]')
    channels = x.shape[1]
    check_vector('weight', weight, channels)
    check_vector('bias', bias, channels)
    check_groups(groups, channels)
    check_coding(bits, block_size)
    check_given_ranges(ranges, groups, block_size)
    return _quantize(x, weight, bias, eps, ranges, groups, bits, block_size, seed, stochastic)


def layer_norm_backward(grad, codes, ranges, rstd, weight, groups, bits, block_size):
    """Gradients of LayerNorm from the codes of x̂. The sums do not depend on the number of threads.

    Args:
        grad (Tensor): [rows, C], float32, float16 or bfloat16.
        codes (Tensor): uint8 [ceil(rows*C*bits/8)], from :func:`layer_norm_quantize`.
        ranges (Tensor): the ranges that the codes were made with: float32 [groups, 2], or bfloat16 [nblocks, 2].
        rstd (Tensor): float32 [rows].
        weight (Tensor | None): [C], float32 or the dtype of ``grad``.
        groups, bits, block_size: as given to :func:`layer_norm_quantize`.

    Returns:
        tuple[Tensor, Tensor, Tensor]: gx, contiguous, shape and dtype of ``grad``; gw and gb, float32 [C], also without
        a weight.

    Raises:
        TypeError, ValueError: an argument is not as above; the message names it.
    """
    check_shape('grad', grad, '[rows, C]')
    rows, channels = grad.shape
    check_vector('rstd', rstd, rows, float32=True)
    check_vector('weight', weight, channels)
    check_groups(groups, channels)
    check_coding(bits, block_size)
    check_codes(codes, ranges, rows * channels, groups, bits, block_size)
    return _backward(grad, codes, ranges, rstd, weight, groups, bits, block_size)
