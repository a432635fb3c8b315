"""GroupNorm and InstanceNorm that keep their normalised output, quantised, and 1/sigma of each group."""

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from .. import ops
from ..saved import attach
from ..saved.layout import Layout
from ..saved.quantizer import QUANTIZED_DTYPES
from ._affine import affine_form
from ._autograd import autocast_float32, grad_needed, runs_eagerly
from .layer_norm import normalise


def _per_channel(parameter, x):
    return parameter.view(-1, *[1] * (x.dim() - 2))


class _GroupNorm(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, weight, bias, num_groups, eps, quantizer, box):
        rows = x.reshape(x.shape[0] * num_groups, -1)
        y, rstd, codes, ranges = normalise(rows, None, None, eps, 1, quantizer)
        box.extend((codes, ranges))
        ctx.save_for_backward(codes, ranges, rstd, weight)
        ctx.coding, ctx.rows = quantizer.coding, rows.shape
        y = y.view(x.shape)
        if weight is not None:
            y = y * _per_channel(weight, x)
        if bias is not None:
            y = y + _per_channel(bias, x)
        return y.detach()  # no view: it may be edited in place

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        codes, ranges, rstd, weight = ctx.saved_tensors
        bits, block_size = ctx.coding
        grad_weight = grad_bias = None
        others = [d for d in range(grad.dim()) if d != 1]
        if ctx.needs_input_grad[2]:
            grad_bias = grad.sum(others)
        if ctx.needs_input_grad[1]:
            normalised = ops.dequantize(codes, ranges, ctx.rows[0], 1, ctx.rows[1], bits, block_size, grad.dtype)
            grad_weight = normalised.view(grad.shape).mul_(grad).sum(others).to(weight.dtype)
            del normalised
        grad_x = None
        if ctx.needs_input_grad[0]:
            if weight is not None:
                grad = grad * _per_channel(weight, grad)
            rows = grad.reshape(ctx.rows)
            grad_x = ops.layer_norm_backward(rows, codes, ranges, rstd, None, 1, bits, block_size)[0].view(grad.shape)
        return grad_x, grad_weight, grad_bias, None, None, None, None


@runs_eagerly
def group_norm(x, num_groups, weight, bias, eps, quantizer):
    """``torch.nn.functional.group_norm``; with one group a channel, ``instance_norm`` of the batch's own statistics.

    Args:
        x (Tensor): ``[B, C, *spatial]``.
        num_groups (int): groups that are normalised together; divides C.
        weight, bias (Tensor, optional): ``[C]``.
        eps (float): added to the variance.
        quantizer (Quantizer): for the normalised output; one range for all of it.

    Returns:
        Tensor: as ``x``, equal to stock's to rounding.
    """
    if not grad_needed(x, weight, bias) or x.dtype not in QUANTIZED_DTYPES or not x.numel():
        return F.group_norm(x, num_groups, weight, bias, eps)
    x, weight, bias = autocast_float32(x, weight, bias)
    box = []
    y = _GroupNorm.apply(x, weight, bias, num_groups, eps, quantizer, box)
    if quantizer.reuse:
        codes, ranges = box
        rows = x.shape[0] * num_groups, 1, x[0].numel() // num_groups
        layout = Layout((0, 1, 2), rows, *rows)
        spatial = x[0, 0].numel()
        attach(y, affine_form(codes, ranges, layout, quantizer, weight, bias, spatial, False, y.dtype, y.shape, y.shape))
    return y
