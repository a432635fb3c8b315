"""BatchNorm (training) that keeps its normalised output, quantised; with ReLU behind it, one bit a value more."""
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from .. import ops
from ..saved import attach, exact
from ..saved.quantizer import QUANTIZED_DTYPES
from ._affine import affine_form
from ._autograd import grad_needed, runs_eagerly
from .relu import relu as relu_of

# Over few values a channel the gradient that BatchNorm hands on is a small difference of large terms (zero, for two
# values), and rounding the normalised values would swamp it. There is next to nothing to save: the input is kept exact.
EXACT_BELOW = 256


def _normalised_range(x, mean, rstd, groups):
    normalised = (x - mean[:, None]) * rstd[:, None]
    return ops.group_range(normalised.reshape(x.shape[0], groups, -1))


def _joined_stats(mean, var, count, process_group):
    """Mean, biased variance and count (a tensor: nothing waits for the device) over the batches of all processes."""
    own = torch.cat([mean, var, mean.new_tensor([count])])
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size(process_group))]
    dist.all_gather(gathered, own, group=process_group)
    all_stats = torch.stack(gathered).double()
    channels = mean.numel()
    means, variances, counts = all_stats[:, :channels], all_stats[:, channels:-1], all_stats[:, -1:]
    total = counts.sum()
    joined = (means * counts).sum(0) / total
    variance = ((variances + (means - joined)**2) * counts).sum(0) / total
    return joined.to(mean.dtype), variance.to(var.dtype), total.to(mean.dtype)


class _BatchNorm(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, weight, bias, mean, var, eps, relu, count, process_group, quantizer, box):
        flat = x.flatten(2) if x.dim() > 2 else x.unsqueeze(-1)
        rstd = torch.rsqrt(var + eps)
        _, layout = quantizer.grouped(flat.new_empty(1).expand(flat.shape), 1)

        def operator(ranges, *how):
            return ops.batch_norm_quantize(flat, mean, rstd, weight, bias, relu, ranges, layout.groups, *how)

        observe = partial(_normalised_range, flat, mean, rstd, layout.groups)
        y, mask, codes, ranges = quantizer.encode(layout.groups, observe, operator)
        box.extend((codes, ranges, layout))
        ctx.save_for_backward(codes, ranges, mask, rstd, weight, count if process_group is not None else None)
        ctx.layout = layout.groups, *quantizer.coding
        ctx.count, ctx.process_group = None if process_group is not None else count, process_group
        return y.view(x.shape).detach()  # no view: it may be edited in place

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        codes, ranges, mask, rstd, weight, count = ctx.saved_tensors
        count = ctx.count if count is None else count
        flat = grad.flatten(2) if grad.dim() > 2 else grad.unsqueeze(-1)
        sum_g, sum_gx = ops.batch_norm_backward_reduce(flat, mask, codes, ranges, *ctx.layout)
        grad_weight = grad_bias = None
        if weight is not None:
            grad_weight = sum_gx.to(weight.dtype) if ctx.needs_input_grad[1] else None
            grad_bias = sum_g.to(weight.dtype) if ctx.needs_input_grad[2] else None
        grad_x = None
        if ctx.needs_input_grad[0]:
            if ctx.process_group is not None:
                sums = torch.cat([sum_g, sum_gx])
                dist.all_reduce(sums, group=ctx.process_group)
                sum_g, sum_gx = sums.chunk(2)
            grad_x = ops.batch_norm_backward(flat, mask, codes, ranges, rstd, weight, sum_g / count, sum_gx / count,
                                             *ctx.layout).view(grad.shape)
        return (grad_x, grad_weight, grad_bias) + (None, ) * 8


@runs_eagerly
def batch_norm(x, running_mean, running_var, weight, bias, momentum, eps, quantizer, *, relu=False, process_group=None):
    """Training-mode ``torch.nn.functional.batch_norm``, with ReLU behind it where asked.

    Args:
        x (Tensor): ``[B, C]`` or ``[B, C, *spatial]``.
        running_mean, running_var (Tensor, optional): ``[C]``, updated in place.
        weight, bias (Tensor, optional): ``[C]``.
        momentum (float): weight of this batch in the running statistics.
        eps (float): added to the variance.
        quantizer (Quantizer): for the normalised output; not used below :data:`EXACT_BELOW` values a channel.
        relu (bool): apply ReLU; one bit a value is kept for it.
        process_group (ProcessGroup, optional): share statistics over its processes (synchronised BatchNorm).

    Returns:
        Tensor: as ``x``, equal to stock's to rounding.

    Raises:
        ValueError: one value a channel, of which no variance can be taken.
    """
    joint = process_group is not None and dist.get_world_size(process_group) > 1
    if not joint:
        process_group = None
    count = x.numel() // x.shape[1]
    if not joint and count <= 1:
        raise ValueError(f'BatchNorm in training needs more than one value a channel, got an input of shape '
                         f'{tuple(x.shape)}: use a batch of at least 2')
    if not joint and (count < EXACT_BELOW or not grad_needed(x, weight, bias) or x.dtype not in QUANTIZED_DTYPES):
        y = F.batch_norm(x, running_mean, running_var, weight, bias, True, momentum, eps)
        y = relu_of(y) if relu else y
        return attach(y, exact(y)) if quantizer.reuse and grad_needed(y) else y
    with torch.no_grad():
        mean, var = ops.batch_norm_stats(x.detach().flatten(2) if x.dim() > 2 else x.detach().unsqueeze(-1))
        if joint:
            mean, var, count = _joined_stats(mean, var, count, process_group)
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((var * (count / (count - 1))).to(running_var.dtype), momentum)
    box = []
    y = _BatchNorm.apply(x, weight, bias, mean, var, eps, relu, count, process_group, quantizer, box)
    if quantizer.reuse:
        codes, ranges, layout = box
        spatial = x[0, 0].numel()
        attach(y, affine_form(codes, ranges, layout, quantizer, weight, bias, spatial, relu, y.dtype, y.shape, y.shape))
    return y
