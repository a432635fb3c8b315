"""Bilinear upsampling, log-softmax, negative log-likelihood, its gradient and the pixel accuracy as one operator."""
import torch
from torch._subclasses.fake_tensor import FakeTensor

from mesa_seg.ops._library import operator
from mesa_seg.reference import upsample_cross_entropy as reference

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
LABELS = (torch.int64, torch.int32, torch.int16, torch.uint8)


def _fake(logits, labels, weight, class_weight, ignore_index, align_corners, pixel_loss, gradient):
    new = logits.new_empty
    return (new(labels.shape if pixel_loss else [0], dtype=torch.float32),
            new(logits.shape if gradient else [0], dtype=torch.float32),
            new([logits.shape[0], 5], dtype=torch.float64))


_operator = operator(
    'upsample_cross_entropy(Tensor logits, Tensor labels, Tensor? weight, Tensor? class_weight, int ignore_index, '
    'bool align_corners, bool pixel_loss, bool gradient) -> (Tensor loss, Tensor gradient, Tensor sums)',
    reference=reference.upsample_cross_entropy, fake=_fake).default


def _check(logits, labels, weight, class_weight):
    def refuse(name, tensor, expected):
        raise ValueError(f'upsample_cross_entropy: {name} is {tensor.dtype} {list(tensor.shape)} on {tensor.device}; '
                         f'expected {expected}')

    if logits.dim() != 4 or logits.dtype not in FLOATS or min(logits.shape[1:]) < 1:
        refuse('logits', logits, 'float32, float16 or bfloat16 [B, C, h, w], C, h and w at least 1')
    if labels.dim() != 3 or labels.dtype not in LABELS or labels.shape[0] != logits.shape[0]:
        refuse('labels', labels, f'int64, int32, int16 or uint8 [{logits.shape[0]}, H, W]')
    if weight is not None and (weight.shape != labels.shape or not weight.is_floating_point()):
        refuse('weight', weight, f'floating point {list(labels.shape)}, as labels')
    if class_weight is not None:
        if list(class_weight.shape) != [logits.shape[1]] or not class_weight.is_floating_point():
            refuse('class_weight', class_weight, f'floating point [{logits.shape[1]}], one for each class')
    for name, tensor in (('labels', labels), ('weight', weight), ('class_weight', class_weight)):
        if tensor is not None and tensor.device != logits.device:
            refuse(name, tensor, f'{logits.device}, where logits are')


def _has_values(x):
    """Whether the values of ``x`` can be read now: not in a trace of shapes, nor while a CUDA graph is captured."""
    if torch.compiler.is_compiling() or isinstance(x, FakeTensor) or x.is_meta:
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def _check_labels(sums, labels, classes, ignore_index):
    first = sums[:, 4].tolist()
    for image, place in enumerate(first):
        if place >= 0:
            row, column = divmod(int(place), labels.shape[2])
            raise ValueError(f'upsample_cross_entropy: label {int(labels[image, row, column])} at image {image}, '
                             f'row {row}, column {column}; expected 0 to {classes - 1}, or {ignore_index} to ignore '
                             'the pixel')


def upsample_cross_entropy(logits, labels, weight=None, class_weight=None, ignore_index=-100, align_corners=False,
                           pixel_loss=False, gradient=False):
    """Cross-entropy of bilinearly upsampled logits, computed row by row: no ``[B, C, H, W]`` tensor is made.

    The value of a pixel is ``weight * class_weight[label] * (logsumexp(z) - z[label])`` with z the logits at that
    pixel, as ``torch.nn.functional.interpolate(logits, (H, W), mode='bilinear', align_corners=...)`` gives them; 0
    where the label is ``ignore_index``. Arithmetic is float32, sums over an image are float64. The gradient is summed
    in an order that depends on the shapes alone, not on the number of threads.

    Args:
        logits (Tensor): ``[B, C, h, w]``, float32, float16 or bfloat16.
        labels (Tensor): ``[B, H, W]``, int64, int32, int16 or uint8; H, W any size, also smaller than h, w.
        weight (Tensor, optional): ``[B, H, W]``, factor of each pixel. Default: None.
        class_weight (Tensor, optional): ``[C]``, factor of each class. Default: None.
        ignore_index (int): label that counts for nothing; any value. Default: -100.
        align_corners (bool): as in ``interpolate``. Default: False.
        pixel_loss (bool): whether the pixels' values are wanted. Default: False.
        gradient (bool): whether the gradient is wanted. Default: False.

    Returns:
        tuple[Tensor, Tensor, Tensor]: ``loss`` float32 ``[B, H, W]``, the value of each pixel (``[0]`` if not wanted);
        ``gradient`` float32 ``[B, C, h, w]``, that of the sum of all values with respect to logits (``[0]`` if not
        wanted); ``sums`` float64 ``[B, 5]``, for each image: sum of the values, pixels not ignored, those of them
        whose label has the largest logit (the lowest class where several are equal, as ``topk`` and ``argmax`` have
        it), sum of ``class_weight[label]`` over the pixels not ignored (their number without class_weight), and the
        place (row * W + column) of the first label that is no class, -1 if there is none.

    Raises:
        ValueError: an argument does not fit (the message names it), or a label is neither a class nor ``ignore_index``
            (the message gives its value, image, row and column). That waits for the device. Under ``torch.compile`` and
            while a CUDA graph is captured labels are not checked; the operator ignores such pixels.
    """
    _check(logits, labels, weight, class_weight)
    weight, class_weight = [None if factor is None else factor.float() for factor in (weight, class_weight)]
    found = _operator(logits, labels, weight, class_weight, ignore_index, align_corners, pixel_loss, gradient)
    if _has_values(labels):
        _check_labels(found[2], labels, logits.shape[1], ignore_index)
    return found
