"""``F.linear`` that keeps the saved form of its input."""
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from ._autograd import autocast, grad_needed, runs_eagerly


class _Linear(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, weight, bias, saved):
        ctx.rebuild = saved.rebuild if saved else None
        ctx.save_for_backward(weight if ctx.needs_input_grad[0] else None, *(saved.tensors if saved else ()))
        return F.linear(x, weight, bias).detach()  # no view: it may be edited in place

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        weight, *tensors = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[1]:
            x = ctx.rebuild(*tensors).to(grad.dtype)
            grad_weight = rows.t() @ x.reshape(-1, x.shape[-1])
            del x
        if ctx.needs_input_grad[2]:
            grad_bias = rows.sum(0)
        if ctx.needs_input_grad[0]:
            grad_x = (rows @ weight).view(*grad.shape[:-1], weight.shape[1])
        return grad_x, grad_weight, grad_bias, None


@runs_eagerly
def linear(x, weight, bias, quantizer):
    """``torch.nn.functional.linear``; for the weight's gradient it keeps the input's saved form.

    Where the input carries one already (a LayerNorm's or a GELU's output), nothing more is kept.

    Args:
        x (Tensor): ``[..., in_features]``.
        weight (Tensor): ``[out_features, in_features]``.
        bias (Tensor, optional): ``[out_features]``.
        quantizer (Quantizer): makes the form where ``x`` has none.

    Returns:
        Tensor: ``[..., out_features]``, equal to stock's bit for bit.
    """
    if not grad_needed(x, weight, bias):
        return F.linear(x, weight, bias)
    saved = quantizer.keep(x, -1) if weight.requires_grad else None
    return _Linear.apply(*autocast(x, weight, bias), saved)
