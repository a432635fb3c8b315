"""Cross-entropy of upsampled logits that keeps no more than the low-resolution gradient for backward."""
import functools

import torch

from mesa_seg.ops.upsample_cross_entropy import upsample_cross_entropy as operator

from ..saved.leftovers import leave_exact
from ._autograd import runs_eagerly

EPS = torch.finfo(torch.float32).eps


class _Refuse(torch.autograd.Function):
    """Identity whose derivative is an error."""

    @staticmethod
    def forward(ctx, gradient):
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx, _):
        raise RuntimeError('upsample_cross_entropy: its gradient cannot be differentiated again (it is made in forward, '
                           "without a graph); use mmseg's CrossEntropyLoss for second derivatives")


def _first_derivative_only(backward):
    """Let backward(create_graph=True) through, and refuse a derivative of what it gave.

    ``once_differentiable`` would not: where the incoming gradient needs none, it returns a constant, and a gradient
    penalty would silently miss this loss.
    """
    @functools.wraps(backward)
    def wrapped(ctx, *grads):
        with torch.no_grad():
            gradient = backward(ctx, *grads)
        if torch.is_grad_enabled():
            gradient = _Refuse.apply(gradient.requires_grad_())
        return (gradient, *[None] * (len(ctx.needs_input_grad) - 1))

    return wrapped


def _shrink(gradient, dtype):
    """What is kept of a float32 gradient for logits of ``dtype``: as many bytes as the logits have.

    float16 gets a power of two that brings the largest value near its top, since the sum's gradient has no bound.
    """
    if dtype != torch.float16:
        return gradient.to(dtype), None
    peak = gradient.abs().amax().clamp(min=torch.finfo(torch.float32).tiny)
    scale = torch.exp2(torch.ceil(torch.log2(peak)) - 15)
    return (gradient / scale).to(dtype), scale


class _Sum(torch.autograd.Function):
    """Sum of the pixels' values; the gradient is made in forward, for a sum's gradient is only scaled afterwards."""

    @staticmethod
    def forward(ctx, logits, labels, weight, class_weight, ignore_index, align_corners):
        wanted = ctx.needs_input_grad[0]
        _, gradient, sums = operator(logits, labels, weight, class_weight, ignore_index, align_corners, gradient=wanted)
        if wanted:
            gradient, scale = _shrink(gradient, logits.dtype)
            leave_exact(gradient)
            ctx.save_for_backward(gradient, scale)
        ctx.mark_non_differentiable(sums)
        return sums[:, 0].sum(), sums

    @staticmethod
    @_first_derivative_only
    def backward(ctx, grad, _):
        gradient, scale = ctx.saved_tensors
        factor = grad.float() if scale is None else grad.float() * scale
        return (gradient.float() * factor).to(gradient.dtype)


class _Pixels(torch.autograd.Function):
    """Each pixel's value; backward runs the operator again with the pixels' gradients as weights."""

    @staticmethod
    def forward(ctx, logits, labels, class_weight, ignore_index, align_corners):
        loss, _, sums = operator(logits, labels, None, class_weight, ignore_index, align_corners, pixel_loss=True)
        if ctx.needs_input_grad[0]:
            classes = logits.shape[1]
            small = torch.uint8 if classes < 256 else torch.int16 if classes < 1 << 15 else torch.int32
            kept = torch.where(labels == ignore_index, classes, labels).to(small)
            ctx.save_for_backward(logits, kept, class_weight)
            ctx.align_corners = align_corners
        ctx.mark_non_differentiable(sums)
        return loss, sums

    @staticmethod
    @_first_derivative_only
    def backward(ctx, grad, _):
        logits, labels, class_weight = ctx.saved_tensors
        _, gradient, _ = operator(logits, labels, grad, class_weight, logits.shape[1], ctx.align_corners, gradient=True)
        return gradient.to(logits.dtype)


def _default_factor(sums, labels, class_weight, ignore_index, avg_non_ignore):
    if class_weight is None:
        return sums[:, 1].sum() if avg_non_ignore else labels.numel()
    factor = sums[:, 3].sum()
    if not avg_non_ignore and -len(class_weight) <= ignore_index < len(class_weight):
        factor = factor + (labels.numel() - sums[:, 1].sum()) * class_weight[ignore_index]
    return factor


@runs_eagerly
def upsample_cross_entropy(logits, labels, *, weight=None, class_weight=None, ignore_index=-100, align_corners=False,
                           reduction='mean', avg_factor=None, avg_non_ignore=False):
    """``interpolate`` to the labels' size, mmseg's ``cross_entropy`` and ``accuracy``, without the full-size logits.

    Exact: the loss and its gradient differ from those of the three stock steps by float32 rounding alone. Kept for
    backward: the gradient with respect to logits, in their size and dtype; with ``reduction='none'`` logits and one or
    two bytes a pixel. The mean is ``sum / (factor + 1.2e-7)`` as in mmseg, where factor is ``avg_factor`` if given,
    else the number of pixels (of pixels not ignored with ``avg_non_ignore``), else, with class weights, the sum of the
    labels' weights. There an ignored pixel counts ``class_weight[ignore_index]`` without ``avg_non_ignore``, as in
    mmseg, and nothing where ``ignore_index`` is no index of class_weight (mmseg raises IndexError).

    Args:
        logits (Tensor): ``[B, C, h, w]``, float32, float16 or bfloat16.
        labels (Tensor): ``[B, H, W]``, int64, int32, int16 or uint8.
        weight (Tensor, optional): factor of each pixel, of a shape that broadcasts to ``[B, H, W]``. Default: None.
        class_weight (Tensor, optional): ``[C]``, factor of each class. Default: None.
        ignore_index (int): label that counts for nothing. Default: -100.
        align_corners (bool): as in ``interpolate``. Default: False.
        reduction (str): 'mean', 'sum' or 'none'. Default: 'mean'.
        avg_factor (float | Tensor, optional): divisor of the mean. Default: None.
        avg_non_ignore (bool): average over the pixels that are not ignored. Default: False.

    Returns:
        tuple[Tensor, Tensor]: the loss, float32 (a scalar, or ``[B, H, W]`` with 'none'), and the per cent of the
        pixels not ignored whose label has the largest logit, float32 ``[1]`` (equal logits: the lowest class wins).

    Raises:
        ValueError: an argument does not fit, or a label is neither a class nor ``ignore_index``; the message says
        which.
        RuntimeError: the gradient is differentiated again; this loss gives first derivatives only.
    """
    if reduction not in ('mean', 'sum', 'none'):
        raise ValueError(f"upsample_cross_entropy: reduction is {reduction!r}; expected 'mean', 'sum' or 'none'")
    if reduction == 'sum' and avg_factor is not None:
        raise ValueError("upsample_cross_entropy: avg_factor can not be used with reduction='sum'")
    if weight is not None:
        weight = weight.float().expand(labels.shape)
    if reduction == 'none' or (weight is not None and weight.requires_grad):
        loss, sums = _Pixels.apply(logits, labels, class_weight, ignore_index, align_corners)
        loss = loss if weight is None else loss * weight
        total = loss.sum(dtype=torch.float64) if reduction != 'none' else None
    else:
        total, sums = _Sum.apply(logits, labels, weight, class_weight, ignore_index, align_corners)
    if reduction == 'mean':
        if avg_factor is None:
            avg_factor = _default_factor(sums, labels, class_weight, ignore_index, avg_non_ignore)
        total = total / (avg_factor + EPS)
    if reduction != 'none':
        loss = total.float()
    accuracy = ((sums[:, 2].sum() + EPS) * 100 / (sums[:, 1].sum() + EPS)).float()
    return loss, accuracy.reshape(1)
