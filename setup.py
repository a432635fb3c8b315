"""Build of the compiled modules.

``mesa_seg._C``: the CPU operators, always. ``mesa_seg._C_cuda``: the CUDA operators, as ``MESA_SEG_CUDA`` says:

* ``auto`` (default): when there is an nvcc and torch is a CUDA build;
* ``1``: always, also against a CPU build of torch (which compiles and links but cannot load it); no nvcc is an error;
* ``0``: never.

``MESA_SEG_CUDA_ARCHS`` lists the compute capabilities, ``;`` between them (default ``75;80;86;89;90;100;120``, those of
them that the nvcc at hand knows); PTX of the newest of them is added for newer devices. What ptxas says about each kernel's
registers and spills is left in ``build/cuda/<file>.ptxas.log``. ``MAX_JOBS`` limits the parallel compilations.

Both modules are written against torch's stable ABI (2.11) and Python's limited API (3.10): one file serves later ones.
"""
import os
import re
import shutil
import subprocess
from pathlib import Path

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).resolve().parent
os.chdir(ROOT)  # setuptools wants sources relative to the project folder

CXX_FLAGS = [
    '-O3', '-g0', '-std=c++20', '-fvisibility=hidden', '-Wall', '-Wno-psabi', '-Wno-unknown-pragmas',
    # The same float32 operations in the same order on every device and in every clone: no contraction to fma.
    '-ffp-contract=off', '-fno-trapping-math', '-fno-math-errno',
    '-DTORCH_TARGET_VERSION=0x020b000000000000',
]
NVCC_FLAGS = ['-std=c++17', '-O3', '-lineinfo', '-fmad=false', '-Xptxas', '-v',
              '-Xcompiler', '-fPIC,-fvisibility=hidden']
DEFAULT_ARCHS = '75;80;86;89;90;100;120'


def files(folder, *patterns):
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in (ROOT / folder).glob(pattern))


def cuda_home():
    """Folder of the CUDA toolkit, or None. Asks nvcc itself: what is on the PATH may be a script that calls another."""
    home = os.environ.get('CUDA_HOME')
    nvcc = os.path.join(home, 'bin', 'nvcc') if home else shutil.which('nvcc')
    if not nvcc or not os.path.exists(nvcc):
        return None
    said = subprocess.run([nvcc, '--dryrun', '-c', 'x.cu'], capture_output=True, text=True).stderr
    top = re.search(r'TOP=(\S+)', said)
    return Path(top[1]).resolve() if top else Path(nvcc).resolve().parent.parent


def cuda_wanted(home):
    wish = os.environ.get('MESA_SEG_CUDA', 'auto')
    if wish not in ('auto', '0', '1'):
        raise SystemExit(f'MESA_SEG_CUDA={wish!r}: expected auto, 0 or 1')
    if wish == '1' and home is None:
        raise SystemExit('MESA_SEG_CUDA=1, but no nvcc was found on the PATH or in CUDA_HOME/bin')
    return wish == '1' or (wish == 'auto' and home is not None and torch.version.cuda is not None)


def cuda_archs(nvcc):
    asked = os.environ.get('MESA_SEG_CUDA_ARCHS')
    archs = (asked or DEFAULT_ARCHS).split(';')
    if not asked:
        said = subprocess.run([nvcc, '--list-gpu-arch'], capture_output=True, text=True)
        known = set(re.findall(r'compute_(\w+)', said.stdout))
        archs = [arch for arch in archs if arch in known] if known else archs
    return archs


def cuda_library_folder(home):
    for folder in ('lib64', 'lib', 'targets/x86_64-linux/lib', 'targets/sbsa-linux/lib'):
        if (home / folder / 'libcudart_static.a').exists():
            return str(home / folder)
    raise SystemExit(f'no libcudart_static.a under {home}')


def cuda_object(source):
    return f'build/cuda/{Path(source).stem}.o'


def compile_cuda(home, sources):
    """Run nvcc on each .cu through ninja: in parallel, and only where the source or a header of it has changed."""
    nvcc = str(home / 'bin' / 'nvcc')
    archs = cuda_archs(nvcc)
    flags = NVCC_FLAGS + [f'-gencode=arch=compute_{arch},code=sm_{arch}' for arch in archs]
    newest = max(archs, key=lambda arch: int(re.match(r'\d+', arch)[0]))
    flags.append(f'-gencode=arch=compute_{newest},code=compute_{newest}')
    folder = ROOT / 'build' / 'cuda'
    folder.mkdir(parents=True, exist_ok=True)
    rules = [
        f'nvcc = {nvcc}',
        'rule nvcc',
        f'  command = $nvcc {" ".join(flags)} -MD -MF $out.d -c $in -o $out > $log 2>&1 || (cat $log; exit 1)',
        '  depfile = $out.d',
        '  deps = gcc',
    ]
    for source in sources:
        rules += [f'build {cuda_object(source)}: nvcc {source}', f'  log = build/cuda/{Path(source).stem}.ptxas.log']
    (folder / 'build.ninja').write_text('\n'.join(rules) + '\n')
    jobs = ['-j', os.environ['MAX_JOBS']] if os.environ.get('MAX_JOBS') else []
    subprocess.check_call(['ninja', '-f', 'build/cuda/build.ninja', *jobs], cwd=ROOT)


HOME = cuda_home()
CUDA = cuda_wanted(HOME)
HEADERS = files('csrc', '**/*.h', '**/*.cuh')
CUDA_SOURCES = files('csrc/cuda', '*.cu') if CUDA else []

extensions = [
    CppExtension('mesa_seg._C', ['csrc/ops.cpp', *files('csrc/cpu', '*.cpp')], depends=HEADERS,
                 extra_compile_args=CXX_FLAGS, py_limited_api=True),
]
if CUDA and CUDA_SOURCES:
    extensions.append(
        CppExtension('mesa_seg._C_cuda', files('csrc/cuda', '*.cpp'), depends=[*HEADERS, *CUDA_SOURCES],
                     extra_compile_args=[*CXX_FLAGS, '-DUSE_CUDA'], py_limited_api=True,
                     extra_objects=[cuda_object(source) for source in CUDA_SOURCES],
                     # --no-as-needed: libtorch pulls in libtorch_cuda, which nothing here names.
                     extra_link_args=['-Wl,--no-as-needed', '-ltorch', f'-L{cuda_library_folder(HOME)}',
                                      '-lcudart_static', '-lrt', '-ldl', '-lpthread']))


class Build(BuildExtension):
    def build_extensions(self):
        if CUDA_SOURCES:
            compile_cuda(HOME, CUDA_SOURCES)
        super().build_extensions()


setup(ext_modules=extensions, cmdclass={'build_ext': Build.with_options(use_ninja=True)},
      options={'bdist_wheel': {'py_limited_api': 'cp310'}})
