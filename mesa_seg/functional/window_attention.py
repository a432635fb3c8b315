"""Attention in shifted windows over unpartitioned tokens, keeping q, k and v (Swin, arXiv 2103.14030, section 3.2)."""
import torch
from torch.autograd.function import once_differentiable

from .. import ops
from ._autograd import autocast, grad_needed, runs_eagerly


class _WindowAttention(torch.autograd.Function):

    @staticmethod
    def forward(ctx, qkv, pad, bias, heads, window, shift, scale, saved):
        ctx.rebuild = saved.rebuild
        ctx.arguments = heads, window, shift, scale
        ctx.save_for_backward(pad, bias, *saved.tensors)
        return ops.window_attention(qkv, pad, bias, *ctx.arguments)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        pad, bias, *tensors = ctx.saved_tensors
        qkv = ctx.rebuild(*tensors)
        grad_qkv, grad_pad, grad_bias = ops.window_attention_backward(grad.contiguous(), qkv, pad, bias, *ctx.arguments)
        return (grad_qkv, grad_pad.to(pad.dtype) if ctx.needs_input_grad[1] else None,
                grad_bias.to(bias.dtype) if ctx.needs_input_grad[2] else None, None, None, None, None, None)


@runs_eagerly
def window_attention(qkv, pad, bias, heads, window, shift, scale, quantizer):
    """Window attention that keeps ``qkv`` once; no window, mask, bias or probability is built for all windows at once.

    Args:
        qkv (Tensor): ``[B, H, W, 3 * C]``, in the order (3, heads, C / heads).
        pad (Tensor, optional): ``[3 * C]``, the qkv of the tokens that pad H and W to multiples of ``window``.
        bias (Tensor): ``[heads, window**2, window**2]``, the relative position bias.
        heads, window, shift (int): number of heads, side of a window, cyclic shift in tokens.
        scale (float): of the scores.
        quantizer (Quantizer): for ``qkv``, with ``3 * heads`` groups.

    Returns:
        Tensor: ``[B, H, W, C]``.
    """
    qkv = qkv.contiguous()
    if not grad_needed(qkv, pad, bias):
        return ops.window_attention(qkv, pad, bias, heads, window, shift, scale)
    saved = quantizer.keep(qkv, -1)
    qkv, pad = autocast(qkv, pad)
    return _WindowAttention.apply(qkv, pad, bias.float(), heads, window, shift, scale, saved)
