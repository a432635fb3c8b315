"""Pooling that keeps nothing but shapes where it can."""
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from ._autograd import grad_needed, runs_eagerly


class _AdaptiveAvgPool2d(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, output_size):
        ctx.shape = x.shape
        return F.adaptive_avg_pool2d(x, output_size)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        shape_only = grad.new_zeros(1).expand(ctx.shape)
        return torch.ops.aten._adaptive_avg_pool2d_backward(grad, shape_only), None


@runs_eagerly
def adaptive_avg_pool2d(x, output_size):
    """``torch.nn.functional.adaptive_avg_pool2d`` that keeps the input's shape alone, not the input.

    Args:
        x (Tensor): ``[B, C, H, W]``.
        output_size (int | tuple): as torch's.

    Returns:
        Tensor: ``[B, C, *output_size]``, equal to stock's bit for bit.
    """
    if not grad_needed(x):
        return F.adaptive_avg_pool2d(x, output_size)
    return _AdaptiveAvgPool2d.apply(x, output_size)
