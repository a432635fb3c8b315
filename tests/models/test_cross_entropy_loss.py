"""MesaCrossEntropyLoss against mmseg's CrossEntropyLoss, in the cases that mmseg's own tests go through."""
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mesa_seg import compat

compat.prepare()

from mmseg.registry import MODELS  # noqa: E402

import mesa_seg.models.losses  # noqa: E402,F401

WEIGHTS = [1.0, 2.0, 0.5, 3.0, 0.1]


def build(**settings):
    return [MODELS.build(dict(type=name, **settings)) for name in ('MesaCrossEntropyLoss', 'CrossEntropyLoss')]


def pair(shape=(2, 5, 9, 8), ignored=0.2, ignore_index=255):
    torch.manual_seed(0)
    logits = (torch.randn(shape) * 3).requires_grad_()
    labels = torch.randint(0, shape[1], shape[:1] + shape[2:])
    labels[torch.rand(labels.shape) < ignored] = ignore_index
    return logits, labels


def assert_equal_losses(losses, logits, labels, **arguments):
    values = [loss(logits, labels, **arguments) for loss in losses]
    torch.testing.assert_close(*values, rtol=2e-6, atol=4e-6)
    gradients = [torch.autograd.grad(value.sum(), logits)[0] for value in values]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('shape', [(2, 5, 9, 8), (13, 5)])
@pytest.mark.parametrize('reduction', ['mean', 'sum', 'none'])
@pytest.mark.parametrize('settings', [dict(), dict(avg_non_ignore=True), dict(loss_weight=0.3)], ids=str)
def test_equals_mmseg(shape, reduction, settings):
    logits, labels = pair(shape)
    losses = build(reduction=reduction, **settings)
    assert_equal_losses(losses, logits, labels, ignore_index=255)
    assert_equal_losses(losses, logits, labels, ignore_index=255, weight=torch.rand(labels.shape))
    for other in ('mean', 'sum', 'none'):
        assert_equal_losses(losses, logits, labels, ignore_index=255, reduction_override=other)
    if reduction != 'sum':
        assert_equal_losses(losses, logits, labels, ignore_index=255, avg_factor=10)


@pytest.mark.parametrize('shape', [(2, 5, 9, 8), (13, 5)])
@pytest.mark.parametrize('avg_non_ignore', [False, True])
@pytest.mark.parametrize('ignore_index', [0, 4, -1])
def test_class_weights_and_ignored_pixels(shape, avg_non_ignore, ignore_index):
    logits, labels = pair(shape, ignore_index=ignore_index)
    losses = build(class_weight=WEIGHTS, avg_non_ignore=avg_non_ignore)
    assert_equal_losses(losses, logits, labels, ignore_index=ignore_index)


def test_class_weights_with_an_ignored_label_outside_the_classes():
    """mmseg raises IndexError there; an ignored pixel counts for nothing here."""
    logits, labels = pair()
    found = build(class_weight=WEIGHTS)[0](logits, labels, ignore_index=255)
    torch.testing.assert_close(found, F.cross_entropy(logits, labels, torch.tensor(WEIGHTS), ignore_index=255))


@pytest.mark.parametrize('ending', ['npy', 'json'])
def test_class_weights_from_a_file(tmp_path, ending):
    path = tmp_path / f'weights.{ending}'
    if ending == 'npy':
        np.save(path, np.array(WEIGHTS))
    else:
        path.write_text(json.dumps(WEIGHTS))
    logits, labels = pair(ignored=0)
    assert_equal_losses(build(class_weight=str(path)), logits, labels)


def test_resizes_logits_to_the_labels():
    logits, labels = pair()
    labels = labels.repeat_interleave(3, 1).repeat_interleave(2, 2)
    ours, stock = build()
    for align_corners in (False, True):
        full = F.interpolate(logits, labels.shape[1:], mode='bilinear', align_corners=align_corners)
        torch.testing.assert_close(ours(logits, labels, ignore_index=255, align_corners=align_corners),
                                   stock(full, labels, ignore_index=255))


def test_sigmoid_is_mmseg_s():
    logits, labels = pair()
    ours, stock = build(use_sigmoid=True)
    assert torch.equal(ours(logits, labels, ignore_index=255), stock(logits, labels, ignore_index=255))


def test_name_and_wrong_override():
    assert build(loss_name='loss_aux')[0].loss_name == 'loss_aux'
    with pytest.raises(ValueError, match="reduction_override is 'max'"):
        build()[0](*pair(), reduction_override='max')
