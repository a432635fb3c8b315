"""ReLU that keeps one bit a value."""
from functools import partial

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from .. import ops
from ..saved import attach, derive, lookup
from ..saved.layout import inverse, memory_order
from ..saved.quantizer import QUANTIZED_DTYPES
from ._autograd import grad_needed, runs_eagerly


def in_order(x, order):
    """``x`` permuted so that ``order`` is its memory order, and the function that undoes it."""
    return x.permute(order), partial(torch.permute, dims=inverse(order))


class _ReLU(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, inplace):
        ctx.order = memory_order(x)
        ordered, restore = in_order(x, ctx.order)
        y, bits = ops.relu_mask(ordered)
        ctx.save_for_backward(bits)
        if inplace:
            x.copy_(restore(y))
            ctx.mark_dirty(x)
            return x
        return restore(y).detach()  # no view: it may be edited in place

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        bits, = ctx.saved_tensors
        ordered, restore = in_order(grad, ctx.order)
        return restore(ops.mask_multiply(ordered, bits, 1.0)), None


@runs_eagerly
def relu(x, inplace=False, reuse=True):
    """``torch.nn.functional.relu`` that keeps one bit a value.

    Args:
        x (Tensor): any shape.
        inplace (bool): change ``x`` itself.
        reuse (bool): hand on the input's saved form, so that what consumes the output rebuilds it.

    Returns:
        Tensor: as ``x``, equal to stock's bit for bit.
    """
    if not grad_needed(x) or x.dtype not in QUANTIZED_DTYPES:
        return F.relu(x, inplace=inplace)
    saved = lookup(x) if reuse else None
    y = _ReLU.apply(x, inplace)
    if saved is not None:
        attach(y, derive(F.relu, (saved, ), y.shape))
    return y
