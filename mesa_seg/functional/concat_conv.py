"""A convolution over resized and concatenated maps that builds neither the resized maps together nor the concatenation."""
import itertools

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from ._autograd import autocast, grad_needed, runs_eagerly
from .conv import convolution_backward


def _resized(x, size, align_corners):
    return x if x.shape[2:] == size else F.interpolate(x, size=size, mode='bilinear', align_corners=align_corners)


class _ConcatConv(torch.autograd.Function):

    @staticmethod
    def forward(ctx, weight, bias, settings, size, align_corners, saved, *xs):
        ctx.settings, ctx.size, ctx.align_corners = settings, size, align_corners
        ctx.shapes = tuple(x.shape for x in xs)
        ctx.rebuild = tuple((s.rebuild, len(s.tensors)) for s in saved)
        ctx.save_for_backward(weight, *(t for s in saved for t in s.tensors))
        out, start = None, 0
        for x in xs:
            piece = weight[:, start:start + x.shape[1]]
            y = torch.ops.aten.convolution(_resized(x, size, align_corners), piece, bias if out is None else None, *settings)
            out = y if out is None else out.add_(y)
            start += x.shape[1]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        weight, *tensors = ctx.saved_tensors
        need_weight, need_bias = ctx.needs_input_grad[:2]
        grad_weight = torch.empty_like(weight) if need_weight else None
        ends = list(itertools.accumulate(shape[1] for shape in ctx.shapes))
        pieces = [slice(end - shape[1], end) for end, shape in zip(ends, ctx.shapes, strict=True)]
        if need_weight:  # for all maps before the first gradient of a map is there to take up memory
            for (rebuild, count), channels in zip(ctx.rebuild, pieces, strict=True):
                x = _resized(rebuild(*tensors[:count]).to(grad.dtype), ctx.size, ctx.align_corners)
                grad_weight[:, channels] = convolution_backward(grad, x, weight[:, channels], ctx.settings, (False, True))[1]
                del x, tensors[:count]
        grads = [None] * len(pieces)
        for i in sorted(range(len(pieces)), key=lambda i: ctx.shapes[i].numel()):  # the largest last: it stays
            if ctx.needs_input_grad[6 + i]:
                shape = ctx.shapes[i]
                shape_only = grad.new_empty(1).expand(*shape[:2], *ctx.size)
                grad_x = convolution_backward(grad, shape_only, weight[:, pieces[i]], ctx.settings, (True, False))[0]
                if shape[2:] != ctx.size:
                    grad_x = torch.ops.aten.upsample_bilinear2d_backward(grad_x, list(ctx.size), list(shape),
                                                                         ctx.align_corners)
                grads[i] = grad_x
                del grad_x
        grad_bias = grad.sum((0, 2, 3)) if need_bias else None
        return (grad_weight, grad_bias, None, None, None, None, *grads)


@runs_eagerly
def concat_convolution(xs, size, weight, bias, quantizers, *, align_corners=False, stride=(1, 1), padding=(0, 0),
                       dilation=(1, 1)):
    """``conv2d(cat([interpolate(x, size) for x in xs], 1), weight, bias)``, one map at a time, forward and backward.

    Args:
        xs (sequence[Tensor]): ``[B, C_i, h_i, w_i]``; a map of another size than ``size`` is resized bilinearly.
        size (tuple[int]): height and width of the convolution's input.
        weight (Tensor): ``[out, sum of C_i, *kernel]``.
        bias (Tensor, optional): ``[out]``.
        quantizers (sequence[Quantizer]): one a map; makes the form where the map has none. Maps are kept at their own size.
        align_corners (bool): as in ``interpolate``.
        stride, padding, dilation (tuple[int]): as in ``conv2d``.

    Returns:
        Tensor: ``[B, out, H, W]``, equal to stock's to rounding.
    """
    settings = (tuple(stride), tuple(padding), tuple(dilation), False, (0, 0), 1)
    size = tuple(size)
    weight, bias, *cast = autocast(weight, bias, *xs)
    if not grad_needed(weight, bias, *xs):
        return F.conv2d(torch.cat([_resized(x, size, align_corners) for x in cast], 1), weight, bias, stride, padding, dilation)
    saved = tuple(q.keep(x, 1) for q, x in zip(quantizers, xs, strict=True)) if weight.requires_grad else ()
    return _ConcatConv.apply(weight, bias, settings, size, align_corners, saved, *cast)
