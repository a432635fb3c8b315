"""A product of two activations that keeps both quantised."""
import torch
from torch.autograd.function import once_differentiable

from ._autograd import autocast, grad_needed, runs_eagerly


def _sum_to(x, shape):
    return x if x.shape == shape else x.sum_to_size(shape)


class _MatMul(torch.autograd.Function):

    @staticmethod
    def forward(ctx, a, b, saved_a, saved_b):
        ctx.rebuild = saved_a.rebuild if saved_a else None, saved_b.rebuild if saved_b else None
        ctx.count = len(saved_a.tensors) if saved_a else 0
        ctx.shapes = a.shape, b.shape
        ctx.save_for_backward(*(saved_a.tensors if saved_a else ()), *(saved_b.tensors if saved_b else ()))
        return torch.matmul(a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        tensors = ctx.saved_tensors
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            b = ctx.rebuild[1](*tensors[ctx.count:]).to(grad.dtype)
            grad_a = _sum_to(grad @ b.transpose(-2, -1), ctx.shapes[0])
            del b
        if ctx.needs_input_grad[1]:
            a = ctx.rebuild[0](*tensors[:ctx.count]).to(grad.dtype)
            grad_b = _sum_to(a.transpose(-2, -1) @ grad, ctx.shapes[1])
        return grad_a, grad_b, None, None


@runs_eagerly
def matmul(a, b, quantizer_a, quantizer_b, channel_dim=1):
    """``torch.matmul`` that keeps the saved form of each operand whose partner needs a gradient.

    Args:
        a (Tensor): ``[..., N, K]``, at least 2-D.
        b (Tensor): ``[..., K, M]``, at least 2-D.
        quantizer_a, quantizer_b (Quantizer): for the operands that have no saved form.
        channel_dim (int): the dimension that is cut into groups (the heads).

    Returns:
        Tensor: ``[..., N, M]``, equal to stock's bit for bit.
    """
    if not grad_needed(a, b):
        return torch.matmul(a, b)
    if a.dim() < 2 or b.dim() < 2:
        raise ValueError(f'matmul: operands of shape {tuple(a.shape)} and {tuple(b.shape)}: expected at least 2 dimensions')

    def dim(x):
        return channel_dim if x.dim() > abs(channel_dim) else 0

    saved_a = quantizer_a.keep(a, dim(a)) if b.requires_grad else None
    saved_b = quantizer_b.keep(b, dim(b)) if a.requires_grad else None
    return _MatMul.apply(*autocast(a, b), saved_a, saved_b)
