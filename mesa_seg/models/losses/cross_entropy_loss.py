"""mmseg's ``CrossEntropyLoss`` over the fused operator."""
import torch
from mmseg.models.losses import CrossEntropyLoss
from mmseg.registry import MODELS

from mesa_seg.functional.upsample_cross_entropy import upsample_cross_entropy

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def fusable(loss):
    """Say why the fused operator cannot stand for a loss module, or None where it can.

    Args:
        loss (nn.Module): any loss.

    Returns:
        str | None: the reason in a few words.
    """
    if type(loss) not in (CrossEntropyLoss, MesaCrossEntropyLoss):
        return f'{type(loss).__name__} is not a softmax cross-entropy that it knows'
    if loss.use_sigmoid:
        return 'use_sigmoid=True'
    if loss.use_mask:
        return 'use_mask=True'
    return None


def cross_entropy_with_accuracy(loss, logits, labels, *, align_corners, weight=None, avg_factor=None,
                                reduction_override=None, ignore_index=-100):
    """What a ``CrossEntropyLoss`` gives for logits resized to the labels, and the accuracy, without resizing them.

    Args:
        loss (CrossEntropyLoss): module whose settings hold (one that :func:`fusable` has nothing against).
        logits (Tensor): ``[B, C, h, w]``, float32, float16 or bfloat16.
        labels (Tensor): ``[B, H, W]`` integer.
        align_corners (bool): as in ``interpolate``.
        weight, avg_factor, reduction_override, ignore_index: as in ``CrossEntropyLoss.forward``.

    Returns:
        tuple[Tensor, Tensor]: see :func:`mesa_seg.functional.upsample_cross_entropy.upsample_cross_entropy`.
    """
    class_weight = loss.class_weight
    if class_weight is not None:
        class_weight = torch.as_tensor(class_weight, dtype=torch.float32, device=logits.device)
    value, accuracy = upsample_cross_entropy(
        logits, labels, weight=weight, class_weight=class_weight, ignore_index=ignore_index,
        align_corners=align_corners, reduction=reduction_override or loss.reduction, avg_factor=avg_factor,
        avg_non_ignore=loss.avg_non_ignore)
    return loss.loss_weight * value, accuracy


@MODELS.register_module()
class MesaCrossEntropyLoss(CrossEntropyLoss):
    """``CrossEntropyLoss`` that keeps no log-softmax, and takes logits smaller (or larger) than the labels.

    Logits are resized to the labels inside the fused operator. Called by a stock head, which has resized them already,
    it saves the log-softmax and its gradient; a head with
    :class:`~mesa_seg.models.decode_heads.fused_loss.FusedLossMixin` hands it the low-resolution logits. With
    ``use_sigmoid`` or ``use_mask`` it is ``CrossEntropyLoss``. The value is float32 for every dtype of the logits.

    Args:
        See :class:`mmseg.models.losses.CrossEntropyLoss`; the same in the same order.
    """

    def forward(self, cls_score, label, weight=None, avg_factor=None, reduction_override=None, ignore_index=-100,
                align_corners=False, **kwargs):
        """Compute the loss.

        Args:
            cls_score (Tensor): ``[B, C, h, w]`` with label ``[B, H, W]``, or ``[N, C]`` with label ``[N]``.
            label (Tensor): class of each pixel, or ``ignore_index``.
            weight (Tensor, optional): factor of each pixel, broadcast to label. Default: None.
            avg_factor (float | Tensor, optional): divisor of the mean. Default: None.
            reduction_override (str, optional): 'none', 'mean' or 'sum' instead of the module's own. Default: None.
            ignore_index (int): label that counts for nothing. Default: -100.
            align_corners (bool): how cls_score is resized where its size is not the label's. Default: False.

        Returns:
            Tensor: float32 scalar, or of label's shape with reduction 'none'.
        """
        if reduction_override not in (None, 'none', 'mean', 'sum'):
            raise ValueError(f"reduction_override is {reduction_override!r}; expected None, 'none', 'mean' or 'sum'")
        if self.use_sigmoid or self.use_mask or cls_score.dtype not in FLOATS:
            return super().forward(cls_score, label, weight, avg_factor, reduction_override, ignore_index, **kwargs)
        settings = dict(avg_factor=avg_factor, reduction_override=reduction_override, ignore_index=ignore_index,
                        align_corners=align_corners, **kwargs)
        if cls_score.dim() == 2:
            value, _ = cross_entropy_with_accuracy(
                self, cls_score.t()[None, :, None], label[None, None],
                weight=None if weight is None else weight[None, None], **settings)
            return value[0, 0] if value.dim() else value
        return cross_entropy_with_accuracy(self, cls_score, label, weight=weight, **settings)[0]
