"""LayerNorm over the last dimension that keeps its normalised output, quantised, and 1/sigma."""
from functools import partial

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from .. import ops
from ..saved import attach
from ..saved.quantizer import QUANTIZED_DTYPES
from ._affine import affine_form
from ._autograd import autocast_float32, grad_needed, runs_eagerly


def _normalised_range(x, groups, eps):
    normalised = F.layer_norm(x, x.shape[-1:], None, None, eps)
    return ops.group_range(normalised.view(x.shape[0], groups, x.shape[1] // groups))


def normalise(rows, weight, bias, eps, groups, quantizer):
    """``(y, rstd, codes, ranges)`` of LayerNorm over the last dimension of ``rows``, ``[n, C]``."""

    def operator(ranges, *how):
        return ops.layer_norm_quantize(rows, weight, bias, eps, ranges, groups, *how)

    return quantizer.encode(groups, partial(_normalised_range, rows, groups, eps), operator)


class _LayerNorm(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, weight, bias, eps, quantizer, box):
        rows = x.reshape(-1, x.shape[-1])
        _, layout = quantizer.grouped(rows, -1)
        y, rstd, codes, ranges = normalise(rows, weight, bias, eps, layout.groups, quantizer)
        box.extend((codes, ranges, layout))
        ctx.save_for_backward(codes, ranges, rstd, weight)
        ctx.layout = layout.groups, *quantizer.coding
        return y.view(x.shape).detach()  # no view: it may be edited in place

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        codes, ranges, rstd, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        grad_x, grad_weight, grad_bias = ops.layer_norm_backward(rows, codes, ranges, rstd, weight, *ctx.layout)
        if weight is not None:
            grad_weight, grad_bias = grad_weight.to(weight.dtype), grad_bias.to(weight.dtype)
        return (grad_x.view(grad.shape), grad_weight if ctx.needs_input_grad[1] else None,
                grad_bias if ctx.needs_input_grad[2] else None, None, None, None)


@runs_eagerly
def layer_norm(x, weight, bias, eps, quantizer):
    """``torch.nn.functional.layer_norm`` over the last dimension.

    Its own backward needs no more than the normalised output and 1/sigma; a Linear behind it rebuilds its input from the
    same codes.

    Args:
        x (Tensor): ``[..., C]``.
        weight, bias (Tensor, optional): ``[C]``.
        eps (float): added to the variance.
        quantizer (Quantizer): for the normalised output.

    Returns:
        Tensor: ``[..., C]``, equal to stock's to rounding.
    """
    if not grad_needed(x, weight, bias) or x.dtype not in QUANTIZED_DTYPES:
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
    x, weight, bias = autocast_float32(x, weight, bias)
    box = []
    y = _LayerNorm.apply(x, weight, bias, eps, quantizer, box)
    if quantizer.reuse:
        codes, ranges, layout = box
        attach(y, affine_form(codes, ranges, layout, quantizer, weight, bias, 1, False, y.dtype, y.shape, y.shape))
    return y
