"""tools/demo.py, a few iterations of it."""
from PIL import Image

from .conftest import ROOT


def test_demo(tool, tmp_path, capsys):
    small = tmp_path / 'small.py'
    small.write_text(f'_base_ = {str(ROOT / "configs" / "demo.py")!r}\ncrop_size = (64, 64)\n'
                     'model = dict(data_preprocessor=dict(size=crop_size), backbone=dict(depths=[1, 1, 1, 1]),\n'
                     '    decode_head=dict(channels=32), auxiliary_head=dict(channels=32))\n')
    tool('demo').main(['--config', str(small), '--data', str(tmp_path / 'toy'), '--work-dir', str(tmp_path / 'work'),
                       '--iterations', '2', '--images', '2'])
    said = capsys.readouterr().out
    for wanted in ('iteration    2 of 2', 'pixel accuracy', 'outside the loss', 'predictions.png', 'iter_2.pth'):
        assert wanted in said
    width, height = Image.open(tmp_path / 'work' / 'predictions.png').size
    assert width == 3 * 256 and height > 2 * 192
    assert (tmp_path / 'work' / 'iter_2.pth').is_file()
