"""One-bit masks, 8 values a byte: element ``i`` in logical contiguous order is bit ``i % 8`` of byte ``i // 8``."""
import torch

from mesa_seg.ops._checks import check_float
from mesa_seg.ops._library import operator
from mesa_seg.reference import mask as _reference

_pack_mask = operator(
    'pack_mask(Tensor mask) -> Tensor',
    reference=_reference.pack_mask,
    fake=lambda mask: mask.new_empty([(mask.numel() + 7) // 8], dtype=torch.uint8)).default
_unpack_mask = operator(
    'unpack_mask(Tensor bits, int numel) -> Tensor',
    reference=_reference.unpack_mask, fake=lambda bits, numel: bits.new_empty([numel], dtype=torch.bool)).default
_relu_mask = operator(
    'relu_mask(Tensor x) -> (Tensor y, Tensor bits)',
    reference=_reference.relu_mask,
    fake=lambda x: (x.new_empty(x.shape), x.new_empty([(x.numel() + 7) // 8], dtype=torch.uint8))).default
_mask_multiply = operator(
    'mask_multiply(Tensor grad, Tensor bits, float scale) -> Tensor',
    reference=_reference.mask_multiply, fake=lambda grad, bits, scale: grad.new_empty(grad.shape)).default


def pack_mask(mask):
    """bool, any shape and strides, to uint8 ``[ceil(numel/8)]``; bits of the last byte beyond the mask are 0."""
    if mask.dtype != torch.bool:
        raise TypeError(f'mask: expected bool, got {mask.dtype}')
    return _pack_mask(mask)


def unpack_mask(bits, numel):
    """The inverse of :func:`pack_mask`: uint8 ``[ceil(numel/8)]`` to bool ``[numel]``."""
    _check_bits(bits, numel)
    return _unpack_mask(bits, numel)


def relu_mask(x):
    """ReLU and the mask that its backward needs.

    Args:
        x (Tensor): float32, float16 or bfloat16, any shape and strides.

    Returns:
        tuple[Tensor, Tensor]: ``max(x, 0)`` (NaN stays NaN), contiguous, of x's shape and dtype; and the packed mask of
        ``x > 0``, uint8 ``[ceil(numel/8)]``.
    """
    check_float('x', x)
    return _relu_mask(x)


def mask_multiply(grad, bits, scale):
    """``grad * scale`` where the mask is set, 0 elsewhere, whatever ``grad`` is there: backward of ReLU and dropout.

    Args:
        grad (Tensor): float32, float16 or bfloat16, any shape and strides; its logical contiguous order is the mask's.
        bits (Tensor): uint8 ``[ceil(numel/8)]``.
        scale (float): taken as float32.

    Returns:
        Tensor: contiguous, of grad's shape and dtype; the product is made in float32.
    """
    check_float('grad', grad)
    _check_bits(bits, grad.numel())
    return _mask_multiply(grad, bits, scale)


def _check_bits(bits, numel):
    if bits.dtype != torch.uint8:
        raise TypeError(f'bits: expected uint8, got {bits.dtype}')
    if numel < 0:
        raise ValueError(f'numel: expected at least 0, got {numel}')
    expected = ((numel + 7) // 8,)
    if tuple(bits.shape) != expected:
        raise ValueError(f'bits: expected shape {expected} for a mask of {numel} values, got {tuple(bits.shape)}')
