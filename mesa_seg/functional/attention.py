"""Scaled-dot-product attention that keeps q, k and v and recomputes the probabilities."""
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from ._autograd import autocast, grad_needed, runs_eagerly


class _Attention(torch.autograd.Function):

    @staticmethod
    def forward(ctx, q, k, v, bias, scale, saved):
        ctx.rebuild = tuple(s.rebuild for s in saved)
        ctx.counts = tuple(len(s.tensors) for s in saved)
        ctx.scale = scale
        ctx.save_for_backward(bias, *(t for s in saved for t in s.tensors))
        return F.scaled_dot_product_attention(q, k, v, bias, scale=scale).detach()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        bias, *tensors = ctx.saved_tensors
        inputs = []
        for rebuild, count in zip(ctx.rebuild, ctx.counts, strict=False):
            inputs.append(rebuild(*tensors[:count]).to(grad.dtype).detach().requires_grad_())
            del tensors[:count]
        if bias is not None:
            bias = bias.detach().requires_grad_(ctx.needs_input_grad[3])
        with torch.enable_grad():
            out = F.scaled_dot_product_attention(*inputs, bias, scale=ctx.scale)
        wanted = [x for x in (*inputs, bias) if x is not None and x.requires_grad]
        found = iter(torch.autograd.grad(out, wanted, grad))
        grads = [next(found) for _ in inputs]
        grad_bias = next(found) if ctx.needs_input_grad[3] else None
        return (*grads, grad_bias, None, None)


@runs_eagerly
def scaled_dot_product_attention(q, k, v, bias=None, scale=None, *, quantizers):
    """``torch.nn.functional.scaled_dot_product_attention`` with an additive bias; no N x M map is kept.

    Torch's own kernels compute it, forward and, from the rebuilt q, k and v, in backward.

    Args:
        q (Tensor): ``[B, heads, N, d]``.
        k, v (Tensor): ``[B, heads, M, d]``.
        bias (Tensor, optional): added to the scaled scores, or bool: which scores count; broadcastable to
            ``[B, heads, N, M]``; kept as it is.
        scale (float, optional): of the scores, ``d ** -0.5`` by default.
        quantizers (sequence[Quantizer]): for q, k and v, with a group a head.

    Returns:
        Tensor: ``[B, heads, N, d]``.
    """
    if not grad_needed(q, k, v, bias):
        return F.scaled_dot_product_attention(q, k, v, bias, scale=scale)
    saved = tuple(quantizer.keep(x, 1) for quantizer, x in zip(quantizers, (q, k, v), strict=False))
    return _Attention.apply(*autocast(q, k, v, bias), scale, saved)
