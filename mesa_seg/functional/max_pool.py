"""Max pooling that keeps one byte an output value: where in its window the maximum was."""
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from ._autograd import grad_needed, runs_eagerly


class _MaxPool2d(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, kernel_size, stride, padding, dilation, ceil_mode):
        y, index = F.max_pool2d_with_indices(x, kernel_size, stride, padding, dilation, ceil_mode)
        width = x.shape[-1]
        top, left = _origin(y.shape, stride, padding, x.device)
        index = index.to(torch.int32) if x.shape[-2] * width < 2**31 else index
        row = torch.div(index, width, rounding_mode='floor')
        row, column = row.sub(top).div_(dilation[0], rounding_mode='floor'), index.sub(row * width).sub_(left)
        column = column.div_(dilation[1], rounding_mode='floor')
        ctx.save_for_backward(row.mul_(kernel_size[1]).add_(column).to(torch.uint8))
        ctx.shape, ctx.settings = x.shape, (kernel_size, stride, padding, dilation, ceil_mode)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        position, = ctx.saved_tensors
        kernel_size, stride, padding, dilation, _ = ctx.settings
        top, left = _origin(position.shape, stride, padding, grad.device)
        position = position.long()
        row = torch.div(position, kernel_size[1], rounding_mode='floor')
        column = position.sub_(row * kernel_size[1]).mul_(dilation[1]).add_(left)
        index = row.mul_(dilation[0]).add_(top).mul_(ctx.shape[-1]).add_(column)
        grad_x = grad.new_zeros(*ctx.shape[:-2], ctx.shape[-2] * ctx.shape[-1])
        grad_x.scatter_add_(-1, index.flatten(-2), grad.flatten(-2))
        return (grad_x.view(ctx.shape), ) + (None, ) * 5


def _origin(shape, stride, padding, device):
    """Row ``[h, 1]`` and column ``[w]`` of the input at which each output's window starts; negative in the padding."""
    top, left = (torch.arange(size, device=device, dtype=torch.int32) * stride[i] - padding[i]
                 for i, size in enumerate(shape[-2:]))
    return top[:, None], left


@runs_eagerly
def max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode=False):
    """``torch.nn.functional.max_pool2d`` that keeps a byte an output value, not the input nor 64-bit indices.

    Args:
        x (Tensor): ``[B, C, H, W]``.
        kernel_size, stride, padding, dilation (tuple[int, int]): as torch's; a window of at most 256 values.
        ceil_mode (bool): as torch's.

    Returns:
        Tensor: ``[B, C, h, w]``, equal to stock's bit for bit, and so is the gradient.

    Raises:
        ValueError: a window of more than 256 values.
    """
    if kernel_size[0] * kernel_size[1] > 256:
        raise ValueError(f'kernel_size={kernel_size}: expected a window of at most 256 values')
    if not grad_needed(x):
        return F.max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode)
    return _MaxPool2d.apply(x, kernel_size, stride, padding, dilation, ceil_mode)
