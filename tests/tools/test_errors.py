"""A mistake ends in one sentence that says how to go on."""
import os
import subprocess
import sys

import pytest

from .conftest import ROOT, options

STOCK = str(ROOT / 'configs' / 'upernet_swin_t_ade20k.py')
MESA = str(ROOT / 'configs' / 'upernet_mesa_swin_t_ade20k.py')


@pytest.fixture
def sentence(tool, capsys):
    """Run a tool that must fail; its one line on stderr."""

    def run(name, *argv):
        from mesa_seg.engine.errors import run
        with pytest.raises(SystemExit) as stop:
            run(lambda: tool(name).main(list(argv)))
        assert stop.value.code == 1
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert line.startswith('error: ')
        return line

    return run


def test_as_a_user_sees_it(tmp_path):
    done = subprocess.run([sys.executable, str(ROOT / 'tools' / 'train.py'), STOCK, '--work-dir', str(tmp_path)],
                          cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and 'Traceback' not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith('error: The data set ADE20KDataset is not there')


def test_no_data(sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = sentence('train', STOCK)
    folder = tmp_path / 'data' / 'ade' / 'ADEChallengeData2016' / 'images' / 'training'
    assert str(folder) in line and 'http://sceneparsing.csail.mit.edu' in line
    assert 'python tools/make_toy_dataset.py data/ade/ADEChallengeData2016' in line
    folder.mkdir(parents=True)
    assert 'holds no *.jpg file' in sentence('train', STOCK)
    (tmp_path / 'weights.pth').touch()
    assert 'images/validation' in sentence('test', STOCK, 'weights.pth')


def test_image_without_label_map(sentence, toy, tmp_path):
    for part in ('images', 'annotations'):
        (tmp_path / part).mkdir()
        for split in ('training', 'validation'):
            (tmp_path / part / split).mkdir()
            for path in os.listdir(os.path.join(toy, part, split)):
                os.symlink(os.path.join(toy, part, split, path), tmp_path / part / split / path)
    (tmp_path / 'annotations' / 'training' / 'toy_training_00003.png').unlink()
    line = sentence('train', STOCK, '--work-dir', str(tmp_path / 'work'), *options(data_root=tmp_path))
    assert '1 of the 6 images' in line and 'toy_training_00003.png' in line


@pytest.mark.parametrize('arguments', [['--resume', 'no/iter_9.pth'], ['--cfg-options', 'load_from=no/iter_9.pth']])
def test_no_checkpoint_to_train_from(sentence, tmp_path, arguments):
    assert os.path.abspath('no/iter_9.pth') in sentence('train', STOCK, '--work-dir', str(tmp_path), *arguments)


def test_no_checkpoint_to_test(sentence, tmp_path):
    (tmp_path / 'iter_1.pth').touch()
    line = sentence('test', STOCK, str(tmp_path / 'iter_9.pth'))
    assert 'iter_9.pth' in line and 'holds iter_1.pth' in line


def test_no_pretrained_weights(sentence, toy, tmp_path):
    small = [option for option in options(data_root=toy) if 'init_cfg' not in option]
    line = sentence('train', STOCK, '--work-dir', str(tmp_path), *small, 'model.backbone.init_cfg.checkpoint=no.pth')
    assert 'no.pth' in line and 'model.backbone.init_cfg=None' in line


def test_no_network_for_pretrained_weights(sentence, toy, tmp_path, monkeypatch):
    from urllib.error import URLError

    import torch.hub

    def refuse(*args, **kwargs):
        raise URLError('no network')

    monkeypatch.setattr(torch.hub, 'download_url_to_file', refuse)
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    small = [option for option in options(data_root=toy) if 'init_cfg' not in option]
    line = sentence('train', STOCK, '--work-dir', str(tmp_path), *small)
    assert 'swin_tiny_patch4_window7_224' in line and 'no network' in line and 'model.backbone.init_cfg=None' in line


@pytest.mark.parametrize('option, wanted', [
    ('modle.backbone.depths=[1]', '`model`'),
    ('train_cfg.max_itres=3', '`max_itres`'),
    ('model.backbone.dpeths=[1]', '`dpeths`'),
    ('model.backbnoe.depths=[1]', '`backbnoe`'),
    ('model.test_cfg.stirde=3', 'did you mean `stride`'),
    ('optim_wrapper.paramwise_cfg.custom_key=1', 'did you mean `custom_keys`'),
    ('env_cfg.cudnn=True', '`cudnn`'),
    ('param_scheduler.7.end=3', 'not one of 0..1'),
    ('model.backbone.embed_dims.x=3', '`model.backbone.embed_dims` is 32, which has no keys'),
    ('model.backbone.type=SwinTransfomer', '`SwinTransfomer`, which does not exist'),
    ('train_dataloader.bath_size=3', '`bath_size`'),
])
def test_key_that_does_not_exist(sentence, toy, tmp_path, option, wanted):
    line = sentence('train', STOCK, '--work-dir', str(tmp_path), *options(data_root=toy), option)
    assert wanted in line, line


def test_bad_mesa_key(sentence, toy, tmp_path):
    line = sentence('train', MESA, '--work-dir', str(tmp_path), *options(data_root=toy), 'mesa.bitz=4')
    assert 'bitz' in line
    line = sentence('train', MESA, '--work-dir', str(tmp_path), *options(data_root=toy), 'mesa.bits=5')
    assert 'bits' in line and '5' in line


@pytest.mark.parametrize('place', ['file/work', '/proc/nothing/work'])
def test_unwritable_work_dir(sentence, toy, tmp_path, place):
    (tmp_path / 'file').touch()
    line = sentence('train', STOCK, '--work-dir', os.path.join(tmp_path, place), *options(data_root=toy))
    assert os.path.join(tmp_path, place) in line and '--work-dir' in line


def test_one_image_a_step(sentence, toy, tmp_path):
    line = sentence('train', STOCK, '--work-dir', str(tmp_path), *options(data_root=toy), 'train_dataloader.batch_size=1')
    assert 'train_dataloader.batch_size=1' in line and '2 or more' in line


def test_config_files(sentence, tmp_path):
    assert str(tmp_path / 'none.py') in sentence('train', str(tmp_path / 'none.py'))
    broken = tmp_path / 'broken.py'
    broken.write_text('model = dict(')
    assert 'not valid Python' in sentence('train', str(broken))
    broken.write_text(f'_base_ = {STOCK!r}\nmodel = dict(backbone=nothing)')
    assert 'nothing' in sentence('train', str(broken))
    broken.write_text(f'_base_ = {STOCK!r}\ncustom_imports = dict(imports=["no_such_package"])')
    assert "No module named 'no_such_package'" in sentence('train', str(broken))


def test_packages_that_only_some_configs_need():
    from mesa_seg.engine.errors import UserError, explained
    with pytest.raises(UserError, match="No module named 'mmdet'; `pip install "), explained():
        failed = ImportError("Failed to import custom modules from {'imports': 'mmdet.models'}")
        raise failed from ModuleNotFoundError("No module named 'mmdet'", name='mmdet')
    # mmseg's heads stand on mmengine's BaseModule where they cannot have mmdet's
    with pytest.raises(UserError, match='one of mmdet.* `pip install '), explained():
        raise TypeError("class `Mask2FormerHead` in mmseg/models/decode_heads/mask2former_head.py: BaseModule.__init__() got "
                        "an unexpected keyword argument 'in_channels'")
    with pytest.raises(UserError, match='BaseModule has no argument `chanels`'), explained():
        raise TypeError("class `MyHead` in my/head.py: BaseModule.__init__() got an unexpected keyword argument 'chanels'")


def test_launcher_without_its_environment(sentence, monkeypatch):
    for name in ('RANK', 'WORLD_SIZE', 'SLURM_PROCID'):
        monkeypatch.delenv(name, raising=False)
    assert 'torchrun' in sentence('train', STOCK, '--launcher', 'pytorch')
    assert 'srun' in sentence('train', STOCK, '--launcher', 'slurm')
