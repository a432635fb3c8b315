"""Draw a small data set in ADE20K's layout: ``python tools/make_toy_dataset.py [FOLDER]``."""
import argparse
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def _toy():
    """``mesa_seg/data/toy.py`` by its path: drawing needs numpy and Pillow, neither torch nor mmseg."""
    spec = importlib.util.spec_from_file_location('mesa_seg_toy', ROOT / 'mesa_seg' / 'data' / 'toy.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(argv=None):
    parser = argparse.ArgumentParser(description="Draw a small data set of street scenes in ADE20K's layout")
    parser.add_argument('folder', nargs='?', default='data/toy_ade20k', help='default %(default)s')
    parser.add_argument('--train', type=int, default=80, help='training images; default %(default)s')
    parser.add_argument('--val', type=int, default=20, help='validation images; default %(default)s')
    parser.add_argument('--width', type=int, default=256, help='pixels; default %(default)s')
    parser.add_argument('--height', type=int, default=192, help='pixels; default %(default)s')
    parser.add_argument('--classes', type=int, default=150,
                        help="how many of ADE20K's 150 classes appear, at least 13; default %(default)s")
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args(argv)
    try:
        new = _toy().write_dataset(**vars(args))
    except (ValueError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    print(f'{args.folder}: {"drew" if new else "already holds"} {args.train} training and {args.val} validation images, '
          f'{args.width} x {args.height}; use it by --cfg-options data_root={args.folder}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
