"""The emulator reports each fault that it claims to find, and nothing where a kernel is right."""
import ctypes
import subprocess

import pytest
import torch

from tests.emu import emulated


def build(folder, *flags):
    out = folder / 'faults'
    emulated.run([*emulated.compiler(), '-std=c++20', '-O1', '-w', '-ffp-contract=off', *flags,
                  str(emulated.ROOT / 'tests/emu/faults.cpp'), '-o', str(out)])
    return out


@pytest.fixture(scope='module')
def faults(tmp_path_factory):
    if emulated.compiler() is None:
        pytest.skip('no C++ compiler for the emulator')
    library = ctypes.CDLL(str(build(tmp_path_factory.mktemp('faults'), '-shared', '-fPIC')))
    library.run.restype = library.multiply.restype = ctypes.c_char_p
    library.offset.restype = ctypes.c_int64
    library.offset.argtypes = [ctypes.c_int64] * 6
    return library


@pytest.mark.parametrize('seed', ['0', '1', '77'])
@pytest.mark.parametrize('kernel', ['exchange', 'exchange_in_warp', 'atomic_writers', 'half_warp', 'two_half_warps',
                                    'copy_and_wait'])
def test_right_kernels_pass(faults, kernel, seed, monkeypatch):
    monkeypatch.setenv('MESA_EMU_SEED', seed)
    assert faults.run(kernel.encode()) == b''


@pytest.mark.parametrize('seed', ['0', '5'])
@pytest.mark.parametrize('kernel,report', [
    ('exchange_without_barrier', 'race|before it is written'),
    ('overwrite_while_read', 'race'),
    ('two_writers', 'race'),
    ('atomic_and_plain', 'race'),
    ('never_written', 'before it is written'),
    ('outside', 'outside an array of 63'),
    ('outside_dynamic', 'outside an array of 63'),
    ('early_return', 'barrier divergence: some threads ended'),
    ('two_barriers', 'barrier divergence: threads wait at different'),
    ('missing_lanes', 'deadlock'),
    ('not_in_mask', 'calling lane is not in the mask'),
    ('source_not_in_mask', 'source lane is not in the mask'),
    ('different_masks', 'disagree on the mask'),
    ('unaligned', 'not aligned'),
    ('half_warp_product', 'deadlock'),
    ('product_and_vote', 'different operations'),
    ('unaligned_matrix', 'not aligned'),
    ('copy_read_early', 'before it is written'),
    ('copy_not_waited_for', 'without waiting'),
    ('grid_too_large', 'exceeds the limit'),
    ('block_too_large', 'block size'),
    ('other_stream', 'not on the current stream'),
])
def test_faults_are_reported(faults, kernel, report, seed, monkeypatch):
    monkeypatch.setenv('MESA_EMU_SEED', seed)
    text = faults.run(kernel.encode()).decode()
    assert any(part in text for part in report.split('|')), text


def test_out_of_bounds_is_seen_by_the_address_sanitiser(tmp_path):
    program = build(tmp_path, *emulated.SANITIZE)
    right = subprocess.run([program, 'exchange', 'exchange_in_warp', 'half_warp'], capture_output=True, text=True)
    assert right.returncode == 0, right.stderr
    wrong = subprocess.run([program, 'beyond_the_end'], capture_output=True, text=True)
    assert wrong.returncode != 0 and 'heap-buffer-overflow' in wrong.stderr


def test_indices_beyond_32_bits(faults):
    for groups, inner, strides in ((3, 2**33 + 5, (2**36, 2**34, 1)), (2**20, 2**13, (1, 2**14, 2**35)),
                                   (7, 10, (70, 10, 1))):
        for index in (0, 1, 2**31 - 1, 2**31, 2**32 + 7, 2**40 + 12345):
            row, i = divmod(index, inner)
            o, g = divmod(row, groups)
            assert faults.offset(groups, inner, *strides, index) == o * strides[0] + g * strides[1] + i * strides[2]


def test_sixteen_bit_floats_round_as_torch(faults):
    bits = torch.randint(-2**31, 2**31, (200_000,), dtype=torch.int64).to(torch.int32)
    x = torch.cat((bits.view(torch.float32), torch.randn(50_000), torch.randn(50_000) * 1e-6,
                   torch.tensor([0.0, -0.0, float('inf'), float('-inf'), float('nan'), 65504.0, 65519.99, 65520.0])))
    half, bfloat = torch.empty_like(x), torch.empty_like(x)
    p = [ctypes.c_void_p(t.data_ptr()) for t in (x, half, bfloat)]
    faults.round_trip(p[0], ctypes.c_int64(x.numel()), p[1], p[2])
    torch.testing.assert_close(half, x.half().float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(bfloat, x.bfloat16().float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize('load', [0, 1, 2], ids=['by element', 'by matrix', 'transposed'])
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_tensor_core_products(faults, dtype, load, monkeypatch):
    """Against a plain product; small integers, whose sums are exact."""
    generator = torch.Generator().manual_seed(load)
    a, b, c = (torch.randint(-8, 9, shape, generator=generator).float() for shape in ((16, 16), (16, 8), (16, 8)))
    for seed in ('0', '3'):
        monkeypatch.setenv('MESA_EMU_SEED', seed)
        out = torch.full((16, 8), -1.0)
        p = [ctypes.c_void_p(t.data_ptr()) for t in (a, b, c, out)]
        assert faults.multiply(*p, int(dtype == torch.bfloat16), load) == b''
        assert torch.equal(out, a @ b + c)
