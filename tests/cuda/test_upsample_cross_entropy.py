"""The CUDA loss against the CPU operator."""
import pytest
import torch

from mesa_seg.ops import upsample_cross_entropy


def case(size, target, classes=5, batch=2, ignore_index=255):
    torch.manual_seed(0)
    logits = torch.randn(batch, classes, *size) * 3
    labels = torch.randint(0, classes, (batch, *target))
    labels[torch.rand(labels.shape) < 0.2] = ignore_index
    return logits, labels


def assert_equal_results(found, expected):
    for one, other in zip(found, expected, strict=True):
        largest = other.abs().max().item() if other.numel() else 0
        torch.testing.assert_close(one, other, rtol=1e-5, atol=max(1e-6, 2e-6 * largest))


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize('size, target', [
    ((4, 5), (16, 20)), ((9, 35), (20, 71)), ((3, 3), (3, 3)), ((11, 9), (4, 5)), ((1, 1), (3, 1100)), ((1, 4), (1, 9)),
    ((19, 3), (40, 2)),
])
def test_equals_cpu(device, size, target, align_corners, monkeypatch):
    logits, labels = case(size, target)
    factors = torch.rand(labels.shape), torch.rand(5)
    for weight, class_weight in ((None, None), factors):
        arguments = logits, labels, weight, class_weight, 255, align_corners, True, True
        expected = upsample_cross_entropy(*arguments)
        results = [device.call('upsample_cross_entropy', *arguments) for _ in device.orders(monkeypatch, 2)]
        assert_equal_results(results[0], expected)
        for other in results[1:]:
            assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


@pytest.mark.parametrize('size, target, classes', [
    ((2, 70), (3, 300), 150),    # more than shared memory holds at once, and than a warp's classes divide
    ((1, 2000), (2, 150), 6),    # rows whose sources it does not hold at all
    ((5, 6), (40, 50), 33),      # more output columns than a warp holds
])
def test_many(device, size, target, classes, monkeypatch):
    logits, labels = case(size, target, classes, batch=1)
    arguments = logits, labels, None, None, 255, False, True, True
    results = [device.call('upsample_cross_entropy', *arguments) for _ in device.orders(monkeypatch, 2)]
    assert_equal_results(results[0], upsample_cross_entropy(*arguments))
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('label', [torch.uint8, torch.int16, torch.int32])
def test_dtypes_and_strides(device, dtype, label):
    logits, labels = case((4, 5), (16, 20), classes=19)
    logits = logits.to(dtype).contiguous(memory_format=torch.channels_last)
    labels = labels.to(label).transpose(1, 2).contiguous().transpose(1, 2)
    arguments = logits, labels, None, None, 255, False, True, True
    assert_equal_results(device.call('upsample_cross_entropy', *arguments), upsample_cross_entropy(*arguments))


@pytest.mark.parametrize('pixel_loss, gradient', [(False, False), (True, False), (False, True)])
def test_only_what_is_wanted(device, pixel_loss, gradient, monkeypatch):
    device.limit_grid(monkeypatch, 2)
    logits, labels = case((19, 5), (37, 41), classes=35, batch=3)
    arguments = logits, labels, None, None, 255, False, pixel_loss, gradient
    assert_equal_results(device.call('upsample_cross_entropy', *arguments), upsample_cross_entropy(*arguments))


def test_wrong_label_empty_batch_and_equal_logits(device):
    logits, labels = case((4, 5), (16, 20))
    labels[1, 3, 7] = 77
    labels[1, 5, 0] = -5
    sums = device.call('upsample_cross_entropy', logits, labels, None, None, 255, False, False, False)[2]
    assert sums[:, 4].tolist() == [-1, 3 * 20 + 7]
    empty = device.call('upsample_cross_entropy', logits[:0], labels[:0], None, None, 255, False, True, True)
    assert [part.shape[0] for part in empty] == [0, 0, 0]
    logits = torch.zeros(1, 5, 2, 2)
    logits[:, [1, 3]] = 1
    for label, right in ((1, 16), (3, 0)):
        sums = device.call('upsample_cross_entropy', logits, torch.full((1, 4, 4), label), None, None, 255, False, False,
                           False)[2]
        assert sums[0, 2] == right
