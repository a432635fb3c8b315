"""Softmax that keeps its output quantised."""
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from ..saved import attach
from ._autograd import autocast_float32, grad_needed, runs_eagerly


class _Softmax(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, dim, quantizer, channel_dim, box):
        y = F.softmax(x, dim)
        saved = quantizer(y, channel_dim)
        box.append(saved)
        ctx.dim, ctx.rebuild = dim, saved.rebuild
        ctx.save_for_backward(*saved.tensors)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        y = ctx.rebuild(*ctx.saved_tensors).to(grad.dtype)
        return torch.ops.aten._softmax_backward_data(grad, y, ctx.dim, grad.dtype), None, None, None, None


@runs_eagerly
def softmax(x, dim, quantizer, channel_dim=1):
    """``torch.nn.functional.softmax`` that keeps its output quantised.

    Args:
        x (Tensor): any shape; attention scores are ``[B, heads, N, M]``.
        dim (int): the dimension that sums to one.
        quantizer (Quantizer): for the output.
        channel_dim (int): the dimension that is cut into groups (the heads).

    Returns:
        Tensor: as ``x``, equal to stock's bit for bit.
    """
    if not grad_needed(x):
        return F.softmax(x, dim)
    x, = autocast_float32(x)
    box = []
    y = _Softmax.apply(x, dim, quantizer, channel_dim if x.dim() > abs(channel_dim) else 0, box)
    return attach(y, box[0]) if quantizer.reuse else y
