"""Scaling by one learned factor a channel (LayerScale) that keeps its input's saved form."""
import torch
from torch.autograd.function import once_differentiable

from ..saved import attach, derive
from ..saved.quantizer import QUANTIZED_DTYPES
from ._autograd import grad_needed, runs_eagerly


class _Scale(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, weight, saved):
        ctx.rebuild = saved.rebuild if saved else None
        ctx.save_for_backward(weight, *(saved.tensors if saved else ()))
        return x * weight

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        weight, *tensors = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[1]:
            x = ctx.rebuild(*tensors).to(grad.dtype)
            grad_weight = (grad * x).sum_to_size(weight.shape).to(weight.dtype)
        if ctx.needs_input_grad[0]:
            grad_x = (grad * weight).to(grad.dtype)
        return grad_x, grad_weight, None


@runs_eagerly
def scale(x, weight, quantizer, channel_dim=-1):
    """``x * weight``; for the weight's gradient it keeps the input's saved form.

    Args:
        x (Tensor): any shape.
        weight (Tensor): factors, broadcast to the shape of ``x``.
        quantizer (Quantizer): makes the form where ``x`` has none.
        channel_dim (int): the dimension that is cut into groups.

    Returns:
        Tensor: as ``x * weight``, equal to stock's bit for bit.
    """
    if not grad_needed(x, weight) or x.dtype not in QUANTIZED_DTYPES or x.dtype != weight.dtype:
        return x * weight
    saved = quantizer.keep(x, channel_dim) if weight.requires_grad else None
    y = _Scale.apply(x, weight, saved)
    if saved is not None and quantizer.reuse:
        attach(y, derive(torch.mul, (saved, ), y.shape, extra=(weight, )))
    return y
