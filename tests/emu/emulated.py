"""Builds the CUDA operators of csrc/cuda, kernels and torch glue alike, against the emulator, and loads them as
``torch.ops.mesa_seg_emu``: the schemas of ``torch.ops.mesa_seg``, run on CPU tensors. Needs a C++ compiler only.

Objects are kept in build/emu under a hash of everything they were made from.
"""
import hashlib
import os
import re
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


def sources():
    """Every file of kernels, and the glue of the families that have kernels."""
    kernels = sorted((ROOT / 'csrc/cuda').glob('*.cu'))
    return kernels + [path.with_suffix('.cpp') for path in kernels if path.with_suffix('.cpp').exists()]


def _digest(*parts):
    """Of files (paths) and anything else."""
    h = hashlib.sha256()
    for part in parts:
        h.update(part.read_bytes() if isinstance(part, Path) else repr(part).encode())
    return h.hexdigest()[:16]


def _with_headers(source):
    """The file and what it includes between quotes, and so on."""
    seen, todo = [], [source]
    while todo:
        path = todo.pop()
        if path not in seen and path.exists():
            seen.append(path)
            names = re.findall(r'#include "([^"]+)"', path.read_text())
            todo += [(path.parent / name).resolve() for name in names]
    return sorted(seen)


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f'{shlex.join(map(str, command))}\n{done.stdout}{done.stderr}')


def build(sanitize=False):
    """Compile what changed and link it all; returns the path of the library.

    Args:
        sanitize (bool): with the address sanitiser (the process that loads it must have libasan preloaded).
    """
    cxx = compiler()
    if cxx is None:
        raise RuntimeError('no C++ compiler: set CXX or install g++')
    extra = SANITIZE if sanitize else []
    torch_flags = ['-DMESA_EMU', '-DTORCH_TARGET_VERSION=0x020b000000000000', f'-I{sysconfig.get_paths()["include"]}',
                   *(f'-I{path}' for path in include_paths())]
    folder = ROOT / 'build' / 'emu'
    folder.mkdir(parents=True, exist_ok=True)
    objects, jobs = [], []
    for source in sources():
        flags = KERNEL_FLAGS if source.suffix == '.cu' else torch_flags
        command = [*cxx, *FLAGS, *extra, *flags, '-c', str(source), '-o']
        out = folder / f'{source.name}.{_digest(command, torch.__version__, EMULATOR, *_with_headers(source))}.o'
        objects.append(str(out))
        if not out.exists():
            jobs.append((command, out))

    def compile_one(job):
        command, out = job
        partial = out.with_suffix(f'.{os.getpid()}')
        run([*command, str(partial)])
        partial.rename(out)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, jobs))
    library = folder / f'libmesa_emu.{_digest(objects)}.so'
    if not library.exists():
        partial = library.with_suffix(f'.{os.getpid()}')
        run([*cxx, *extra, '-shared', *objects, '-o', str(partial), f'-L{Path(torch.__file__).parent / "lib"}',
             '-ltorch', '-ltorch_cpu', '-lc10'])
        partial.rename(library)
    return library


_library = None


def load(sanitize=False):
    """``torch.ops.mesa_seg_emu``, compiled, loaded and registered."""
    import mesa_seg.ops  # noqa: F401  states the schemas

    global _library
    if _library is None:
        _library = torch.library.Library('mesa_seg_emu', 'DEF')
        for schema in torch._C._jit_get_all_schemas():
            if schema.name.startswith('mesa_seg::'):
                _library.define(str(schema).removeprefix('mesa_seg::'))
        torch.ops.load_library(build(sanitize))
    return torch.ops.mesa_seg_emu
