"""GELU that keeps its input quantised: forward and quantiser in one pass, backward and rebuilt output from the codes."""
from mesa_seg.ops._checks import check_codes, check_coding, check_dtype, check_given_ranges, check_size, check_view
from mesa_seg.ops._library import operator
from mesa_seg.ops._shapes import empty_codes, empty_ranges
from mesa_seg.reference import gelu as reference


def _quantize_fake(x, ranges, bits, block_size, seed, stochastic, tanh):
    return (x.new_empty(x.shape), empty_codes(x, x.numel(), bits),
            empty_ranges(x, x.numel(), x.shape[1], block_size))


def _backward_fake(grad, codes, ranges, bits, block_size, tanh):
    return grad.new_empty(grad.shape)


def _dequantize_fake(codes, ranges, outer, groups, inner, bits, block_size, tanh, dtype):
    return codes.new_empty([outer, groups, inner], dtype=dtype)


_quantize = operator(
    'gelu_quantize(Tensor x, Tensor? ranges, int bits, int block_size, int seed, bool stochastic, bool tanh)'
    ' -> (Tensor y, Tensor codes, Tensor ranges)',
    reference=reference.gelu_quantize, fake=_quantize_fake).default
_backward = operator(
    'gelu_backward(Tensor grad, Tensor codes, Tensor ranges, int bits, int block_size, bool tanh) -> Tensor',
    reference=reference.gelu_backward, fake=_backward_fake).default
_dequantize = operator(
    'gelu_dequantize(Tensor codes, Tensor ranges, int outer, int groups, int inner, int bits, int block_size, bool tanh,'
    ' ScalarType dtype) -> Tensor',
    reference=reference.gelu_dequantize, fake=_dequantize_fake).default


def gelu_quantize(x, ranges, bits, block_size, seed, stochastic, tanh):
    """GELU of ``x`` and, from the same pass, the codes of ``x``.

    Args:
        x (Tensor): [outer, groups, inner], float32, float16 or bfloat16, any strides.
        ranges (Tensor | None): float32 [groups, 2], the (lo, hi) to quantise with, where ``block_size`` is 0; else None.
        bits (int): 8, 4 or 2.
        block_size (int): values that share a range, a multiple of 8 in 16..1024; 0 for one range a group.
        seed (int): seed of the stochastic rounding.
        stochastic (bool): round stochastically; to nearest otherwise.
        tanh (bool): the tanh approximation of GELU; the exact (erf) form otherwise.

    Returns:
        tuple[Tensor, Tensor, Tensor]: y, contiguous, shape and dtype of ``x``; codes uint8 [ceil(numel*bits/8)]; the
        group's own (min, max) float32 [groups, 2] (``block_size`` 0) or the ranges of the blocks, bfloat16 [nblocks, 2].

    Raises:
        TypeError, ValueError: an argument is not as above; the message names it.
    """
    check_view('x', x)
    check_coding(bits, block_size)
    check_given_ranges(ranges, x.shape[1], block_size)
    return _quantize(x, ranges, bits, block_size, seed, stochastic, tanh)


def gelu_backward(grad, codes, ranges, bits, block_size, tanh):
    """Gradient of GELU's input from the gradient of its output and the codes of the input.

    Args:
        grad (Tensor): [outer, groups, inner], float32, float16 or bfloat16, any strides.
        codes (Tensor): uint8 [ceil(numel*bits/8)], from :func:`gelu_quantize`.
        ranges (Tensor): the ranges that the codes were made with: float32 [groups, 2], or bfloat16 [nblocks, 2].
        bits, block_size, tanh: as given to :func:`gelu_quantize`.

    Returns:
        Tensor: ``grad * GELU'(h)``, contiguous, shape and dtype of ``grad``.

    Raises:
        TypeError, ValueError: an argument is not as above; the message names it.
    """
    check_view('grad', grad)
    check_coding(bits, block_size)
    check_codes(codes, ranges, grad.numel(), grad.shape[1], bits, block_size)
    return _backward(grad, codes, ranges, bits, block_size, tanh)


def gelu_dequantize(codes, ranges, outer, groups, inner, bits, block_size, tanh, dtype):
    """GELU(h), rebuilt from the codes of h.

    Args:
        codes (Tensor): uint8 [ceil(outer*groups*inner*bits/8)].
        ranges (Tensor): float32 [groups, 2], or bfloat16 [nblocks, 2] where ``block_size`` is not 0.
        outer, groups, inner (int): the shape that was quantised.
        bits, block_size, tanh: as given to :func:`gelu_quantize`.
        dtype (torch.dtype): float32, float16 or bfloat16.

    Returns:
        Tensor: [outer, groups, inner] of ``dtype``, contiguous.

    Raises:
        TypeError, ValueError: an argument is not as above; the message names it.
    """
    check_coding(bits, block_size)
    check_size(outer=outer, groups=groups, inner=inner)
    check_codes(codes, ranges, outer * groups * inner, groups, bits, block_size)
    check_dtype(dtype)
    return _dequantize(codes, ranges, outer, groups, inner, bits, block_size, tanh, dtype)
