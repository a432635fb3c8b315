"""The fused loss as a user differentiates it: reductions, weights, dtypes, and what is kept for backward."""
import pytest
import torch
import torch.nn.functional as F

from mesa_seg.functional.upsample_cross_entropy import EPS, upsample_cross_entropy

CLASSES = 6


def data(dtype=torch.float32, ignore_index=255):
    torch.manual_seed(0)
    logits = (torch.randn(2, CLASSES, 5, 7) * 3).to(dtype).requires_grad_()
    labels = torch.randint(0, CLASSES, (2, 18, 16))
    labels[torch.rand(labels.shape) < 0.2] = ignore_index
    return logits, labels


def pixel_losses(logits, labels, class_weight=None, ignore_index=255, align_corners=False):
    full = F.interpolate(logits.float(), labels.shape[1:], mode='bilinear', align_corners=align_corners)
    return F.cross_entropy(full, labels, class_weight, ignore_index=ignore_index, reduction='none'), full


def assert_gradients(found, expected, logits, rtol=1e-5):
    found, expected = [torch.autograd.grad(loss, logits, torch.full_like(loss, 0.7))[0] for loss in (found, expected)]
    assert found.dtype == logits.dtype
    torch.testing.assert_close(found, expected, rtol=rtol, atol=rtol * expected.abs().max().item())


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('reduction', ['mean', 'sum', 'none'])
def test_reductions(reduction, weighted, align_corners):
    logits, labels = data()
    weight = torch.rand(labels.shape) if weighted else None
    class_weight = torch.rand(CLASSES) + 0.5 if weighted else None
    found, accuracy = upsample_cross_entropy(logits, labels, weight=weight, class_weight=class_weight, ignore_index=255,
                                             align_corners=align_corners, reduction=reduction, avg_non_ignore=True)
    expected, full = pixel_losses(logits, labels, class_weight, align_corners=align_corners)
    kept = labels != 255
    factor = class_weight[labels[kept]].sum() if weighted else kept.sum()
    expected = expected * weight if weighted else expected
    expected = dict(none=expected, sum=expected.sum(), mean=expected.sum() / factor)[reduction]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert_gradients(found, expected, logits)
    torch.testing.assert_close(accuracy, (full.argmax(1) == labels)[kept].float().mean()[None] * 100)


@pytest.mark.parametrize('shape', [(2, 18, 16), (2, 1, 16), (1, 1, 1)])
def test_pixel_weights_broadcast_and_may_need_a_gradient(shape):
    logits, labels = data()
    weight = torch.rand(shape, requires_grad=True)
    found, _ = upsample_cross_entropy(logits, labels, weight=weight, ignore_index=255)
    expected = (pixel_losses(logits, labels)[0] * weight).mean()
    torch.testing.assert_close(found, expected)
    assert_gradients(found, expected, weight)
    found, _ = upsample_cross_entropy(logits, labels, weight=weight.detach(), ignore_index=255)
    assert_gradients(found, (pixel_losses(logits, labels)[0] * weight).mean(), logits)


@pytest.mark.parametrize('avg_factor', [37, 2.5, torch.tensor(11.0)])
def test_avg_factor(avg_factor):
    logits, labels = data()
    found, _ = upsample_cross_entropy(logits, labels, ignore_index=255, avg_factor=avg_factor)
    torch.testing.assert_close(found, pixel_losses(logits, labels)[0].sum() / (avg_factor + EPS))
    with pytest.raises(ValueError, match='avg_factor'):
        upsample_cross_entropy(logits, labels, ignore_index=255, avg_factor=avg_factor, reduction='sum')


def test_unknown_reduction_is_named():
    with pytest.raises(ValueError, match="reduction is 'batchmean'"):
        upsample_cross_entropy(*data(), ignore_index=255, reduction='batchmean')


@pytest.mark.parametrize('reduction', ['mean', 'none'])
def test_all_pixels_ignored(reduction):
    logits, labels = data()
    loss, accuracy = upsample_cross_entropy(logits, torch.full_like(labels, 255), ignore_index=255, avg_non_ignore=True,
                                            reduction=reduction)
    assert not loss.any() and accuracy == 100  # mmseg's accuracy of no pixel
    assert not torch.autograd.grad(loss.sum(), logits)[0].any()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('reduction', ['mean', 'sum', 'none'])
def test_short_floats(dtype, reduction):
    logits, labels = data(dtype)
    found, _ = upsample_cross_entropy(logits, labels, ignore_index=255, reduction=reduction)
    expected = pixel_losses(logits, labels)[0]
    expected = dict(none=expected, sum=expected.sum(), mean=expected.mean())[reduction]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert_gradients(found, expected, logits, rtol=2e-3 if dtype == torch.float16 else 1.6e-2)


def test_float16_gradient_neither_overflows_nor_vanishes():
    logits, labels = data(torch.float16)
    for weight, scale in ((1e7, 1e-7), (1e-7, 1e7)):  # a loss scaler's backward brings it back into range
        loss, _ = upsample_cross_entropy(logits, labels, ignore_index=255, reduction='sum',
                                         weight=torch.full(labels.shape, weight))
        found, = torch.autograd.grad(loss * scale, logits)
        expected, = torch.autograd.grad(pixel_losses(logits, labels)[0].sum(), logits)
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)


def test_mean_over_many_pixels_in_float16():
    """The divisor is below float16's normal numbers; a loss scaler of 2 ** 16 makes up for it."""
    torch.manual_seed(0)
    logits = (torch.randn(1, 3, 40, 40) * 3).half().requires_grad_()
    labels = torch.randint(0, 3, (1, 640, 640))
    loss, _ = upsample_cross_entropy(logits, labels)
    assert_gradients(loss * 2.0 ** 16, pixel_losses(logits, labels)[0].mean() * 2.0 ** 16, logits, rtol=2e-3)


def test_under_autocast():
    logits, labels = data()
    conv = torch.nn.Conv2d(CLASSES, CLASSES, 1)
    with torch.autocast('cpu', torch.bfloat16):
        loss, _ = upsample_cross_entropy(conv(logits), labels, ignore_index=255)
    loss.backward()
    assert conv.weight.grad.dtype == torch.float32 and conv.weight.grad.any()


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize('reduction, bytes_a_pixel', [('mean', 0), ('sum', 0), ('none', 1)])
def test_what_is_kept_for_backward(dtype, reduction, bytes_a_pixel):
    logits, labels = data(dtype)
    kept = []

    def pack(tensor):
        kept.append(tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss, _ = upsample_cross_entropy(logits, labels, ignore_index=255, reduction=reduction)
    assert sum(kept) <= logits.numel() * logits.element_size() + bytes_a_pixel * labels.numel() + 32
    loss.sum().backward()


def test_backward_twice_and_shared_input():
    logits, labels = data()
    loss, _ = upsample_cross_entropy(logits, labels, ignore_index=255)
    first, = torch.autograd.grad(loss, logits, retain_graph=True)
    again, = torch.autograd.grad(loss, logits)
    assert torch.equal(first, again)


@pytest.mark.parametrize('reduction', ['mean', 'none'])
def test_second_derivative_is_refused(reduction):
    logits, labels = data()
    loss, _ = upsample_cross_entropy(logits, labels, ignore_index=255, reduction=reduction)
    gradient, = torch.autograd.grad(loss.sum(), logits, create_graph=True)
    with pytest.raises(RuntimeError, match='cannot be differentiated again'):
        gradient.sum().backward()


def test_without_gradient():
    logits, labels = data()
    with torch.no_grad():
        loss, _ = upsample_cross_entropy(logits, labels, ignore_index=255)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, pixel_losses(logits, labels)[0].mean())


def test_many_classes_need_two_bytes_a_pixel():
    torch.manual_seed(0)
    logits = torch.randn(1, 300, 3, 3, requires_grad=True)
    labels = torch.randint(-1, 300, (1, 9, 9))
    found, _ = upsample_cross_entropy(logits, labels, ignore_index=-1, reduction='none')
    assert_gradients(found, pixel_losses(logits, labels, ignore_index=-1)[0], logits)
