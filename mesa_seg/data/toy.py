"""A small data set of drawn street scenes in ADE20K's layout and numbering, for demos and tests.

Labels are ADE20K SceneParsing's: 0 = other, 1..150 the classes. A scene is sky, hills, ground, houses, trees and so
on, each class with its own colour and texture, so that a network can learn it in a few dozen steps.
"""
import colorsys
import json
import os

import numpy as np
from PIL import Image, ImageDraw

CLASSES = 150
MARKER = 'toy.json'
SPLITS = ('training', 'validation')

# ADE20K number, base colour, and texture (speckle and stripes, in grey levels) of the classes that make up the scenes.
SCENE = {
    'sky': (3, (120, 180, 235), 3, 0),
    'mountain': (17, (120, 110, 130), 8, 6),
    'grass': (10, (95, 165, 70), 16, 0),
    'earth': (14, (160, 125, 85), 14, 0),
    'water': (22, (45, 95, 160), 4, 12),
    'road': (7, (90, 90, 95), 8, 0),
    'sidewalk': (12, (180, 175, 165), 5, 10),
    'building': (2, (190, 110, 85), 5, 14),
    'windowpane': (9, (50, 65, 90), 2, 0),
    'door': (15, (110, 60, 30), 4, 8),
    'tree': (5, (35, 95, 40), 26, 0),
    'car': (21, (215, 35, 45), 3, 0),
    'person': (13, (240, 200, 60), 6, 0),
}
_SCENE_LABELS = {label: (colour, speckle, stripe) for label, colour, speckle, stripe in SCENE.values()}


def looks(label):
    """Colour and texture of a class.

    Args:
        label (int): 0..150.

    Returns:
        tuple: ``(r, g, b)`` in 0..255, speckle and stripe strength in grey levels.
    """
    if label in _SCENE_LABELS:
        return _SCENE_LABELS[label]
    if label == 0:
        return (20, 20, 20), 0, 0
    hue = label * 0.618034 % 1  # steps of the golden ratio: neighbours in number are far apart in colour
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.55 + 0.4 * (label % 3) / 2, 0.45 + 0.5 * (label % 5) / 4)
    return (int(255 * red), int(255 * green), int(255 * blue)), 4 * (label % 4), 5 * (label % 7)


def _label_map(rng, width, height, classes):
    """The label map of one scene: things are drawn from far to near, each with its label as its colour."""
    canvas = Image.new('L', (width, height), SCENE['sky'][0])
    draw = ImageDraw.Draw(canvas)

    def between(low, high):
        return float(rng.uniform(low, high))

    horizon = int(height * between(0.4, 0.6))
    if rng.random() < 0.6:
        peaks = [(x, horizon - height * between(0.05, 0.25)) for x in np.linspace(0, width, int(rng.integers(3, 6)))]
        draw.polygon([(0, horizon), *peaks, (width, horizon)], fill=SCENE['mountain'][0])
    ground = str(rng.choice(['grass', 'grass', 'earth', 'water']))
    draw.rectangle([0, horizon, width, height], fill=SCENE[ground][0])

    for _ in range(int(rng.integers(1, 4))):
        wide, tall = width * between(0.12, 0.3), height * between(0.2, 0.42)
        left, bottom = between(-0.1, 0.95) * width, horizon + height * between(0.01, 0.06)
        draw.rectangle([left, bottom - tall, left + wide, bottom], fill=SCENE['building'][0])
        pane = wide / 7
        for row in range(max(1, int(tall / (pane * 2.2)) - 1)):
            for column in range(3):
                x, y = left + pane * (1 + 2 * column), bottom - tall + pane * (0.8 + 2.2 * row)
                draw.rectangle([x, y, x + pane, y + 1.3 * pane], fill=SCENE['windowpane'][0])
        middle = left + wide / 2
        draw.rectangle([middle - pane / 2, bottom - 1.8 * pane, middle + pane / 2, bottom], fill=SCENE['door'][0])
    for _ in range(int(rng.integers(0, 5))):
        x, base, size = between(0, width), horizon + height * between(0.0, 0.12), height * between(0.07, 0.15)
        draw.rectangle([x - size / 7, base - size, x + size / 7, base], fill=SCENE['tree'][0])
        draw.ellipse([x - size, base - 3 * size, x + size, base - 0.7 * size], fill=SCENE['tree'][0])

    top, low = horizon + height * between(0.12, 0.2), horizon + height * between(0.3, 0.4)
    if rng.random() < 0.8:
        kerb = height * 0.04
        draw.rectangle([0, top - kerb, width, low + kerb], fill=SCENE['sidewalk'][0])
        draw.rectangle([0, top, width, low], fill=SCENE['road'][0])
        for _ in range(int(rng.integers(0, 3))):
            x, y, size = between(0, width), between(top, low), height * between(0.05, 0.09)
            draw.rounded_rectangle([x - 2 * size, y - size, x + 2 * size, y + size / 2], size / 3, fill=SCENE['car'][0])
            draw.rectangle([x - size, y - 1.7 * size, x + size, y - size], fill=SCENE['car'][0])
            for wheel in (-1.2, 1.2):
                left, right = x + size * (wheel - 0.35), x + size * (wheel + 0.35)
                draw.ellipse([left, y + 0.2 * size, right, y + 0.9 * size], fill=0)
    for _ in range(int(rng.integers(0, 4))):
        x, y, size = between(0, width), between(low, height), height * between(0.03, 0.06)
        draw.ellipse([x - size / 2, y - 4 * size, x + size / 2, y - 3 * size], fill=SCENE['person'][0])
        draw.rectangle([x - 0.7 * size, y - 3 * size, x + 0.7 * size, y], fill=SCENE['person'][0])

    others = [label for label in range(1, CLASSES + 1) if label not in _SCENE_LABELS][:max(0, classes - len(SCENE))]
    for label in rng.choice(others, size=min(len(others), int(rng.integers(2, 6))), replace=False) if others else ():
        x, y, size = between(0, width), between(0, height), height * between(0.04, 0.09)
        box = [x - size, y - size, x + size, y + size]
        if label % 2:
            draw.ellipse(box, fill=int(label))
        else:
            draw.rectangle(box, fill=int(label))
    return np.array(canvas)


def draw_scene(seed, width=256, height=192, classes=CLASSES):
    """Draw one scene.

    Args:
        seed (int or sequence of int): the scene is a function of it and of the other arguments.
        width, height (int): pixels.
        classes (int): how many of the 150 classes may appear; 13 make up the scene, the others are small objects.

    Returns:
        tuple: image uint8 [height, width, 3] (RGB) and label map uint8 [height, width].
    """
    rng = np.random.default_rng(seed)
    labels = _label_map(rng, width, height, classes)
    table = np.zeros((CLASSES + 1, 5), np.float32)
    for label in range(CLASSES + 1):
        colour, speckle, stripe = looks(label)
        table[label] = (*colour, speckle, stripe)
    painted = table[labels]
    rows, columns = np.mgrid[:height, :width]
    stripes = np.sign(np.sin((rows + 0.5 * (labels % 2) * columns) * (0.6 + 0.1 * (labels % 4))))
    texture = painted[..., 3] * rng.standard_normal((height, width)) + painted[..., 4] * stripes
    sky = labels == SCENE['sky'][0]
    texture[sky] += np.linspace(-25, 20, height)[rows[sky]]
    image = painted[..., :3] + texture[..., None]
    image = image * rng.uniform(0.8, 1.15) + rng.uniform(-12, 12, size=3) + 3 * rng.standard_normal(image.shape)
    return image.clip(0, 255).astype(np.uint8), labels


def write_dataset(folder, train=80, val=20, width=256, height=192, classes=CLASSES, seed=0):
    """Write a data set: ``images/{training,validation}/*.jpg`` and ``annotations/{training,validation}/*.png``.

    Args:
        folder (str): made where it is absent. One that holds anything but a toy data set is refused.
        train, val (int): how many scenes in each split.
        width, height, classes: see :func:`draw_scene`.
        seed (int): seed of the whole set.

    Returns:
        bool: False where the very same data set was there already.

    Raises:
        ValueError: an impossible number.
        FileExistsError: the folder holds other files.
    """
    for name, value, low, high in (('train', train, 1, 10**6), ('val', val, 1, 10**6), ('width', width, 32, 4096),
                                   ('height', height, 32, 4096), ('classes', classes, len(SCENE), CLASSES)):
        if not low <= value <= high:
            raise ValueError(f'{name} must be {low}..{high}, got {value}')
    marker = os.path.join(folder, MARKER)
    made = dict(train=train, val=val, width=width, height=height, classes=classes, seed=seed)
    if os.path.isfile(marker):
        with open(marker) as file:
            if json.load(file) == made:
                return False
        os.remove(marker)
        for split in SPLITS:
            for part in ('images', 'annotations'):
                where = os.path.join(folder, part, split)
                for name in os.listdir(where) if os.path.isdir(where) else ():
                    if name.startswith('toy_'):
                        os.remove(os.path.join(where, name))
    elif os.path.isdir(folder) and os.listdir(folder):
        raise FileExistsError(f'{folder} holds other files than a toy data set; name a new folder')
    for which, (split, count) in enumerate(zip(SPLITS, (train, val), strict=True)):
        for part in ('images', 'annotations'):
            os.makedirs(os.path.join(folder, part, split), exist_ok=True)
        for index in range(count):
            image, labels = draw_scene([seed, which, index], width, height, classes)
            name = f'toy_{split}_{index:05d}'
            Image.fromarray(image).save(os.path.join(folder, 'images', split, f'{name}.jpg'), quality=92)
            Image.fromarray(labels).save(os.path.join(folder, 'annotations', split, f'{name}.png'))
    with open(marker, 'w') as file:  # last: a set that was interrupted is drawn again
        json.dump(made, file)
    return True
