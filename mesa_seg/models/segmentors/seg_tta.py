"""Test-time augmentation without full-size logits."""
import torch
from mmengine.structures import PixelData
from mmseg.models.segmentors import SegTTAModel
from mmseg.registry import MODELS

from mesa_seg.models.segmentors.encoder_decoder import MesaEncoderDecoder
from mesa_seg.models.segmentors.resized_logits import label


@MODELS.register_module()
class MesaSegTTAModel(SegTTAModel):
    """``SegTTAModel`` that adds up the augmentations' softmax in bands of rows, from their low-resolution logits.

    Scales, flips and padding are undone within the sums. It holds the low-resolution logits of all augmentations of an
    image at a time, where stock holds as many full-size ones. With a model that is no ``MesaEncoderDecoder``, or one
    that keeps logits, it is ``SegTTAModel``.

    Args:
        See :class:`mmseg.models.segmentors.SegTTAModel`; the same.
    """

    def _merges_maps(self):
        return isinstance(self.module, MesaEncoderDecoder) and self.module.label_hindrance() is None

    def test_step(self, data):
        """Predict one batch, each image in all its augmentations.

        Args:
            data (dict | list): batches of the augmentations, as the test-time pipeline gives them.

        Returns:
            list[SegDataSample]: one for each image, with ``pred_sem_seg``.
        """
        if not self._merges_maps():
            return super().test_step(data)
        with torch.no_grad(), self.module.keeping_maps():
            return super().test_step(data)

    def merge_preds(self, data_samples_list):
        """Merge the augmentations of each image.

        Args:
            data_samples_list (list[tuple[SegDataSample]]): for each image its augmentations' samples.

        Returns:
            list[SegDataSample]: the last sample of each, with ``pred_sem_seg`` (int64 ``[1, H, W]``).
        """
        if not all(hasattr(sample, 'resized_logits') for samples in data_samples_list for sample in samples):
            return super().merge_preds(data_samples_list)
        merged = []
        for samples in data_samples_list:
            seg_pred = label([sample.resized_logits for sample in samples], softmax=True)
            for sample in samples:
                del sample.resized_logits
            result = samples[-1]
            result.set_data(dict(pred_sem_seg=PixelData(data=seg_pred)))
            if hasattr(samples[0], 'gt_sem_seg'):
                result.set_data(dict(gt_sem_seg=samples[0].gt_sem_seg))
            result.set_metainfo(dict(img_path=samples[0].img_path))
            merged.append(result)
        return merged
