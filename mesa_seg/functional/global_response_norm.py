"""Global Response Normalization (ConvNeXt V2, arXiv 2301.00808) that keeps the saved form of its input."""
from functools import partial

import torch
from torch.autograd.function import once_differentiable

from ..saved import attach, derive
from ..saved.quantizer import QUANTIZED_DTYPES
from ._autograd import grad_needed, runs_eagerly


def _norms(x, spatial):
    return torch.norm(x, p=2, dim=spatial, keepdim=True)


def _respond(x, gamma, beta, norms, *, eps, channel_dim):
    shape = [-1 if d == channel_dim else 1 for d in range(4)]
    response = norms / (norms.mean(dim=channel_dim, keepdim=True) + eps)
    return gamma.view(shape) * (x * response) + beta.view(shape) + x


class _GlobalResponseNorm(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, gamma, beta, norms, eps, channel_dim, saved):
        ctx.eps, ctx.channel_dim, ctx.rebuild = eps, channel_dim, saved.rebuild
        ctx.save_for_backward(gamma, norms, *saved.tensors)
        return _respond(x, gamma, beta, norms, eps=eps, channel_dim=channel_dim)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        gamma, norms, *tensors = ctx.saved_tensors
        dim = ctx.channel_dim
        spatial = tuple(d for d in (1, 2, 3) if d != dim)
        x = ctx.rebuild(*tensors).to(grad.dtype)
        weight = gamma.view([-1 if d == dim else 1 for d in range(4)])
        mean = norms.mean(dim=dim, keepdim=True) + ctx.eps
        response = norms / mean
        product = (grad * x).sum(spatial, keepdim=True)
        grad_gamma = (product * response).sum((0, *spatial)).to(gamma.dtype)
        grad_beta = grad.sum((0, *spatial)).to(gamma.dtype)
        # Through the norms: of the channel itself, and of all channels through their mean.
        of_response = weight * product
        of_norms = of_response / mean - (of_response * norms).mean(dim=dim, keepdim=True) / mean.square()
        grad_x = grad * (weight * response + 1) + x * (of_norms / norms.clamp_min(torch.finfo(norms.dtype).tiny))
        return grad_x, grad_gamma, grad_beta, None, None, None, None


@runs_eagerly
def global_response_norm(x, gamma, beta, eps, quantizer, channel_dim=1):
    """``gamma * x * n + beta + x`` with n each channel's norm over the map, divided by the mean of these norms.

    Args:
        x (Tensor): ``[B, C, H, W]``, or ``[B, H, W, C]`` with ``channel_dim=3``.
        gamma, beta (Tensor): ``[C]``.
        eps (float): added to the mean.
        quantizer (Quantizer): makes the input's form where it has none; the norms are kept as they are.
        channel_dim (int): 1 or 3.

    Returns:
        Tensor: as ``x``.
    """
    function = partial(_respond, eps=eps, channel_dim=channel_dim)
    norms = _norms(x.detach(), tuple(d for d in (1, 2, 3) if d != channel_dim))
    if not grad_needed(x, gamma, beta):
        return function(x, gamma, beta, norms)
    if x.dtype not in QUANTIZED_DTYPES or x.dtype != gamma.dtype:
        return function(x, gamma, beta, _norms(x, tuple(d for d in (1, 2, 3) if d != channel_dim)))
    saved = quantizer.keep(x, channel_dim)
    y = _GlobalResponseNorm.apply(x, gamma, beta, norms, eps, channel_dim, saved)
    return attach(y, derive(function, (saved, ), y.shape, extra=(gamma, beta, norms))) if quantizer.reuse else y
