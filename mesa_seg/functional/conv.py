"""Convolutions that keep the saved form of their input."""
import torch
from torch.autograd.function import once_differentiable

from ._autograd import autocast, grad_needed, runs_eagerly


def convolution_backward(grad, x, weight, settings, mask):
    """``(grad_x, grad_weight)``, each where ``mask`` asks for it; for ``grad_x`` alone, ``x`` gives its shape only."""
    stride, padding, dilation, transposed, output_padding, groups = settings
    return torch.ops.aten.convolution_backward(grad, x, weight, None, stride, padding, dilation, transposed,
                                               output_padding, groups, (*mask, False))[:2]


class _Conv(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, weight, bias, settings, saved):
        ctx.settings, ctx.shape = settings, x.shape
        ctx.rebuild, ctx.parts = None, None
        if saved is not None:
            ctx.rebuild = saved.rebuild
            if saved.parts is not None and saved.parts[0] == 1 and settings[5] == 1 and not settings[3]:
                ctx.parts = tuple((p.rebuild, len(p.tensors), p.shape[1]) for p in saved.parts[1])
        ctx.save_for_backward(weight, *(saved.tensors if saved else ()))
        return torch.ops.aten.convolution(x, weight, bias, *settings)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        weight, *tensors = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        grad_x = grad_weight = None
        if need_weight and ctx.parts:
            grad_weight, start = torch.empty_like(weight), 0
            for rebuild, count, channels in ctx.parts:  # one part of a concatenation at a time
                x = rebuild(*tensors[:count]).to(grad.dtype)
                piece = slice(start, start + channels)
                grad_weight[:, piece] = convolution_backward(grad, x, weight[:, piece], ctx.settings, (False, True))[1]
                start += channels
                del tensors[:count], x
        elif need_weight:
            x = ctx.rebuild(*tensors).to(grad.dtype)
            grad_weight = convolution_backward(grad, x, weight, ctx.settings, (False, True))[1]
            del x
        if need_x:
            shape_only = grad.new_empty(1).expand(ctx.shape)
            grad_x = convolution_backward(grad, shape_only, weight, ctx.settings, (True, False))[0]
        grad_bias = grad.sum((0, *range(2, grad.dim()))) if need_bias else None
        return grad_x, grad_weight, grad_bias, None, None


@runs_eagerly
def convolution(x, weight, bias, quantizer, *, stride, padding, dilation, groups=1, transposed=False, output_padding=None):
    """``torch.convolution`` (``F.conv2d`` and its 1-D, 3-D and transposed kin) that keeps the saved form of its input.

    Args:
        x (Tensor): ``[B, C, *spatial]``.
        weight (Tensor): ``[out, C / groups, *kernel]``; ``[C, out / groups, *kernel]`` where transposed.
        bias (Tensor, optional): ``[out]``.
        quantizer (Quantizer): makes the form where ``x`` has none.
        stride, padding, dilation, output_padding (tuple[int]): one number a spatial dimension.
        groups (int): of channels, as in torch.
        transposed (bool): a transposed convolution.

    Returns:
        Tensor: ``[B, out, *spatial]``, equal to stock's bit for bit.
    """
    output_padding = output_padding or (0, ) * len(stride)
    settings = (tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(output_padding), groups)
    if not grad_needed(x, weight, bias):
        x, weight, bias = autocast(x, weight, bias)
        return torch.ops.aten.convolution(x, weight, bias, *settings)
    saved = quantizer.keep(x, 1) if weight.requires_grad else None
    return _Conv.apply(*autocast(x, weight, bias), settings, saved)


def resolve_padding(padding, kernel_size, dilation):
    """tuple[int] | None: the padding in numbers; ``None`` where ``'same'`` needs different amounts on the two sides."""
    if padding == 'valid':
        return (0, ) * len(kernel_size)
    if padding == 'same':
        total = [d * (k - 1) for d, k in zip(dilation, kernel_size, strict=False)]
        return None if any(t % 2 for t in total) else tuple(t // 2 for t in total)
    return tuple(padding)


