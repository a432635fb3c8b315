"""What the check of the CUDA build reads from ptxas and from the sources; the build itself is run by .ci/run."""
import importlib.util
import re

import pytest

from .conftest import ROOT


@pytest.fixture(scope='module')
def check():
    spec = importlib.util.spec_from_file_location('check_cuda_build', ROOT / 'tools' / 'check_cuda_build.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REPORT = """
ptxas info    : Compiling entry function '_Z1aPf' for 'sm_90'
ptxas info    : Function properties for _Z1aPf
    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 320 bytes smem
ptxas info    : Compiling entry function '_Z1bPf' for 'sm_80'
ptxas info    : Function properties for _Z1bPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, 400 bytes cmem[0]
"""


def test_reads_the_report_of_ptxas(check):
    first, second = check.parse_ptxas(REPORT)
    assert first == dict(kernel='_Z1aPf', arch='sm_90', registers=64, shared=320, stack=16, spills=32)
    assert (second['arch'], second['registers'], second['shared'], second['spills']) == ('sm_80', 30, 0, 0)


def test_knows_the_block_of_every_kernel(check):
    source = ''.join(path.read_text() for path in (ROOT / 'csrc' / 'cuda').glob('*.cu*'))
    kernels = set(re.findall(r'__launch_bounds__.*?(\w+_kernel)\(', source, re.S))
    sizes = check.block_sizes()
    assert set(sizes) == kernels
    for name, size in sizes.items():
        instance = dict(name=f'{name}<f16, MmaTiles<6, 3, 32>>' if '_mma_' in name else f'{name}<f32>')
        threads = check.threads_of(instance, sizes)
        assert threads and threads % 32 == 0 and threads <= 1024
        assert threads == (288 if '_mma_' in name else size[0] if isinstance(size, tuple) else size)
    assert check.threads_of(dict(name='window_attention_backward_kernel<f32, false>'), sizes) == 384


@pytest.mark.parametrize('arch, registers, shared, threads, expected', [
    ('sm_90', 32, 0, 256, 1.0), ('sm_90', 128, 0, 256, 0.25), ('sm_89', 40, 0, 256, 1.0), ('sm_90', 168, 0, 128, 3 * 128 / 2048),
    ('sm_89', 32, 48 * 1024, 256, 2 * 256 / 1536), ('sm_99', 32, 0, 256, None),
])
def test_occupancy(check, arch, registers, shared, threads, expected):
    assert check.occupancy(arch, registers, shared, threads) == expected
