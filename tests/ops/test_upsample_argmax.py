"""Labels against argmax of maps that are really resized."""
import pytest
import torch
import torch.nn.functional as F

from mesa_seg.ops import upsample_argmax
from mesa_seg.reference.upsample import bilinear_taps, chain_taps, merge_taps


def resize(logits, size, align_corners=False):
    return F.interpolate(logits[None].double(), size, mode='bilinear', align_corners=align_corners)[0]


def assert_labels(labels, full):
    """Equal to argmax, but where the two classes differ by float32 rounding of the largest logit."""
    assert labels.dtype == torch.int64 and labels.shape == full.shape[1:]
    peak, expected = full.max(0)
    gap = peak - full.gather(0, labels[None])[0]
    assert (gap <= 2e-5 * full.abs().max()).all()
    assert (labels == expected).float().mean() > 0.999


def one(logits, rows, columns, **settings):
    return upsample_argmax([logits], [rows[0]], [rows[1]], [columns[0]], [columns[1]], **settings)


def two_steps(size, middle, low, align_corners, flip=False):
    outer = bilinear_taps(size, middle, align_corners)
    if flip:
        outer = (middle - 1 - outer[0], outer[1])
    return merge_taps(*chain_taps(outer, bilinear_taps(middle, low, align_corners)))


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize('low, middle, size', [
    ((8, 9), (32, 36), (32, 36)), ((8, 9), (32, 36), (47, 80)), ((8, 9), (32, 36), (21, 13)), ((8, 9), (5, 4), (90, 70)),
    ((1, 1), (4, 4), (1, 3)), ((20, 30), (80, 120), (7, 6)),
])
def test_two_resizes(low, middle, size, align_corners):
    torch.manual_seed(0)
    logits = torch.randn(21, *low)
    rows, columns = [two_steps(*sizes, align_corners) for sizes in zip(size, middle, low, strict=True)]
    full = resize(resize(logits, middle, align_corners).float(), size, align_corners)
    assert_labels(one(logits, rows, columns), full)


def test_flip_and_crop():
    torch.manual_seed(0)
    logits = torch.randn(5, 8, 9)
    full = resize(resize(logits, (32, 36)).float()[:, 3:30, 1:].flip(2), (40, 50))
    rows, columns = bilinear_taps(40, 27, False), bilinear_taps(50, 35, False)
    rows, columns = (rows[0] + 3, rows[1]), (36 - 1 - columns[0], columns[1])
    rows, columns = [merge_taps(*chain_taps(taps, bilinear_taps(4 * low, low, False)))
                     for taps, low in ((rows, 8), (columns, 9))]
    assert_labels(one(logits, rows, columns), full)


@pytest.mark.parametrize('classes', [1, 2, 16, 17, 150, 300])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16])
def test_classes_dtypes_and_strides(classes, dtype):
    torch.manual_seed(0)
    logits = torch.randn(7, 6, classes).to(dtype).permute(2, 0, 1)
    rows, columns = two_steps(70, 28, 7, False), two_steps(131, 24, 6, False)
    assert_labels(one(logits, rows, columns), resize(resize(logits, (28, 24)).float(), (70, 131)))


@pytest.mark.parametrize('softmax', [False, True])
def test_several_maps_are_added(softmax):
    torch.manual_seed(0)
    maps = [torch.randn(13, 8, 9) * 3, torch.randn(13, 12, 10) * 3]
    taps = [[two_steps(size, 4 * low, low, False) for size, low in zip((50, 71), image.shape[1:], strict=True)]
            for image in maps]
    full = [resize(resize(image, (image.shape[1] * 4, image.shape[2] * 4)).float(), (50, 71)) for image in maps]
    full = sum(image.softmax(0) if softmax else image for image in full)
    labels = upsample_argmax(maps, *[[axes[axis][part] for axes in taps] for axis in (0, 1) for part in (0, 1)], softmax)
    assert_labels(labels, full)


def test_equal_values_give_the_lowest_class():
    logits = torch.zeros(40, 2, 2)
    logits[[3, 20, 39]] = 1
    assert (one(logits, bilinear_taps_int(5, 2), bilinear_taps_int(5, 2)) == 3).all()


def bilinear_taps_int(size, low):
    return merge_taps(*bilinear_taps(size, low, False))


def test_does_not_depend_on_threads():
    torch.manual_seed(0)
    logits, threads = torch.randn(20, 30, 30).half(), torch.get_num_threads()
    taps = bilinear_taps_int(120, 30)
    try:
        found = []
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(one(logits, taps, taps))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


def test_merged_taps_are_sorted_and_unique():
    index, weight = merge_taps(torch.tensor([[3, 2, 3, 9], [5, 5, 5, 5]]), torch.tensor([[0.1, 0.2, 0.3, 0], [0.25] * 4]))
    assert index.tolist() == [[2, 3], [5, 0]]
    torch.testing.assert_close(weight, torch.tensor([[0.2, 0.4], [1, 0]]))


def test_wrong_arguments_are_named():
    logits, taps = torch.zeros(3, 4, 4), bilinear_taps_int(8, 4)
    for name, arguments in (
            ('logits', (torch.zeros(4, 4), taps, taps)), ('logits', (logits.double(), taps, taps)),
            ('row_index', (logits, (taps[0].long(), taps[1]), taps)),
            ('column_weight', (logits, taps, (taps[0], taps[1][:, :1])))):
        with pytest.raises(ValueError, match=rf'upsample_argmax: {name}\[0\] is'):
            one(*arguments)
    with pytest.raises((RuntimeError, IndexError)):
        one(logits, taps, (taps[0] + 1, taps[1]))


@pytest.mark.parametrize('softmax', [False, True])
def test_opcheck(softmax):
    logits, (index, weight) = torch.randn(5, 4, 4), bilinear_taps_int(9, 4)
    torch.library.opcheck(torch.ops.mesa_seg.upsample_argmax.default,
                          ([logits, logits * 2], *[[x, x] for x in (index, weight, index, weight)], softmax))
