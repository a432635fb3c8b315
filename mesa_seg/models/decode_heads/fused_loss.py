"""The loss of a decode head from its low-resolution logits."""
import torch
import torch.nn as nn
from mmengine.logging import print_log
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.structures import OHEMPixelSampler

from mesa_seg.functional.upsample_cross_entropy import upsample_cross_entropy
from mesa_seg.models.losses.cross_entropy_loss import FLOATS, cross_entropy_with_accuracy, fusable


def ohem_weight(sampler, loss, logits, labels, *, ignore_index, align_corners):
    """The weights that mmseg's ``OHEMPixelSampler`` gives the pixels, from low-resolution logits.

    With ``thresh``: 1 where the label's probability is below the larger of ``thresh`` and the ``min_kept * B``-th
    smallest one, else 0. Without: 1 for the ``min_kept * B`` pixels of largest loss. Ignored pixels get 0.

    Args:
        sampler (OHEMPixelSampler): the sampler.
        loss (CrossEntropyLoss): the head's loss.
        logits (Tensor): ``[B, C, h, w]``.
        labels (Tensor): ``[B, H, W]`` integer.
        ignore_index (int): label that counts for nothing.
        align_corners (bool): as in ``interpolate``.

    Returns:
        Tensor: float32 ``[B, H, W]``, of 0 and 1.
    """
    with torch.no_grad():
        keep = sampler.min_kept * labels.shape[0]
        valid = labels != ignore_index
        weight = torch.zeros(labels.shape, dtype=torch.float32, device=logits.device)
        if sampler.thresh is None:
            value, _ = cross_entropy_with_accuracy(loss, logits, labels, align_corners=align_corners,
                                                   ignore_index=ignore_index, reduction_override='none')
            value = value[valid]
            hard = torch.zeros_like(value)
            hard[value.sort(descending=True)[1][:keep]] = 1
        else:
            value, _ = upsample_cross_entropy(logits, labels, ignore_index=ignore_index, align_corners=align_corners,
                                              reduction='none')
            probability = value[valid].neg_().exp_()
            threshold = sampler.thresh
            if probability.numel():
                threshold = probability.sort()[0][min(keep, probability.numel() - 1)].clamp(min=threshold)
            hard = (probability < threshold).float()
        weight[valid] = hard
        return weight


class FusedLossMixin:
    """Loss of a decode head without full-size logits; to be named before the head's class among the bases.

    ``loss_by_feat`` gives the stock head's dictionary: the loss under its ``loss_name``, and ``acc_seg``. It takes the
    fused operator where the head's one loss is a softmax ``CrossEntropyLoss`` or ``MesaCrossEntropyLoss`` and the
    sampler, if any, is ``OHEMPixelSampler``. Anything else, or an attribute ``mesa_enabled`` that is False, takes the
    stock path; a log line says once why (none for ``mesa_enabled``).
    """

    def fused_loss_hindrance(self, seg_logits):
        """Say why the fused operator cannot be used, or None where it can.

        Args:
            seg_logits (Tensor): ``[B, C, h, w]``, what the head's forward gave.

        Returns:
            str | None: the reason in a few words.
        """
        losses = list(self.loss_decode) if isinstance(self.loss_decode, nn.ModuleList) else [self.loss_decode]
        if super().loss_by_feat.__func__ is not BaseDecodeHead.loss_by_feat:
            return 'the head computes its loss in its own way'
        if len(losses) != 1:
            return f'the head has {len(losses)} losses ({", ".join(type(loss).__name__ for loss in losses)})'
        if self.out_channels == 1:
            return 'the head has one output channel'
        if self.sampler is not None and type(self.sampler) is not OHEMPixelSampler:
            return f'the sampler is {type(self.sampler).__name__}'
        if self.ignore_index is None:
            return 'ignore_index is None'
        if not isinstance(seg_logits, torch.Tensor) or seg_logits.dim() != 4 or seg_logits.dtype not in FLOATS:
            return 'the logits are no single float32, float16 or bfloat16 map'
        return fusable(losses[0])

    def loss_by_feat(self, seg_logits, batch_data_samples):
        """Compute the loss and the accuracy.

        Args:
            seg_logits (Tensor): ``[B, C, h, w]``, what the head's forward gave.
            batch_data_samples (list[SegDataSample]): samples with ``gt_sem_seg``.

        Returns:
            dict[str, Tensor]: the loss under its name, and ``acc_seg`` (per cent, ``[1]``).
        """
        if not getattr(self, 'mesa_enabled', True):
            return super().loss_by_feat(seg_logits, batch_data_samples)
        hindrance = self.fused_loss_hindrance(seg_logits)
        if hindrance is not None:
            if getattr(self, '_fused_loss_hindrance', None) != hindrance:
                self._fused_loss_hindrance = hindrance
                print_log(f'{type(self).__name__}: the loss is computed on full-size logits, since {hindrance}.',
                          logger='current')
            return super().loss_by_feat(seg_logits, batch_data_samples)
        loss = self.loss_decode[0] if isinstance(self.loss_decode, nn.ModuleList) else self.loss_decode
        labels = self._stack_batch_gt(batch_data_samples).squeeze(1)
        settings = dict(ignore_index=self.ignore_index, align_corners=self.align_corners)
        weight = None
        if self.sampler is not None:
            weight = ohem_weight(self.sampler, loss, seg_logits, labels, **settings)
        value, accuracy = cross_entropy_with_accuracy(loss, seg_logits, labels, weight=weight, **settings)
        return {loss.loss_name: value, 'acc_seg': accuracy}
