"""Where the operators come from: compiled modules, the reference where they are missing, and the warnings then."""
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mesa_seg import ops
from mesa_seg.ops import _library

ROOT = Path(__file__).resolve().parents[2]

# Only the operators: the package itself would bring mmseg along, which takes seconds.
ONLY_OPS = """
import pathlib, sys, types
# An editable installation would find the modules in the project folder.
sys.meta_path[:] = [finder for finder in sys.meta_path if 'editable' not in getattr(finder, '__module__', '')]
def stand_in(name):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [str(pathlib.Path(*name.split('.')).resolve())]
stand_in('mesa_seg')
"""

USE = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    import mesa_seg.ops as ops
import torch
for warning in caught:
    if 'mesa_seg' in str(warning.message):
        print('WARNING', warning.message)
x = torch.randn(10, 3, 8)
codes, ranges = ops.quantize(x, None, 8, 16, 0, True)
print(ops.KERNELS['CPU'], codes.shape, ops.pack_mask(x > 0).shape)
"""

ONE_MORE = """
stand_in('mesa_seg.ops')
from mesa_seg.ops import _library
del sys.modules['mesa_seg.ops']
_library.operator('newer(Tensor x) -> Tensor', reference=lambda x: x + 1, fake=lambda x: x.new_empty(x.shape))
"""


def run(folder, script):
    done = subprocess.run([sys.executable, '-c', ONLY_OPS + script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def copy_without_modules(folder):
    shutil.copytree(ROOT / 'mesa_seg', folder / 'mesa_seg', ignore=shutil.ignore_patterns('*.so', '__pycache__'))
    return folder


def test_without_a_module_the_reference_runs_with_one_warning(tmp_path):
    said = run(copy_without_modules(tmp_path), USE)
    warned = [line for line in said.splitlines() if line.startswith('WARNING')]
    assert len(warned) == 1 and 'plain-PyTorch' in warned[0] and 'pip install' in warned[0]
    assert 'reference torch.Size([240]) torch.Size([30])' in said


def test_a_module_that_cannot_be_loaded_counts_as_missing(tmp_path):
    (copy_without_modules(tmp_path) / 'mesa_seg' / '_C.abi3.so').write_bytes(b'not a library')
    warned = [line for line in run(tmp_path, USE).splitlines() if line.startswith('WARNING')]
    assert len(warned) == 1 and 'pip install' in warned[0]


def test_operators_that_the_module_lacks_are_named(compiled):
    """A module older than the Python files: the operators that it has are used, the others are named."""
    said = run(ROOT, ONE_MORE + USE + 'print(torch.ops.mesa_seg.newer(torch.zeros(2)).tolist())')
    warned = [line for line in said.splitlines() if line.startswith('WARNING')]
    assert len(warned) == 1 and 'newer' in warned[0] and 'older than the sources' in warned[0]
    assert 'compiled' in said and '[1.0, 1.0]' in said


def test_the_reference_can_be_asked_for(compiled, monkeypatch):
    """The same codes in a process that runs the reference, and no warning, since it was asked for."""
    script = USE + """
x = (torch.arange(960) % 77 / 77).reshape(10, 3, 32)
print(*(t.double().sum().item() for t in ops.quantize(x, torch.tensor([[0., 1.]] * 3), 4, 0, 11, True)))
"""
    compiled_said = run(ROOT, script).splitlines()
    monkeypatch.setenv('MESA_SEG_BACKEND', 'reference')
    reference_said = run(ROOT, script).splitlines()
    assert reference_said[0].startswith('reference')
    assert compiled_said[-2].startswith('compiled') and compiled_said[-1] == reference_said[-1]


def test_an_unknown_backend_is_an_error(monkeypatch):
    monkeypatch.setenv('MESA_SEG_BACKEND', 'fast')
    with pytest.raises(ValueError, match='MESA_SEG_BACKEND.*fast.*auto or reference'):
        _library.load_kernels()


def test_every_operator_has_a_cpu_kernel():
    for name in _library._references:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f'mesa_seg::{name}', 'CPU'), name
    assert set(ops.KERNELS.values()) <= {'compiled', 'reference'}


def test_every_operator_compiled(compiled):
    """What is built from these sources leaves nothing to the reference."""
    said = run(ROOT, USE)
    assert 'WARNING' not in said, said
