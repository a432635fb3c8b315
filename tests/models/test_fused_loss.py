"""A head with the mixin against the stock head: losses, accuracy, gradients, and when it stands back."""
import pytest
import torch
from mmengine.structures import PixelData

from mesa_seg import compat

compat.prepare()

from mmseg.models.decode_heads import FCNHead  # noqa: E402
from mmseg.structures import SegDataSample  # noqa: E402

from mesa_seg.models.decode_heads import fused_loss  # noqa: E402

CLASSES = 5
CE = 'CrossEntropyLoss'


class FusedFCNHead(fused_loss.FusedLossMixin, FCNHead):
    pass


def make(head_class, **settings):
    return head_class(in_channels=4, channels=4, num_classes=CLASSES, **settings)


def samples(labels):
    return [SegDataSample(gt_sem_seg=PixelData(data=label[None])) for label in labels]


def losses(head, logits, labels):
    """Loss dictionary and gradient of logits."""
    logits = logits.clone().requires_grad_()
    found = head.loss_by_feat(logits, samples(labels))
    total = sum(value.sum() for name, value in found.items() if name.startswith('loss'))
    return found, torch.autograd.grad(total, logits)[0]


def data(ignore_index=255, ignored=0.2):
    torch.manual_seed(0)
    logits = torch.randn(2, CLASSES, 7, 6) * 3
    labels = torch.randint(0, CLASSES, (2, 21, 17))
    labels[torch.rand(labels.shape) < ignored] = ignore_index
    return logits, labels


@pytest.fixture
def fused_calls(monkeypatch):
    """Times that the fused path was taken."""
    calls = []
    original = fused_loss.cross_entropy_with_accuracy

    def counted(*args, **kwargs):
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(fused_loss, 'cross_entropy_with_accuracy', counted)
    return calls


@pytest.mark.parametrize('settings', [
    dict(),
    dict(align_corners=True),
    dict(loss_decode=dict(type=CE, loss_weight=0.4, loss_name='loss_aux')),
    dict(loss_decode=[dict(type=CE, avg_non_ignore=True)]),
    dict(loss_decode=dict(type='MesaCrossEntropyLoss', avg_non_ignore=True)),
    dict(loss_decode=dict(type=CE, reduction='none')),
    dict(loss_decode=dict(type=CE, reduction='sum')),
    dict(loss_decode=dict(type=CE, class_weight=[0.5, 1, 2, 3, 0.1]), ignore_index=3),
    dict(loss_decode=dict(type=CE, class_weight=[0.5, 1, 2, 3, 0.1]), ignore_index=-1),
    dict(loss_decode=dict(type=CE, class_weight=[0.5, 1, 2, 3, 0.1], avg_non_ignore=True), ignore_index=-2),
    dict(sampler=dict(type='OHEMPixelSampler', thresh=0.3, min_kept=50)),
    dict(sampler=dict(type='OHEMPixelSampler', thresh=0.3, min_kept=100000)),
    dict(sampler=dict(type='OHEMPixelSampler', min_kept=50),
         loss_decode=dict(type=CE, class_weight=[0.5, 1, 2, 3, 0.1]), ignore_index=0),
], ids=str)
@pytest.mark.parametrize('ignored', [0.2, 1.0])
def test_equals_stock_head(settings, ignored, fused_calls):
    logits, labels = data(settings.get('ignore_index', 255), ignored)
    stock, stock_gradient = losses(make(FCNHead, **{**settings, **(
        dict(loss_decode=dict(type=CE, avg_non_ignore=True)) if 'Mesa' in str(settings) else {})}), logits, labels)
    fused, gradient = losses(make(FusedFCNHead, **settings), logits, labels)
    assert fused_calls
    assert list(fused) == list(stock)
    for name in stock:
        assert fused[name].shape == stock[name].shape
        torch.testing.assert_close(fused[name], stock[name], rtol=2e-6, atol=4e-6)
    largest = stock_gradient.abs().max().item()
    torch.testing.assert_close(gradient, stock_gradient, rtol=1e-5, atol=2e-6 * max(1e-9, largest))


@pytest.mark.parametrize('settings, reason', [
    (dict(loss_decode=[dict(type=CE), dict(type='DiceLoss')]), 'the head has 2 losses (CrossEntropyLoss, DiceLoss)'),
    (dict(loss_decode=dict(type=CE, use_sigmoid=True)), 'use_sigmoid=True'),
    (dict(loss_decode=dict(type='DiceLoss')), 'DiceLoss is not a softmax cross-entropy'),
])
def test_other_losses_take_the_stock_path_and_say_so_once(settings, reason, fused_calls, monkeypatch):
    lines = []
    monkeypatch.setattr(fused_loss, 'print_log', lambda line, **kwargs: lines.append(line))
    logits, labels = data(ignored=0)
    head = make(FusedFCNHead, **settings)
    for _ in range(2):
        found = losses(head, logits, labels)
    expected = losses(make(FCNHead, **settings), logits, labels)
    assert not fused_calls and len(lines) == 1 and reason in lines[0]
    assert all(torch.equal(found[0][name], expected[0][name]) for name in expected[0])
    assert torch.equal(found[1], expected[1])


def test_head_with_its_own_loss_keeps_it(fused_calls):
    class OwnLoss(FCNHead):
        def loss_by_feat(self, seg_logits, batch_data_samples):
            return dict(loss_own=seg_logits.sum())

    class Fused(fused_loss.FusedLossMixin, OwnLoss):
        pass

    logits, labels = data()
    assert make(Fused).loss_by_feat(logits, samples(labels)) == dict(loss_own=logits.sum())
    assert not fused_calls


def test_disabled_is_bit_identical(fused_calls):
    logits, labels = data()
    head = make(FusedFCNHead)
    head.mesa_enabled = False
    found, expected = losses(head, logits, labels), losses(make(FCNHead), logits, labels)
    assert not fused_calls
    assert all(torch.equal(found[0][name], expected[0][name]) for name in expected[0])
    assert torch.equal(found[1], expected[1])


def test_keeps_no_more_than_the_low_resolution_logits(fused_calls):
    logits, labels = data()
    logits.requires_grad_()
    kept = []

    def pack(tensor):
        kept.append(tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        make(FusedFCNHead).loss_by_feat(logits, samples(labels))
    assert fused_calls and sum(size for size in kept if size > 64) <= logits.numel() * 4
