"""tools/make_toy_dataset.py: ADE20K's layout, the same scenes for the same seed, and something to learn."""
import numpy as np
import pytest
from PIL import Image

from mesa_seg.data.toy import draw_scene, write_dataset


def pixels(path):
    return np.asarray(Image.open(path))


def test_layout_and_labels(tool, tmp_path):
    folder = tmp_path / 'toy'
    assert tool('make_toy_dataset').main([str(folder), '--train', '40', '--val', '2', '--width', '96', '--height', '64']) == 0
    found = set()
    for split, count in (('training', 40), ('validation', 2)):
        images = sorted((folder / 'images' / split).glob('*.jpg'))
        assert len(images) == count
        for image in images:
            label = pixels(folder / 'annotations' / split / f'{image.stem}.png')
            assert label.dtype == np.uint8 and label.shape == (64, 96) and pixels(image).shape == (64, 96, 3)
            found |= set(np.unique(label))
    assert max(found) <= 150 and 0 in found and len(found) > 60, 'many of the 150 classes, and other'


def test_same_seed_same_scenes():
    for a, b in zip(draw_scene([3, 1], 96, 64), draw_scene([3, 1], 96, 64), strict=True):
        assert np.array_equal(a, b)
    assert not np.array_equal(draw_scene([3, 1], 96, 64)[0], draw_scene([3, 2], 96, 64)[0])


def test_drawn_once_and_again_when_asked_otherwise(tmp_path):
    folder = str(tmp_path)
    assert write_dataset(folder, train=2, val=1, width=64, height=48)
    assert not write_dataset(folder, train=2, val=1, width=64, height=48)
    assert write_dataset(folder, train=1, val=1, width=64, height=48)
    assert len(list((tmp_path / 'images' / 'training').iterdir())) == 1


def test_other_files_are_left_alone(tool, tmp_path, capsys):
    (tmp_path / 'mine.txt').touch()
    assert tool('make_toy_dataset').main([str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ['mine.txt']


@pytest.mark.parametrize('wrong', [dict(train=0), dict(classes=151), dict(classes=3), dict(width=8)])
def test_impossible_numbers_are_named(tmp_path, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        write_dataset(str(tmp_path / 'toy'), **wrong)


def test_a_pixel_tells_much_of_its_class():
    """The class of a pixel is the class with the nearest mean colour, more often than not: a network can only do better."""
    train = [draw_scene([0, i], 96, 64, classes=13) for i in range(30)]
    sums, counts = np.zeros((151, 3)), np.zeros(151)
    for image, label in train:
        for value in np.unique(label):
            sums[value] += image[label == value].sum(0)
            counts[value] += (label == value).sum()
    known = np.flatnonzero(counts)
    colours = sums[known] / counts[known, None]
    image, label = draw_scene([1, 0], 96, 64, classes=13)
    nearest = known[np.abs(image[:, :, None] - colours).sum(-1).argmin(-1)]
    assert (nearest == label).mean() > 0.5
