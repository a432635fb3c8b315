"""Shifted-window attention between the qkv and the output projection, over the unpartitioned token map."""
import torch

from mesa_seg.ops._library import operator
from mesa_seg.reference import window_attention as reference


def _forward_fake(qkv, pad, bias, heads, window, shift, scale):
    reference.check(qkv, pad, bias, heads, window, shift)
    return qkv.new_empty([*qkv.shape[:3], qkv.shape[3] // 3])


def _backward_fake(grad, qkv, pad, bias, heads, window, shift, scale):
    reference.check(qkv, pad, bias, heads, window, shift)
    return (qkv.new_empty(qkv.shape), qkv.new_empty([qkv.shape[3]], dtype=torch.float32),
            qkv.new_empty(bias.shape, dtype=torch.float32))


_forward = operator(
    'window_attention(Tensor qkv, Tensor? pad, Tensor bias, int heads, int window, int shift, float scale) -> Tensor',
    reference=reference.window_attention, fake=_forward_fake).default
_backward = operator(
    'window_attention_backward(Tensor grad, Tensor qkv, Tensor? pad, Tensor bias, int heads, int window, int shift, '
    'float scale) -> (Tensor gqkv, Tensor gpad, Tensor gbias)',
    reference=reference.window_attention_backward, fake=_backward_fake).default


def window_attention(qkv, pad, bias, heads, window, shift, scale):
    """Multi-head self-attention within (shifted) windows: what mmseg's ``ShiftWindowMSA`` does between qkv and proj.

    The map is padded at the right and the bottom to multiples of ``window`` with tokens whose qkv is ``pad``, rolled by
    ``-shift`` and cut into windows; each gives ``softmax(q * scale @ k.T + bias + mask) @ v``, and the result goes back
    to where its query came from. None of it is done to the data: the kernel finds every token by index arithmetic and
    holds one N x N map at a time (N = window * window).

    Args:
        qkv (Tensor): ``[B, H, W, 3C]``, last dimension ordered (3, heads, d). float32, float16 or bfloat16;
            arithmetic is float32.
        pad (Tensor, optional): ``[3C]``, qkv of a padded token, that is the bias of the qkv projection. None: zeros.
        bias (Tensor): ``[heads, N, N]``, added to the logits (query, key).
        heads (int): number of heads; divides C.
        window (int): side of a window, in tokens.
        shift (int): cyclic shift, ``0 <= shift < window``. Above 0, pairs of tokens that only the shift brought
            together get -100 on their logit.
        scale (float): factor of q.

    Returns:
        Tensor: ``[B, H, W, C]`` of qkv's dtype.

    Raises:
        RuntimeError: an argument that does not fit; the message names it.
    """
    return _forward(qkv, pad, bias, heads, window, shift, scale)


def window_attention_backward(grad, qkv, pad, bias, heads, window, shift, scale):
    """Gradients of :func:`window_attention`, from its inputs alone: the probabilities are computed again.

    Sums over windows are taken in a fixed order: the result does not depend on the number of threads.

    Args:
        grad (Tensor): ``[B, H, W, C]``, gradient of the output.
        qkv, pad, bias, heads, window, shift, scale: as given to :func:`window_attention`.

    Returns:
        tuple[Tensor, Tensor, Tensor]: ``gqkv`` ``[B, H, W, 3C]`` of qkv's dtype; ``gpad`` float32 ``[3C]``, the k and v
        gradients summed over padded tokens (q's third is zero: the outputs of padded tokens are cut off); ``gbias``
        float32 ``[heads, N, N]``.
    """
    return _backward(grad, qkv, pad, bias, heads, window, shift, scale)
