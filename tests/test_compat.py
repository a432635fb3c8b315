"""mesa_seg.compat: which family is installed, and the shims that OpenMMLab's last releases need."""
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mesa_seg import compat

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def pretend(monkeypatch):
    """Pretend that these distributions, and no others, are installed."""

    def install(*names):
        def version(name):
            if name in names:
                return '1.0'
            raise compat.metadata.PackageNotFoundError(name)

        provided = {module for family in compat.DISTRIBUTIONS.values() for module, dists in family.items()
                    if set(dists) & set(names)}
        monkeypatch.setattr(compat.metadata, 'version', version)
        monkeypatch.setattr(compat.importlib.util, 'find_spec', lambda name: object() if name in provided else None)

    return install


def test_names_the_family(pretend):
    pretend('mmengine', 'mmcv-lite', 'mmsegmentation')
    assert compat.find_family() == 'openmmlab'
    pretend('onedl-mmengine', 'onedl-mmcv', 'onedl-mmsegmentation')
    assert compat.find_family() == 'onedl'


def test_no_family_says_what_to_install(pretend):
    pretend()
    with pytest.raises(ImportError) as error:
        compat.find_family()
    for wanted in ('mmengine, mmcv, mmseg', 'mmcv-lite==2.1.0', 'onedl-mmsegmentation'):
        assert wanted in str(error.value)


def test_half_a_family_names_what_is_missing(pretend):
    pretend('mmengine', 'mmsegmentation')
    with pytest.raises(ImportError, match='needs mmcv beside mmengine, mmsegmentation: `pip install mmcv-lite`'):
        compat.find_family()


def test_two_families_are_refused(pretend):
    pretend('mmengine', 'mmcv-lite', 'mmsegmentation', 'onedl-mmcv')
    with pytest.raises(ImportError, match='pip uninstall -y mmengine mmcv-lite mmsegmentation onedl-mmcv'):
        compat.find_family()


def run(code):
    return subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_mmseg_imports_after_prepare_and_shims_are_only_where_needed():
    done = run("""
import sys
from mesa_seg import compat
said = compat.prepare()
import mmseg.models, mmseg.datasets
from mmengine.utils.dl_utils import mmcv_full_available
print(said, compat.prepare() is said, mmcv_full_available(), 'mmcv._ext' in sys.modules)
""")
    assert done.returncode == 0, done.stderr
    if compat.find_family() == 'onedl':
        assert "'family': 'onedl', 'shims': []} True" in done.stdout
    elif compat.installed('openmmlab').keys() >= {'mmcv-lite'}:
        assert "'mmcv._ext', 'torch.load'" in done.stdout
        assert 'True False True' in done.stdout


def test_tool_without_mmseg_ends_in_a_sentence():
    done = run("""
import runpy, sys
sys.modules['mmseg'] = None
sys.argv = ['tools/train.py', 'configs/demo.py']
runpy.run_path('tools/train.py', run_name='__main__')
""")
    assert done.returncode == 1 and 'Traceback' not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith('error: mesa_seg needs mmseg')


@pytest.mark.skipif(compat.find_family() != 'openmmlab' or 'mmcv-lite' not in compat.installed('openmmlab'),
                    reason="only mmcv-lite of OpenMMLab's family needs the stub")
def test_stub_operator_raises_when_called():
    done = run("""
from mesa_seg import compat
compat.prepare()
import torch
from mmcv.ops import nms
nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
""")
    assert done.returncode != 0
    assert 'mmcv-lite is installed, which has none' in done.stderr


def test_checkpoint_with_objects_of_mmengine_loads(tmp_path):
    compat.prepare()
    import numpy as np
    from mmengine.logging import HistoryBuffer
    from mmengine.runner.checkpoint import CheckpointLoader
    path = tmp_path / 'iter_1.pth'
    torch.save(dict(state_dict=dict(w=torch.ones(2)), message_hub=HistoryBuffer(), seed=np.int64(3)), path)
    loaded = CheckpointLoader.load_checkpoint(str(path), map_location='cpu', logger='silent')
    assert isinstance(loaded['message_hub'], HistoryBuffer) and loaded['seed'] == 3
    with pytest.raises(FileNotFoundError, match='none.pth'):
        CheckpointLoader.load_checkpoint(str(tmp_path / 'none.pth'), logger='silent')


def test_find_loader_comes_back_where_python_removed_it(monkeypatch):
    monkeypatch.delattr(compat.pkgutil, 'find_loader', raising=False)
    assert compat._restore_find_loader()
    assert compat.pkgutil.find_loader('json') is importlib.util.find_spec('json').loader
    assert compat.pkgutil.find_loader('no_such_module_here') is None
    assert not compat._restore_find_loader()
