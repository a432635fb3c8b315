"""Dropout that keeps one bit a value, and channel dropout that hands on saved forms."""
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from .. import ops
from ..saved import attach, derive, lookup
from ..saved.layout import memory_order
from ..saved.quantizer import QUANTIZED_DTYPES
from ._autograd import grad_needed, runs_eagerly
from .relu import in_order


class _Dropout(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, p, inplace):
        # The same draws, in the same order, as torch's own dropout makes on this device.
        if x.is_cuda:
            y, kept = torch.native_dropout(x, p, True)
        else:
            kept = torch.empty_like(x).bernoulli_(1 - p)
            y = x * kept.div(1 - p)
            kept = kept.bool()
        ctx.order, ctx.scale = memory_order(x), 1 / (1 - p)
        bits = ops.pack_mask(in_order(kept, ctx.order)[0])
        ctx.save_for_backward(bits)
        if inplace:
            x.copy_(y)
            ctx.mark_dirty(x)
            return x
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        bits, = ctx.saved_tensors
        ordered, restore = in_order(grad, ctx.order)
        return restore(ops.mask_multiply(ordered, bits, ctx.scale)), None, None


@runs_eagerly
def dropout(x, p, inplace=False):
    """Training-mode ``torch.nn.functional.dropout`` that keeps one bit a value.

    Args:
        x (Tensor): any shape.
        p (float): probability of a zero.
        inplace (bool): change ``x`` itself.

    Returns:
        Tensor: as ``x``, equal to stock's with the same state of torch's generator.
    """
    if not grad_needed(x) or x.dtype not in QUANTIZED_DTYPES or not 0 < p < 1 or not x.numel():
        return F.dropout(x, p, True, inplace)
    return _Dropout.apply(x, p, inplace)


@runs_eagerly
def channel_dropout(x, p, inplace=False):
    """Training-mode ``torch.nn.functional.dropout2d``: whole channels; hands the input's saved form on.

    Args:
        x (Tensor): ``[B, C, *spatial]``.
        p (float): probability of a zero.
        inplace (bool): change ``x`` itself.

    Returns:
        Tensor: as ``x``, equal to stock's with the same state of torch's generator.
    """
    saved = lookup(x)
    if saved is None or not grad_needed(x) or not 0 < p < 1 or not x.numel() or inplace:
        return F.dropout2d(x, p, True, inplace)
    noise = x.new_empty(x.shape[:2] + (1, ) * (x.dim() - 2)).bernoulli_(1 - p).div_(1 - p)
    y = x * noise
    return attach(y, derive(torch.mul, (saved, ), y.shape, extra=(noise, )))
