"""Values, gradient, counts and errors against float64 arithmetic on full-size logits."""
import pytest
import torch
import torch.nn.functional as F

from mesa_seg.ops import KERNELS, upsample_cross_entropy
from mesa_seg.reference.upsample import bilinear_taps, tap_matrix

SIZES = [  # (h, w) of the logits, (H, W) of the labels
    ((8, 8), (32, 32)), ((5, 7), (19, 23)), ((4, 3), (64, 48)), ((6, 9), (6, 9)), ((12, 10), (5, 7)), ((9, 4), (4, 13)),
    ((1, 1), (6, 5)), ((1, 7), (1, 20)), ((7, 2), (1, 1)), ((37, 33), (101, 5)),
]


def assert_same(found, expected):
    """Bit for bit with the compiled kernel; the reference's matrix products promise less."""
    exact = dict(rtol=0, atol=0) if KERNELS['CPU'] == 'compiled' else dict(rtol=1e-5, atol=1e-5)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **exact)


def full_size(logits, size, align_corners):
    """float64 upsampled logits, with the float32 weights that torch's interpolate uses."""
    for axis, (out, dim) in enumerate(zip(size, (2, 3), strict=True)):
        count = logits.shape[dim]
        eye = torch.eye(count).view(1, count, count, 1)
        matrix = F.interpolate(eye, (out, 1), mode='bilinear', align_corners=align_corners)[0, :, :, 0].double()
        logits = torch.einsum('bchw,hy->bcyw' if axis == 0 else 'bchw,wx->bchx', logits, matrix)
    return logits


def oracle(logits, labels, weight, class_weight, ignore_index, align_corners):
    logits = logits.detach().double().requires_grad_()
    full = full_size(logits, labels.shape[1:], align_corners)
    kept = labels != ignore_index
    loss = F.cross_entropy(full, torch.where(kept, labels.long(), 0), reduction='none',
                           weight=None if class_weight is None else class_weight.double())
    loss = loss * kept * (1 if weight is None else weight.double())
    gradient, = torch.autograd.grad(loss.sum(), logits)
    each = torch.ones(labels.shape) if class_weight is None else class_weight[torch.where(kept, labels.long(), 0)]
    sums = [loss.flatten(1).sum(1), kept.flatten(1).sum(1), (kept & (full.argmax(1) == labels)).flatten(1).sum(1),
            (each.double() * kept).flatten(1).sum(1), torch.full([len(labels)], -1)]
    return loss.detach(), gradient, torch.stack([part.detach().double() for part in sums], 1)


def case(size, target, classes=7, batch=2, ignore_index=255, seed=0):
    torch.manual_seed(seed)
    logits = torch.randn(batch, classes, *size) * 4
    labels = torch.randint(0, classes, (batch, *target))
    labels[torch.rand(labels.shape) < 0.2] = ignore_index
    return logits, labels


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize('size, target', SIZES)
def test_equals_float64(size, target, align_corners):
    logits, labels = case(size, target)
    weight, class_weight = torch.rand(labels.shape), torch.rand(7) + 0.1
    for w, c in ((None, None), (weight, class_weight)):
        loss, gradient, sums = upsample_cross_entropy(logits, labels, w, c, 255, align_corners, True, True)
        expected = oracle(logits, labels, w, c, 255, align_corners)
        torch.testing.assert_close(loss.double(), expected[0], rtol=2e-6, atol=4e-6)
        largest = expected[1].abs().max().item()
        torch.testing.assert_close(gradient.double(), expected[1], rtol=2e-6, atol=3e-6 * largest)
        torch.testing.assert_close(sums, expected[2], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize('classes', [1, 2, 15, 16, 17, 150, 300])
def test_any_number_of_classes(classes):
    logits, labels = case((6, 5), (23, 21), classes, ignore_index=-1)
    loss, gradient, sums = upsample_cross_entropy(logits, labels, ignore_index=-1, pixel_loss=True, gradient=True)
    expected = oracle(logits, labels, None, None, -1, False)
    torch.testing.assert_close(loss.double(), expected[0], rtol=2e-6, atol=4e-6)
    torch.testing.assert_close(gradient.double(), expected[1], rtol=2e-6, atol=1e-5)
    torch.testing.assert_close(sums, expected[2], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize('align_corners', [False, True])
def test_taps_are_those_of_interpolate(align_corners):
    for count, out in ((64, 256), (16, 256), (37, 101), (13, 512), (100, 37), (7, 1), (1, 9), (128, 2047), (200, 199)):
        eye = torch.eye(count).view(1, count, count, 1)
        matrix = F.interpolate(eye, (out, 1), mode='bilinear', align_corners=align_corners)[0, :, :, 0]
        found = tap_matrix(*bilinear_taps(out, count, align_corners), count).T
        torch.testing.assert_close(found, matrix, rtol=0, atol=0)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_short_floats_are_computed_in_float32(dtype):
    logits, labels = case((5, 7), (20, 21))
    short = upsample_cross_entropy(logits.to(dtype), labels, ignore_index=255, pixel_loss=True, gradient=True)
    same = upsample_cross_entropy(logits.to(dtype).float(), labels, ignore_index=255, pixel_loss=True, gradient=True)
    assert_same(short, same)


@pytest.mark.parametrize('dtype', [torch.uint8, torch.int16, torch.int32])
def test_label_dtypes_and_strides(dtype):
    logits, labels = case((5, 7), (20, 21))
    expected = upsample_cross_entropy(logits, labels, ignore_index=255, pixel_loss=True, gradient=True)
    found = upsample_cross_entropy(logits.contiguous(memory_format=torch.channels_last),
                                   labels.to(dtype).transpose(1, 2).contiguous().transpose(1, 2),
                                   ignore_index=255, pixel_loss=True, gradient=True)
    assert_same(found, expected)


def test_does_not_depend_on_threads():
    logits, labels = case((23, 17), (92, 68), 20)
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(upsample_cross_entropy(logits, labels, ignore_index=255, pixel_loss=True, gradient=True))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert_same(other, found[0])


def test_equal_logits_are_compared_as_argmax_does():
    logits = torch.zeros(1, 40, 2, 2)
    logits[:, 3] = logits[:, 20] = 1
    for label, right in ((3, 16), (20, 0), (0, 0)):
        sums = upsample_cross_entropy(logits, torch.full((1, 4, 4), label))[2]
        assert sums[0, 2] == right


def test_large_logits_do_not_overflow():
    logits, labels = case((4, 4), (16, 16), 20)
    for scale in (1e4, 1e30):
        large = logits * scale
        loss, gradient, _ = upsample_cross_entropy(large, labels, ignore_index=255, pixel_loss=True, gradient=True)
        expected = oracle(large, labels, None, None, 255, False)
        torch.testing.assert_close(loss.double(), expected[0], rtol=2e-6, atol=2e-6 * scale)
        assert gradient.isfinite().all()


def test_nan_reaches_loss_and_gradient():
    logits, labels = case((4, 4), (16, 16), 20)
    logits[0, 19, 1, 1] = float('nan')
    loss, gradient, sums = upsample_cross_entropy(logits, labels.clamp(max=19), pixel_loss=True, gradient=True)
    stock = F.cross_entropy(F.interpolate(logits, (16, 16), mode='bilinear'), labels.clamp(max=19), reduction='none')
    assert torch.equal(loss.isnan(), stock.isnan())
    assert gradient[0, :, 1, 1].isnan().all() and not gradient[1].isnan().any()
    assert sums[0, 0].isnan() and not sums[1, 0].isnan()


def test_minus_infinity_is_a_class_that_cannot_be():
    logits, labels = case((4, 4), (16, 16), 20)
    logits[:, 19] = -float('inf')
    labels = labels.clamp(max=18)
    loss, gradient, _ = upsample_cross_entropy(logits, labels, pixel_loss=True, gradient=True)
    stock = F.cross_entropy(F.interpolate(logits, (16, 16), mode='bilinear'), labels, reduction='none')
    torch.testing.assert_close(loss, stock, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert torch.equal(gradient[:, 18].isnan(), gradient[:, 0].isnan())


def test_wrong_label_is_named_with_its_place():
    for value in (7, -3, 1 << 40):
        logits, labels = case((4, 4), (16, 12))
        labels[1, 5, 3] = value
        labels[1, 9, 0] = 99
        with pytest.raises(ValueError, match=rf'label {value} at image 1, row 5, column 3; expected 0 to 6, or 255'):
            upsample_cross_entropy(logits, labels, ignore_index=255)


@pytest.mark.parametrize('name, change', [
    ('logits', dict(logits=torch.zeros(2, 7, 4))),
    ('logits', dict(logits=torch.zeros(2, 7, 4, 4, dtype=torch.float64))),
    ('labels', dict(labels=torch.zeros(3, 8, 8, dtype=torch.int64))), ('labels', dict(labels=torch.zeros(2, 8, 8))),
    ('weight', dict(weight=torch.ones(2, 8, 9))), ('class_weight', dict(class_weight=torch.ones(6))),
])
def test_argument_that_does_not_fit_is_named(name, change):
    arguments = dict(logits=torch.zeros(2, 7, 4, 4), labels=torch.zeros(2, 8, 8, dtype=torch.int64))
    with pytest.raises(ValueError, match=rf'upsample_cross_entropy: {name} is '):
        upsample_cross_entropy(**{**arguments, **change})


def test_empty_batch_and_all_ignored():
    nothing = torch.zeros(0, 3, 2, 2), torch.zeros(0, 4, 4, dtype=torch.int64)
    loss, gradient, sums = upsample_cross_entropy(*nothing, None, None, 255, False, True, True)
    assert loss.shape == (0, 4, 4) and gradient.shape == (0, 3, 2, 2) and sums.shape == (0, 5)
    loss, gradient, sums = upsample_cross_entropy(torch.randn(1, 3, 2, 2), torch.full((1, 4, 4), 255), ignore_index=255,
                                                  pixel_loss=True, gradient=True)
    assert not loss.any() and not gradient.any() and sums.tolist() == [[0, 0, 0, 0, -1]]


@pytest.mark.parametrize('pixel_loss, gradient', [(True, True), (False, True), (True, False)])
def test_opcheck(pixel_loss, gradient):
    logits, labels = case((4, 4), (10, 12), 5)
    torch.library.opcheck(torch.ops.mesa_seg.upsample_cross_entropy.default,
                          (logits, labels, torch.rand(labels.shape), torch.rand(5), 255, False, pixel_loss, gradient))
