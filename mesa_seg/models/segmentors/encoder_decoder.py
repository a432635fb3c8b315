"""Prediction without full-size logits."""
import contextlib

import torch
from mmengine.logging import print_log
from mmengine.structures import PixelData
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.segmentors import EncoderDecoder
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample

from mesa_seg.models.losses.cross_entropy_loss import FLOATS
from mesa_seg.models.segmentors.resized_logits import ResizedLogits, image_taps, label, window_starts, window_taps
from mesa_seg.reference.upsample import bilinear_taps, merge_taps

TEST_KEYS = ('mode', 'crop_size', 'stride', 'keep_logits')


@MODELS.register_module()
class MesaEncoderDecoder(EncoderDecoder):
    """``EncoderDecoder`` that names the classes of an image from its low-resolution logits.

    Stock prediction resizes the logits to the padded image, crops and flips them, resizes them to the original image and
    takes the largest: for 150 classes and a photo several gigabytes, several times. Here these steps are one pair of
    short lists along the axes, evaluated in bands of rows; the same goes for the average of sliding windows. The
    labels are stock's, but at pixels where two logits are equal to float32 rounding: the resizes are one weighted sum
    here and two or more rounded ones there, and where logits are exactly equal the lowest class is named.

    Results hold ``pred_sem_seg`` and no ``seg_logits``. ``test_cfg=dict(..., keep_logits=True)`` gives stock behaviour to
    callers who need logits or scores. Stock behaviour is also what one output channel (a threshold instead of a
    largest class) and heads with a ``predict`` or ``predict_by_feat`` of their own get; a log line says so. For test-time
    augmentation there is :class:`~mesa_seg.models.segmentors.seg_tta.MesaSegTTAModel`; mmseg's ``SegTTAModel`` adds up
    full-size ``seg_logits``, so it needs ``keep_logits=True``.

    Args:
        See :class:`mmseg.models.segmentors.EncoderDecoder`; the same. ``test_cfg`` may hold ``mode`` ('whole' or 'slide'),
        ``crop_size`` and ``stride`` (for 'slide'), and ``keep_logits`` (bool, default False). Other keys are named in
        a log line.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        unknown = sorted(set(self.test_cfg or {}) - set(TEST_KEYS))
        if unknown:
            print_log(f'MesaEncoderDecoder: test_cfg has {", ".join(unknown)}, which prediction by labels knows nothing of '
                      f'(it knows {", ".join(TEST_KEYS)}).', logger='current')
        self._keeps_maps = False
        self._said_why = None

    @contextlib.contextmanager
    def keeping_maps(self):
        """Within it, prediction attaches :class:`ResizedLogits` as ``resized_logits`` to each sample, and no label."""
        before, self._keeps_maps = self._keeps_maps, True
        try:
            yield
        finally:
            self._keeps_maps = before

    def label_hindrance(self):
        """Say why labels cannot be had without full-size logits, or None where they can.

        Returns:
            str | None: the reason in a few words.
        """
        head = self.decode_head
        if (self.test_cfg or {}).get('keep_logits', False):
            return 'test_cfg.keep_logits is True'
        if self.out_channels == 1:
            return 'the head has one output channel'
        for name in ('predict', 'predict_by_feat'):
            if getattr(type(head), name, None) is not getattr(BaseDecodeHead, name):
                return f'{type(head).__name__} has its own {name}'
        for name in ('encode_decode', 'inference', 'whole_inference', 'slide_inference', 'postprocess_result'):
            if getattr(type(self), name) is not getattr(EncoderDecoder, name):
                return f'{type(self).__name__} has its own {name}'
        return None

    def predict(self, inputs, data_samples=None):
        """Predict labels.

        Args:
            inputs (Tensor): ``[N, 3, H, W]``, preprocessed images.
            data_samples (list[SegDataSample], optional): their samples, whose metainfo says how each was padded and
                flipped and its original size. None: labels of the inputs' size.

        Returns:
            list[SegDataSample]: with ``pred_sem_seg`` (int64 ``[1, H, W]``, original size).
        """
        hindrance = self.label_hindrance()
        if hindrance is None:
            metas = None if data_samples is None else [sample.metainfo for sample in data_samples]
            maps = self.predict_maps(inputs, metas)
            hindrance = None if maps is not None else 'the logits are no single float32, float16 or bfloat16 map'
        if hindrance is not None:
            if hindrance != self._said_why and 'keep_logits' not in hindrance:
                print_log(f'{type(self).__name__}: labels are taken from full-size logits, since {hindrance}.',
                          logger='current')
            self._said_why = hindrance
            return super().predict(inputs, data_samples)
        if data_samples is None:
            data_samples = [SegDataSample() for _ in maps]
        for sample, one in zip(data_samples, maps, strict=True):
            if self._keeps_maps:
                sample.set_field(one, 'resized_logits', field_type='metainfo')
            else:
                sample.set_data(dict(pred_sem_seg=PixelData(data=label([one]))))
        return data_samples

    def predict_maps(self, inputs, metas=None):
        """Run the model and say where each pixel of each original image takes its logits from.

        Args:
            inputs (Tensor): ``[N, 3, H, W]``.
            metas (list[dict], optional): metainfo of each image; None for labels of the inputs' size.

        Returns:
            list[ResizedLogits] | None: one for each image; None where the head gives something else than one map.

        Raises:
            ValueError: ``test_cfg.mode`` is neither 'whole' nor 'slide'.
        """
        config = self.test_cfg or {}
        mode = config.get('mode', 'whole')
        if mode not in ('whole', 'slide'):
            raise ValueError(f"test_cfg.mode is {mode!r}; expected 'whole' or 'slide'")
        if mode == 'slide':
            logits, padded = self._window_logits(inputs, config['crop_size'], config['stride']), inputs.shape[2:]
        else:
            logits, padded = self._forward(inputs), self._padded_size(inputs, metas)
        if not isinstance(logits, torch.Tensor) or logits.dim() != 4 or logits.dtype not in FLOATS:
            return None
        align_corners = self.decode_head.align_corners
        axes = []
        for i, size in enumerate(padded):
            if mode == 'slide':
                crop, stride = config['crop_size'][i], config['stride'][i]
                low = logits.shape[2 + i] // len(window_starts(size, crop, stride))
                axes.append(window_taps(size, crop, stride, low, align_corners))
            else:
                axes.append(bilinear_taps(size, logits.shape[2 + i], align_corners))
        if metas is None:
            axes = [merge_taps(*taps) for taps in axes]
            return [ResizedLogits(one, *axes) for one in logits]
        return [ResizedLogits(one, *self._to_original(axes, padded, meta)) for one, meta in zip(logits, metas, strict=True)]

    def _padded_size(self, inputs, metas):
        """Size that ``BaseDecodeHead.predict_by_feat`` resizes to."""
        if metas is None:
            return inputs.shape[2:]
        shape = metas[0]['img_shape']
        if not isinstance(shape, torch.Size) and 'pad_shape' in metas[0]:
            shape = metas[0]['pad_shape']
        return shape[:2]

    def _window_logits(self, inputs, crop_size, stride):
        """Logits of all windows, side by side as the windows lie: ``[N, C, rows * h, columns * w]``."""
        height, width = (min(crop, size) for crop, size in zip(crop_size, inputs.shape[2:], strict=True))
        tops, lefts = (window_starts(size, crop, step)
                       for size, crop, step in zip(inputs.shape[2:], crop_size, stride, strict=True))
        every = None
        for i, top in enumerate(tops):
            for j, left in enumerate(lefts):
                logits = self._forward(inputs[:, :, top:top + height, left:left + width])
                if not isinstance(logits, torch.Tensor) or logits.dim() != 4:
                    return None
                if every is None:
                    h, w = logits.shape[2:]
                    every = logits.new_empty(*logits.shape[:2], len(tops) * h, len(lefts) * w)
                every[:, :, i * h:(i + 1) * h, j * w:(j + 1) * w] = logits
        return every

    def _to_original(self, axes, padded, meta):
        """Lists of an image after cropping, flipping and resizing to its original size, as ``postprocess_result`` does."""
        left, right, top, bottom = meta.get('img_padding_size', meta.get('padding_size', [0] * 4))
        direction = meta.get('flip_direction', None) if meta.get('flip', None) else None
        if direction not in (None, 'horizontal', 'vertical'):
            raise ValueError(f"flip_direction is {direction!r}; expected 'horizontal' or 'vertical'")
        height, width = meta['ori_shape'][:2]
        return (image_taps(axes[0], height, top, padded[0] - bottom, direction == 'vertical', self.align_corners),
                image_taps(axes[1], width, left, padded[1] - right, direction == 'horizontal', self.align_corners))
