"""GELU that keeps its input quantised; what consumes its output rebuilds GELU of that."""
from functools import partial

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from .. import ops
from ..saved import SavedActivation, attach, lookup
from ..saved.quantizer import QUANTIZED_DTYPES
from ._autograd import grad_needed, runs_eagerly
from .activation import activation


def _rebuild(codes, ranges, *, layout, bits, block_size, tanh, dtype):
    return layout.restore(
        ops.gelu_dequantize(codes, ranges, layout.outer, layout.groups, layout.inner, bits, block_size, tanh, dtype))


class _GELU(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, channel_dim, tanh, quantizer, box):
        x3, layout = quantizer.grouped(x, channel_dim)
        y, codes, ranges = quantizer.encode(layout.groups, partial(ops.group_range, x3),
                                            partial(ops.gelu_quantize, x3, tanh=tanh))
        box.extend((codes, ranges, layout))
        ctx.save_for_backward(codes, ranges)
        ctx.layout, ctx.arguments = layout, (*quantizer.coding, tanh)
        return layout.restore(y).detach()  # no view: it may be edited in place

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        codes, ranges = ctx.saved_tensors
        layout = ctx.layout
        grad = grad.permute(layout.order).reshape(layout.outer, layout.groups, layout.inner)
        return layout.restore(ops.gelu_backward(grad, codes, ranges, *ctx.arguments)), None, None, None, None


@runs_eagerly
def gelu(x, approximate, quantizer, channel_dim=-1):
    """``torch.nn.functional.gelu`` that keeps its input's saved form.

    Args:
        x (Tensor): any shape.
        approximate (str): ``'none'`` or ``'tanh'``.
        quantizer (Quantizer): for the input.
        channel_dim (int): the dimension that is cut into groups.

    Returns:
        Tensor: as ``x``, equal to stock's to rounding.
    """
    if not grad_needed(x) or x.dtype not in QUANTIZED_DTYPES:
        return F.gelu(x, approximate=approximate)
    if quantizer.reuse and lookup(x) is not None:
        return activation(x, 'gelu', (approximate, ), quantizer, channel_dim)
    box = []
    tanh = approximate == 'tanh'
    y = _GELU.apply(x, channel_dim, tanh, quantizer, box)
    if quantizer.reuse:
        codes, ranges, layout = box
        rebuild = partial(_rebuild, layout=layout, bits=quantizer.config.bits, block_size=quantizer.block_size, tanh=tanh,
                          dtype=y.dtype)
        attach(y, SavedActivation((codes, ranges), rebuild, y.shape, 'derived'))
    return y
