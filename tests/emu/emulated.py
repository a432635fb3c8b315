"""Builds the CUDA operators of csrc/cuda, kernels and torch glue alike, against the emulator, and loads them as
``torch.ops.mesa_seg_emu``: the schemas of ``torch.ops.mesa_seg``, run on CPU tensors. Needs a C++ compiler only.

Objects are kept in build/emu under a hash of everything they were made from.
"""
import hashlib
import os
import shlex
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = ROOT / 'tests' / 'emu' / 'emulator.h'
FLAGS = ['-std=c++20', '-O1', '-fPIC', '-ffp-contract=off', '-fno-trapping-math', '-w']
KERNEL_FLAGS = ['-include', str(EMULATOR), '-x', 'c++']
SANITIZE = ['-fsanitize=address', '-fno-omit-frame-pointer', '-g']


def compiler():
    """The C++ compiler, as a list of arguments: CXX, else g++ or clang++; None where there is none."""
    if os.environ.get('CXX'):
        return shlex.split(os.environ['CXX'])
    found = shutil.which('g++') or shutil.which('clang++')
    return [found] if found else None


def families():
    """Names of the families that have kernels and glue."""
    return sorted(path.stem for path in (ROOT / 'csrc/cuda').glob('*.cu') if path.with_suffix('.cpp').exists())


def _digest(*extra):
    h = hashlib.sha256(repr(extra).encode())
    for path in sorted([*ROOT.glob('csrc/cuda/*'), *ROOT.glob('csrc/common/*'), EMULATOR]):
        h.update(path.name.encode())
        h.update(path.read_bytes())
    return h.hexdigest()[:16]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f'{shlex.join(map(str, command))}\n{done.stdout}{done.stderr}')


def build(names=None, sanitize=False):
    """Compile families; returns the paths of their libraries.

    Args:
        names (list[str] | None): families; None builds all.
        sanitize (bool): with the address sanitiser (the process that loads it must have libasan preloaded).
    """
    cxx = compiler()
    if cxx is None:
        raise RuntimeError('no C++ compiler: set CXX or install g++')
    extra = SANITIZE if sanitize else []
    names = families() if names is None else names
    torch_flags = ['-DMESA_EMU', '-DTORCH_TARGET_VERSION=0x020b000000000000', f'-I{sysconfig.get_paths()["include"]}',
                   *(f'-I{path}' for path in include_paths())]
    folder = ROOT / 'build' / 'emu' / _digest(cxx, FLAGS, SANITIZE, torch.__version__)
    folder.mkdir(parents=True, exist_ok=True)
    suffix = '.asan' if sanitize else ''
    out, jobs = [], []
    source = ROOT / 'csrc' / 'cuda'
    shared = folder / f'launch{suffix}.o'
    if not shared.exists():
        run([*cxx, *FLAGS, *extra, *KERNEL_FLAGS, '-c', str(source / 'launch.cu'), '-o', str(shared)])
    for name in names:
        library = folder / f'lib{name}{suffix}.so'
        out.append(library)
        if not library.exists():
            jobs.append((name, library))

    def make(job):
        name, library = job
        kernels, glue = (folder / f'{name}{suffix}.{kind}.o' for kind in ('kernels', 'glue'))
        run([*cxx, *FLAGS, *extra, *KERNEL_FLAGS, '-c', str(source / f'{name}.cu'), '-o', str(kernels)])
        run([*cxx, *FLAGS, *extra, *torch_flags, '-c', str(source / f'{name}.cpp'), '-o', str(glue)])
        partial = library.with_suffix(f'.{os.getpid()}')
        run([*cxx, *extra, '-shared', str(kernels), str(glue), str(shared), '-o', str(partial),
             f'-L{Path(torch.__file__).parent / "lib"}', '-ltorch', '-ltorch_cpu', '-lc10'])
        partial.rename(library)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(make, jobs))
    return out


_library = None
_loaded = set()


def load(names=None, sanitize=False):
    """``torch.ops.mesa_seg_emu`` with the families (None: all) compiled, loaded and registered."""
    import mesa_seg.ops  # noqa: F401  states the schemas

    global _library
    if _library is None:
        _library = torch.library.Library('mesa_seg_emu', 'DEF')
        for schema in torch._C._jit_get_all_schemas():
            if schema.name.startswith('mesa_seg::'):
                _library.define(str(schema).removeprefix('mesa_seg::'))
    for path in build(names, sanitize):
        if path not in _loaded:
            torch.ops.load_library(path)
            _loaded.add(path)
    return torch.ops.mesa_seg_emu
