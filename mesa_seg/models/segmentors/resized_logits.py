"""Logits of an image that were never resized, and where each pixel of the wanted image takes its values from."""
from dataclasses import dataclass

import torch

from mesa_seg.ops import upsample_argmax
from mesa_seg.reference.upsample import bilinear_taps, chain_taps, merge_taps


def window_starts(size, crop, stride):
    """First positions of mmseg's sliding windows along an axis; each is ``min(crop, size)`` long.

    Args:
        size (int): length of the axis.
        crop (int): length of a window.
        stride (int): distance of neighbouring windows; the last one is moved back to end with the axis.

    Returns:
        list[int]: the starts, in order.
    """
    count = max(size - crop + stride - 1, 0) // stride + 1
    return [max(min(i * stride + crop, size) - crop, 0) for i in range(count)]


def window_taps(size, crop, stride, low, align_corners):
    """Sources of each position of an axis in windows' maps laid side by side, each resized and averaged where they overlap.

    Args:
        size, crop, stride (int): as in :func:`window_starts`.
        low (int): length of one window's map.
        align_corners (bool): as in ``interpolate``.

    Returns:
        tuple[Tensor, Tensor]: indices into ``windows * low`` positions and float64 weights, ``[size, T]``.
    """
    starts, length = window_starts(size, crop, stride), min(crop, size)
    index, weight = bilinear_taps(length, low, align_corners)
    cover = torch.zeros(size, dtype=torch.int64)
    for start in starts:
        cover[start:start + length] += 1
    most = int(cover.max())
    indices = torch.zeros(size, most, 2, dtype=torch.int64)
    weights = torch.zeros(size, most, 2, dtype=torch.float64)
    place = torch.zeros(size, dtype=torch.int64)
    for i, start in enumerate(starts):
        positions = torch.arange(start, start + length)
        indices[positions, place[positions]] = index + i * low
        weights[positions, place[positions]] = weight.double() / cover[positions, None]
        place[positions] += 1
    return indices.flatten(1), weights.flatten(1)


def image_taps(taps, size, start, stop, flip, align_corners):
    """Sources of each pixel of the wanted image along an axis: crop, flip and resize after what ``taps`` say.

    Args:
        taps (tuple[Tensor, Tensor]): indices and weights ``[padded size, T]``.
        size (int): size of the wanted image.
        start, stop (int): part of the padded axis that is the image.
        flip (bool): whether the image was mirrored along the axis.
        align_corners (bool): as in ``interpolate``.

    Returns:
        tuple[Tensor, Tensor]: as in :func:`mesa_seg.reference.upsample.merge_taps`.
    """
    index, weight = bilinear_taps(size, stop - start, align_corners)
    return merge_taps(*chain_taps((stop - 1 - index if flip else start + index, weight), taps))


@dataclass
class ResizedLogits:
    """Low-resolution logits and the lists that :func:`mesa_seg.ops.upsample_argmax` reads them by.

    Attributes:
        logits (Tensor): ``[C, h, w]``.
        rows, columns (tuple[Tensor, Tensor]): indices int32 and weights float32, ``[H, S]`` and ``[W, T]``.
    """
    logits: torch.Tensor
    rows: tuple
    columns: tuple


def label(maps, softmax=False):
    """Name the largest class of each pixel, of one map or of the sum of several (of their softmax if asked for).

    Args:
        maps (list[ResizedLogits]): maps of the same image.
        softmax (bool): add softmax over the classes instead of logits. Default: False.

    Returns:
        Tensor: int64 ``[1, H, W]``.
    """
    logits = [one.logits.detach() for one in maps]
    taps = [[getattr(one, axis)[part].to(one.logits.device) for one in maps]
            for axis in ('rows', 'columns') for part in (0, 1)]
    return upsample_argmax(logits, *taps, softmax=softmax)[None]
