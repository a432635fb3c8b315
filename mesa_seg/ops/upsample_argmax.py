"""The class of largest logit at every pixel of a resized map, without resizing it."""
import torch

from mesa_seg.ops._library import operator
from mesa_seg.reference import upsample_argmax as reference

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _fake(logits, row_index, row_weight, column_index, column_weight, softmax):
    return logits[0].new_empty([row_index[0].shape[0], column_index[0].shape[0]], dtype=torch.int64)


_operator = operator(
    'upsample_argmax(Tensor[] logits, Tensor[] row_index, Tensor[] row_weight, Tensor[] column_index, '
    'Tensor[] column_weight, bool softmax) -> Tensor',
    reference=reference.upsample_argmax, fake=_fake).default


def _check(logits, taps):
    def refuse(name, i, tensor, expected):
        raise ValueError(f'upsample_argmax: {name}[{i}] is {tensor.dtype} {list(tensor.shape)} on {tensor.device}; '
                         f'expected {expected}')

    for name, tensors in taps.items():
        if len(tensors) != len(logits) or not logits:
            raise ValueError(f'upsample_argmax: {len(logits)} logits, {len(tensors)} {name}; expected one for each, '
                             'and at least one')
    for i, image in enumerate(logits):
        if image.dim() != 3 or image.dtype not in FLOATS or image.shape[0] != logits[0].shape[0] or not image.numel():
            refuse('logits', i, image, 'float32, float16 or bfloat16 [C, h, w], the same C in all, no size 0')
        for name, tensors in taps.items():
            length, dtype = tensors[0].shape[0], torch.int32 if name.endswith('index') else torch.float32
            twin = taps[name.replace('weight', 'index')][i]
            if tensors[i].dtype != dtype or tensors[i].shape != (length, *twin.shape[1:]) or tensors[i].dim() != 2:
                refuse(name, i, tensors[i], f'{dtype} [{length}, T], T as in {name.replace("weight", "index")}')
            if tensors[i].device != image.device:
                refuse(name, i, tensors[i], f'{image.device}, where logits are')


def upsample_argmax(logits, row_index, row_weight, column_index, column_weight, softmax=False):
    """Evaluate maps of which each pixel is a weighted sum of some source rows and columns, and name its largest class.

    The value of class c at (y, x) is ``sum_s sum_t row_weight[y, s] * column_weight[x, t] *
    logits[c, row_index[y, s], column_index[x, t]]``: any chain of bilinear resizes, crops and flips along the two axes is
    one such pair of lists (:mod:`mesa_seg.reference.upsample` makes them), and so is the average of overlapping windows
    whose maps are laid side by side. Arithmetic is float32, rows first; the order of additions is that of the lists. With
    several maps their values (or their softmax) are added. Where classes are equal the lowest is named, as
    ``torch.argmax`` does.

    Args:
        logits (list[Tensor]): ``[C, h_i, w_i]`` each, float32, float16 or bfloat16, any strides.
        row_index, column_index (list[Tensor]): int32 ``[H, S_i]`` and ``[W, T_i]``, the same H and W in all.
        row_weight, column_weight (list[Tensor]): float32 of the same shapes.
        softmax (bool): add softmax over the classes of each map instead of its values. Default: False.

    Returns:
        Tensor: int64 ``[H, W]``.

    Raises:
        ValueError: an argument does not fit; the message names it.
        RuntimeError: an index is outside of its map.
    """
    _check(logits, dict(row_index=row_index, row_weight=row_weight, column_index=column_index,
                        column_weight=column_weight))
    return _operator(logits, row_index, row_weight, column_index, column_weight, softmax)
