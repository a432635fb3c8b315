"""Labels of MesaEncoderDecoder against those of mmseg's EncoderDecoder with the same weights."""
import copy

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.structures import PixelData

from mesa_seg import compat

compat.prepare()

from mmseg.evaluation import IoUMetric  # noqa: E402
from mmseg.models.data_preprocessor import SegDataPreProcessor  # noqa: E402
from mmseg.models.decode_heads import FCNHead  # noqa: E402
from mmseg.registry import MODELS  # noqa: E402
from mmseg.structures import SegDataSample  # noqa: E402

from mesa_seg.models.segmentors import encoder_decoder  # noqa: E402

CLASSES = 6


@MODELS.register_module()
class FourthBackbone(torch.nn.Module):
    """A quarter of the image's size."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 5, stride=4, padding=2)

    def forward(self, x):
        return [torch.relu(self.conv(x))]


@MODELS.register_module()
class OwnPredictHead(FCNHead):
    def predict_by_feat(self, seg_logits, batch_img_metas):
        return super().predict_by_feat(seg_logits.flip(1), batch_img_metas)


def config(kind, align_corners=False, test_cfg=None, **head):
    return dict(type=kind, backbone=dict(type='FourthBackbone'), test_cfg=ConfigDict(test_cfg or dict(mode='whole')),
                data_preprocessor=SegDataPreProcessor(),
                decode_head={**dict(type='FCNHead', in_channels=8, channels=8, num_convs=1, num_classes=CLASSES,
                                    align_corners=align_corners, init_cfg=dict(type='Normal', std=1.0)), **head})


def models(**settings):
    torch.manual_seed(1)
    mesa, stock = [MODELS.build(config(kind, **settings)).eval() for kind in ('MesaEncoderDecoder', 'EncoderDecoder')]
    torch.nn.init.normal_(stock.decode_head.conv_seg.weight)
    mesa.load_state_dict(stock.state_dict())
    return mesa, stock


def sample(size, ori_shape, padding=(0, 0, 0, 0), flip=None, path='x.png'):
    meta = dict(img_shape=size, pad_shape=size, ori_shape=ori_shape, padding_size=list(padding), img_path=path,
                flip=flip is not None)
    if flip:
        meta['flip_direction'] = flip
    return SegDataSample(metainfo=meta)


@torch.no_grad()
def predict(model, images, samples):
    return model.predict(images, copy.deepcopy(samples))


def assert_labels(found, stock):
    """Equal, but where stock's logits of the two classes differ by float32 rounding of its largest logit."""
    for mine, theirs in zip(found, stock, strict=True):
        labels, logits = mine.pred_sem_seg.data, theirs.seg_logits.data
        expected = theirs.pred_sem_seg.data
        assert labels.dtype == expected.dtype and labels.shape == expected.shape
        gap = logits.gather(0, expected) - logits.gather(0, labels)
        assert (gap <= 1e-5 * logits.abs().max()).all()
        assert (labels == expected).float().mean() > 0.999
        assert 'seg_logits' not in mine
        assert len(labels.unique()) > 1


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize('mode', [
    dict(mode='whole'), dict(mode='slide', crop_size=(32, 40), stride=(20, 27)),
    dict(mode='slide', crop_size=(96, 32), stride=(64, 32)),
], ids=str)
@pytest.mark.parametrize('given', [
    [sample((64, 72), (64, 72))], [sample((64, 72), (150, 131))], [sample((64, 72), (31, 30))],
    [sample((64, 72), (120, 100), padding=(2, 10, 0, 13))],
    [sample((64, 72), (120, 100), padding=(0, 9, 0, 3), flip='horizontal'), sample((64, 72), (64, 72), flip='vertical')],
], ids=['same', 'larger', 'smaller', 'padded', 'flipped batch'])
def test_labels_are_stock_s(given, mode, align_corners):
    mesa, stock = models(test_cfg=mode, align_corners=align_corners)
    images = torch.randn(len(given), 3, 64, 72)
    assert_labels(predict(mesa, images, given), predict(stock, images, given))


@pytest.mark.parametrize('mode', [dict(mode='whole'), dict(mode='slide', crop_size=(32, 40), stride=(20, 27))], ids=str)
def test_without_samples(mode):
    mesa, stock = models(test_cfg=mode)
    images = torch.randn(2, 3, 61, 70)
    assert_labels(predict(mesa, images, None), predict(stock, images, None))


def test_padding_of_the_test_time_preprocessor():
    mesa, stock = models()
    given = [sample((64, 72), (128, 144))]
    given[0].set_metainfo(dict(img_padding_size=[0, 8, 0, 4]))
    images = torch.randn(1, 3, 64, 72)
    assert_labels(predict(mesa, images, given), predict(stock, images, given))


def test_no_full_size_logits_are_made(monkeypatch):
    mesa, _ = models(test_cfg=dict(mode='slide', crop_size=(32, 40), stride=(20, 27)))
    monkeypatch.setattr(torch.nn.functional, 'interpolate', None)
    predict(mesa, torch.randn(1, 3, 64, 72), [sample((64, 72), (200, 300))])


@pytest.mark.parametrize('settings, reason', [
    (dict(test_cfg=dict(mode='whole', keep_logits=True)), None),
    (dict(out_channels=1, num_classes=2, threshold=0.4), 'one output channel'),
    (dict(type='OwnPredictHead'), 'OwnPredictHead has its own predict_by_feat'),
], ids=['keep_logits', 'binary', 'own predict'])
def test_stock_path(settings, reason, monkeypatch):
    lines = []
    monkeypatch.setattr(encoder_decoder, 'print_log', lambda line, **kwargs: lines.append(line))
    mesa, stock = models(**settings)
    images, given = torch.randn(1, 3, 64, 72), [sample((64, 72), (70, 90))]
    for _ in range(2):
        found = predict(mesa, images, given)[0]
    expected = predict(stock, images, given)[0]
    assert torch.equal(found.seg_logits.data, expected.seg_logits.data)
    assert torch.equal(found.pred_sem_seg.data, expected.pred_sem_seg.data)
    assert len(lines) == (reason is not None) and all(reason in line for line in lines)


def test_unknown_test_keys_are_named(monkeypatch):
    lines = []
    monkeypatch.setattr(encoder_decoder, 'print_log', lambda line, **kwargs: lines.append(line))
    models(test_cfg=dict(mode='whole', keep_logit=True, stride=None))
    assert len(lines) == 1 and 'test_cfg has keep_logit,' in lines[0]
    with pytest.raises(ValueError, match="test_cfg.mode is 'windows'"):
        predict(models(test_cfg=dict(mode='windows'))[0], torch.randn(1, 3, 64, 72), None)


def test_through_test_step_and_metric():
    """What the test loop does: preprocess, predict, evaluate."""
    mesa, stock = models()
    image = torch.randint(0, 255, (3, 64, 72), dtype=torch.uint8)
    results = []
    for model in (mesa, stock):
        one = sample((64, 72), (64, 72))
        one.gt_sem_seg = PixelData(data=torch.randint(0, CLASSES, (1, 64, 72), generator=torch.manual_seed(3)))
        metric = IoUMetric()
        metric.dataset_meta = dict(classes=[str(i) for i in range(CLASSES)])
        with torch.no_grad():
            outputs = model.test_step(dict(inputs=[image], data_samples=[one]))
        metric.process({}, [output.to_dict() for output in outputs])
        results.append(metric.evaluate(1))
    assert results[0] == pytest.approx(results[1], abs=0.2) and results[0]


def tta_batch():
    """One image at two scales, each also flipped, as the test-time pipeline gives it."""
    torch.manual_seed(0)
    image = torch.rand(1, 3, 64, 72) * 255
    inputs, samples = [], []
    for size in ((64, 72), (96, 108)):
        for flip in (None, 'horizontal'):
            scaled = torch.nn.functional.interpolate(image, size, mode='bilinear')[0]
            inputs.append([scaled.flip(2) if flip else scaled])
            samples.append([sample(size, (80, 90), flip=flip)])
    samples[0][0].gt_sem_seg = PixelData(data=torch.zeros(1, 80, 90, dtype=torch.int64))
    return dict(inputs=inputs, data_samples=samples)


@pytest.mark.parametrize('mode', [dict(mode='whole'), dict(mode='slide', crop_size=(32, 40), stride=(20, 27))], ids=str)
def test_time_augmentation(mode):
    mesa, stock = models(test_cfg=mode)
    for model in (mesa, stock):
        model.decode_head.conv_seg.weight.data.mul_(0.01)  # images of 0 to 255: softmax would be 0 and 1
    with torch.no_grad():
        found = MODELS.build(dict(type='MesaSegTTAModel', module=mesa)).test_step(tta_batch())
        expected = MODELS.build(dict(type='SegTTAModel', module=stock)).test_step(tta_batch())
        kept = MODELS.build(dict(type='MesaSegTTAModel', module=stock)).test_step(tta_batch())
    labels = [result[0].pred_sem_seg.data for result in (found, expected, kept)]
    assert labels[0].shape == (1, 80, 90) and len(labels[0].unique()) > 1
    assert (labels[0] == labels[1]).float().mean() > 0.999
    assert torch.equal(labels[1], labels[2].view_as(labels[1]))
    assert 'gt_sem_seg' in found[0] and 'seg_logits' not in found[0] and not hasattr(found[0], 'resized_logits')
