"""tools/train.py and tools/test.py, from the first step to the evaluated checkpoint."""
import json
import math
import os
import shutil
import subprocess
import sys

import pytest
import torch

from .conftest import ROOT, options

STOCK = str(ROOT / 'configs' / 'upernet_swin_t_ade20k.py')
MESA = str(ROOT / 'configs' / 'upernet_mesa_swin_t_ade20k.py')
SAMPLE = ROOT.parent / 'shared' / 'data' / 'ade20k_sample'

NO_VALIDATION = dict(val_cfg=None, val_dataloader=None, val_evaluator=None)


def scalars(work_dir):
    """The logged numbers of a run's latest start, one dict a line."""
    newest = max(work_dir.glob('*/vis_data/scalars.json'), key=os.path.getmtime)
    return [json.loads(line) for line in newest.read_text().splitlines()]


def losses(work_dir):
    return [line['loss'] for line in scalars(work_dir) if 'loss' in line]


def checkpoint(path):
    return torch.load(path, weights_only=False)


@pytest.fixture(scope='module', params=[STOCK, MESA], ids=['stock', 'mesa'])
def trained(request, tool, toy, tmp_path_factory):
    """A config and the work dir of two iterations of it."""
    work_dir = tmp_path_factory.mktemp('trained')
    tool('train').main([request.param, '--work-dir', str(work_dir), *options(data_root=toy)])
    return request.param, work_dir


def test_trains_and_validates(trained):
    _, work_dir = trained
    assert all(map(math.isfinite, losses(work_dir))) and len(losses(work_dir)) == 2
    assert any('mIoU' in line for line in scalars(work_dir)), 'validated'
    assert (work_dir / 'last_checkpoint').read_text().endswith('iter_2.pth')


def test_resumes(trained, tool, toy, tmp_path):
    config, work_dir = trained
    for name in ('iter_2.pth', 'last_checkpoint'):
        shutil.copy(work_dir / name, tmp_path)
    more = options(data_root=toy, train_cfg__max_iters=3, default_hooks__checkpoint__interval=3, **NO_VALIDATION)
    tool('train').main([config, '--work-dir', str(tmp_path), '--resume', *more])
    resumed = checkpoint(tmp_path / 'iter_3.pth')
    assert resumed['meta']['iter'] == 3 and len(losses(tmp_path)) == 1, 'went on from 2, did not start again'
    assert int(max(state['step'] for state in resumed['optimizer']['state'].values())) == 3, 'with its optimiser state'

    tool('train').main([config, '--work-dir', str(tmp_path / 'other'), '--resume', str(tmp_path / 'iter_2.pth'), *more])
    assert checkpoint(tmp_path / 'other' / 'iter_3.pth')['meta']['iter'] == 3


def test_tests(trained, tool, toy, tmp_path):
    config, work_dir = trained
    tool('test').main([config, str(work_dir / 'iter_2.pth'), '--work-dir', str(tmp_path), '--out', str(tmp_path / 'out'),
                       '--show-dir', str(tmp_path / 'pictures'), *options(data_root=toy)])
    assert 0 <= json.loads(next(tmp_path.glob('*/*.json')).read_text())['mIoU'] <= 100
    assert len(list((tmp_path / 'out').glob('*.png'))) == 2
    assert len(list((tmp_path / 'pictures' / 'vis_data' / 'vis_image').glob('*.png'))) == 2


def test_test_time_augmentation(trained, tool, toy, tmp_path):
    config, work_dir = trained
    tool('test').main([config, str(work_dir / 'iter_2.pth'), '--work-dir', str(tmp_path), '--tta',
                       *options(data_root=toy)])
    assert 0 <= json.loads(next(tmp_path.glob('*/*.json')).read_text())['mIoU'] <= 100


@pytest.mark.parametrize('config', [STOCK, MESA], ids=['stock', 'mesa'])
def test_amp_with_accumulation_and_checkpointing(tool, toy, tmp_path, config):
    tool('train').main([config, '--work-dir', str(tmp_path), '--amp',
                        *options(data_root=toy, optim_wrapper__accumulative_counts=2, model__backbone__with_cp=True,
                                 **NO_VALIDATION)])
    saved = checkpoint(tmp_path / 'iter_2.pth')
    assert all(map(math.isfinite, losses(tmp_path)))
    assert {int(state['step']) for state in saved['optimizer']['state'].values()} == {1}, 'one update for two iterations'
    floats = {value.dtype for value in saved['state_dict'].values() if value.is_floating_point()}
    assert floats == {torch.float32}, 'weights and statistics stay float32'


@pytest.mark.parametrize('config', [STOCK, MESA], ids=['stock', 'mesa'])
def test_two_processes_on_the_cpu(toy, tmp_path, config):
    port = 20000 + os.getpid() % 20000
    env = dict(os.environ, PYTHON=sys.executable, PORT=str(port), OMP_NUM_THREADS='1')
    done = subprocess.run([str(ROOT / 'tools' / 'dist_train.sh'), config, '2', '--work-dir', str(tmp_path),
                           *options(data_root=toy)], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert checkpoint(tmp_path / 'iter_2.pth')['meta']['iter'] == 2
    assert all(map(math.isfinite, losses(tmp_path)))
    tested = subprocess.run([str(ROOT / 'tools' / 'dist_test.sh'), config, str(tmp_path / 'iter_2.pth'), '2',
                             '--work-dir', str(tmp_path / 'test'), *options(data_root=toy)], env=env,
                            capture_output=True, text=True, timeout=600)
    assert tested.returncode == 0, tested.stderr[-3000:]
    assert 'mIoU' in json.loads(next((tmp_path / 'test').glob('*/*.json')).read_text())


@pytest.mark.skipif(not SAMPLE.is_dir(), reason='needs the three ADE20K images in ../shared/data/ade20k_sample')
def test_real_images(tool, tmp_path):
    where = dict(data_root=SAMPLE, train_dataloader__dataset__data_prefix__img_path='images/validation',
                 train_dataloader__dataset__data_prefix__seg_map_path='annotations/validation')
    tool('train').main([MESA, '--work-dir', str(tmp_path), *options(**where)])
    tool('train').main([MESA, '--work-dir', str(tmp_path), '--resume',
                        *options(**where, train_cfg__max_iters=4, **NO_VALIDATION)])
    assert checkpoint(tmp_path / 'iter_4.pth')['meta']['iter'] == 4
    tool('test').main([MESA, str(tmp_path / 'iter_4.pth'), '--work-dir', str(tmp_path / 'test'), *options(**where)])
    assert 'mIoU' in json.loads(next((tmp_path / 'test').glob('*/*.json')).read_text())
