"""The quantize family: compiled against reference bit for bit, and what a user counts on in either."""
import platform
import subprocess
from pathlib import Path

import pytest
import torch

from mesa_seg import ops
from mesa_seg.reference import quantize as reference

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ROOT = Path(__file__).resolve().parents[2]


def special(dtype):
    """Infinities and NaN here and there, a group and a block of nothing else, a constant group."""
    x = torch.randn(40, 4, 32) * 3
    x[0, 0, 0] = float('nan')
    x[1, 1] = float('inf')
    x[3, 3, 4] = float('-inf')
    x[:, 2] = float('nan')
    x[5:8] = float('nan')
    x[:, 3] = 1.5
    return x.to(dtype)


VIEWS = {
    'odd': lambda t: torch.randn(10, 3, 7).to(t),
    'tokens': lambda t: torch.randn(90, 3, 32).to(t),
    'groups of 64': lambda t: torch.randn(40, 4, 64).to(t),
    'wide tokens': lambda t: torch.randn(5, 48, 32).to(t),
    'very wide tokens': lambda t: torch.randn(3, 640, 32).to(t),
    'tokens, a few periods a chunk': lambda t: torch.randn(40, 12, 32).to(t),
    'maps': lambda t: torch.randn(3, 2, 3001).to(t),
    'one group': lambda t: torch.randn(2, 1, 5000).to(t),
    'one value groups': lambda t: torch.randn(300, 5, 1).to(t),
    'one value': lambda t: torch.randn(1, 1, 1).to(t),
    'several threads': lambda t: torch.randn(400, 3, 32).to(t),
    'heads of qkv': lambda t: torch.randn(120, 9, 32).to(t)[:, 3:6],
    'transposed': lambda t: torch.randn(7, 60, 33).to(t).permute(1, 2, 0),
    'every other': lambda t: torch.randn(20, 3, 64).to(t)[::2, :, ::2],
    'broadcast': lambda t: torch.randn(1, 3, 40).to(t).expand(30, 3, 40),
    'special': special,
    'special, long groups': lambda t: special(t).transpose(0, 1).reshape(1, 4, -1),
    'no rows': lambda t: torch.randn(0, 3, 7).to(t),
    'no groups': lambda t: torch.randn(3, 0, 7).to(t),
    'no values': lambda t: torch.randn(3, 2, 0).to(t),
}


def narrow_ranges(groups):
    """Ranges that some of the values lie outside of, one of them empty."""
    ranges = torch.tensor([-1.5, 1.7]).repeat(groups, 1) * torch.rand(groups, 1)
    if groups > 3:
        ranges[3] = 0.25
    return ranges


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('view', VIEWS)
def test_compiled_equals_reference(compiled, view, dtype):
    x = VIEWS[view](dtype)
    ranges = narrow_ranges(x.shape[1])
    assert torch.equal(ops.group_range(x), reference.group_range(x))
    every = dtype == torch.float32  # the other types only take another way in and out
    for bits in (8, 4, 2) if every else (8, 2):
        for block_size in (0, 16, 24, 64, 1000, 1024) if every else (0, 64):
            for stochastic, seed in ((True, 5), (True, -3), (False, 5)):
                case = f'bits {bits}, block size {block_size}, stochastic {stochastic}, seed {seed}'
                arguments = (x, None if block_size else ranges, bits, block_size, seed, stochastic)
                codes, found = ops.quantize(*arguments)
                expected_codes, expected_found = reference.quantize(*arguments)
                assert torch.equal(codes, expected_codes), case
                assert torch.equal(found, expected_found) and found.dtype == expected_found.dtype, case
                arguments = (codes, found if block_size else ranges, *x.shape, bits, block_size, dtype)
                y = ops.dequantize(*arguments)
                assert y.dtype == dtype and y.shape == x.shape and y.is_contiguous()
                assert torch.equal(y, reference.dequantize(*arguments)), case


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('shape, channels, spatial', [
    ((20, 3, 32), 96, 1), ((20, 3, 7), 21, 1), ((2, 3, 4 * 50), 12, 50), ((2, 1, 4 * 900), 4, 900), ((0, 3, 8), 24, 1)])
def test_affine_compiled_equals_reference(compiled, shape, channels, spatial, dtype):
    x = torch.randn(shape).to(dtype)
    scale, shift = torch.randn(channels).to(dtype), torch.randn(channels)
    for bits, block_size in ((8, 0), (4, 0), (8, 64), (2, 16)):
        ranges = None if block_size else narrow_ranges(shape[1])
        codes, found = ops.quantize(x, ranges, bits, block_size, 1, True)
        for s, t in ((scale, shift), (scale, None), (None, shift), (None, None)):
            for relu in (False, True):
                arguments = (codes, found if block_size else ranges, *shape, bits, block_size, s, t, spatial, relu, dtype)
                y = ops.dequantize_affine(*arguments)
                assert y.dtype == dtype and y.shape == x.shape
                assert torch.equal(y, reference.dequantize_affine(*arguments))


def test_affine_is_scale_and_shift_by_channel():
    x = torch.randn(2, 3, 4, 5, 6)  # [B, groups, channels a group, H, W]
    view = x.reshape(2, 3, -1)
    ranges = ops.group_range(view)
    codes, _ = ops.quantize(view, ranges, 8, 0, 0, False)
    scale, shift = torch.randn(12), torch.randn(12)
    y = ops.dequantize_affine(codes, ranges, *view.shape, 8, 0, scale, shift, 30, True, torch.float32)
    plain = ops.dequantize(codes, ranges, *view.shape, 8, 0, torch.float32).reshape(2, 12, 30)
    expected = (plain * scale[:, None] + shift[:, None]).relu()
    torch.testing.assert_close(y.reshape(2, 12, 30), expected)


@pytest.mark.parametrize('bits', [8, 4, 2])
@pytest.mark.parametrize('block_size', [0, 64])
def test_error_is_within_a_step(bits, block_size):
    x = torch.randn(500, 3, 32)
    ranges = None if block_size else ops.group_range(x)
    for stochastic, steps in ((True, 1.0), (False, 0.5)):
        codes, found = ops.quantize(x, ranges, bits, block_size, 3, stochastic)
        y = ops.dequantize(codes, found if block_size else ranges, *x.shape, bits, block_size, torch.float32)
        lo, step, _ = reference.element_steps(found if block_size else ranges, *x.shape, bits, block_size)
        assert ((x - y).abs().reshape(-1) <= step * steps * 1.001).all()


@pytest.mark.parametrize('bits, block_size', [(8, 0), (2, 0), (4, 64)])
def test_stochastic_rounding_is_unbiased(bits, block_size):
    seeds = 400
    x = torch.rand(20, 3, 32) * 2 - 1
    ranges = None if block_size else torch.tensor([[-1.0, 1.0]] * 3)
    total = torch.zeros(x.shape, dtype=torch.float64)
    for seed in range(seeds):
        codes, found = ops.quantize(x, ranges, bits, block_size, seed, True)
        total += ops.dequantize(codes, found if block_size else ranges, *x.shape, bits, block_size, torch.float32)
    error = total / seeds - x
    step = 2 / (2**bits - 1)  # at most
    # One value's rounding has a standard deviation of at most half a step: 5 of the mean's for each of 1,920 values, and
    # 4 for the mean over all of them. The 16 bits of randomness add 2^-17 of a step.
    assert error.abs().max() < 5 * step / 2 / seeds**0.5
    assert error.mean().abs() < 4 * step / 2 / (seeds * x.numel())**0.5 + step * 2**-17


def test_rounding_of_neighbours_and_seeds_is_uncorrelated():
    x = torch.full((1, 1, 200_000), 0.5)  # half way between two codes of [0, 255]
    ranges = torch.tensor([[0.0, 255.0]])
    up = [ops.quantize(x, ranges, 8, 0, seed, True)[0].double() - 0.5 for seed in (0, 1, 2**40)]
    limit = 5 * 0.25 / x.numel()**0.5
    for a in up:
        assert abs(a.mean()) < 5 * 0.5 / x.numel()**0.5
        for lag in (1, 2, 3, 8, 64, 1024):
            assert abs((a[:-lag] * a[lag:]).mean()) < limit, lag
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert abs((up[a] * up[b]).mean()) < limit


def test_values_outside_saturate_at_both_ends():
    x = torch.tensor([[[-1e30, -5.0, 0.0, 5.0, 1e30, float('inf'), float('-inf'), float('nan')]]])
    ranges = torch.tensor([[-1.0, 1.0]])
    for bits in (8, 4, 2):
        for stochastic in (True, False):
            codes, found = ops.quantize(x, ranges, bits, 0, 7, stochastic)
            y = ops.dequantize(codes, ranges, 1, 1, 8, bits, 0, torch.float32).reshape(-1)
            assert y[[0, 1, 6, 7]].eq(-1).all() and torch.allclose(y[[3, 4, 5]], torch.ones(3))
            assert found.tolist() == [[torch.tensor(-1e30).item(), torch.tensor(1e30).item()]]


def test_ranges_of_what_is_not_finite():
    x = torch.full((2, 2, 16), float('nan'))
    x[:, 1, 3] = float('inf')
    x[1, 1, 4] = -2.0
    assert ops.group_range(x).tolist() == [[float('inf'), float('-inf')], [-2.0, -2.0]]
    _, found = ops.quantize(x, None, 8, 16, 0, True)
    assert found.tolist() == [[0, 0], [0, 0], [0, 0], [-2, -2]]


def test_block_ranges_cover_the_block_and_stay_finite():
    x = torch.randn(1, 1, 4096) * torch.logspace(-40, 38, 64).repeat_interleave(64)
    x[0, 0, :2] = torch.tensor([3.4e38, -3.4e38])
    blocks = x.reshape(64, 64)
    _, found = ops.quantize(x, None, 8, 64, 0, True)
    assert found.isfinite().all()
    lo, hi = found.float().unbind(1)
    assert (lo[1:] <= blocks.amin(1)[1:]).all() and (hi[1:] >= blocks.amax(1)[1:]).all()


def test_codes_do_not_depend_on_threads(compiled):
    x = torch.randn(3000, 3, 32)
    x[7, 1, 3] = float('inf')
    ranges = narrow_ranges(3)
    for bits, block_size in ((8, 0), (4, 0), (2, 0), (4, 64), (8, 1000)):
        out = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            codes, found = ops.quantize(x, None if block_size else ranges, bits, block_size, 9, True)
            y = ops.dequantize(codes, found if block_size else ranges, *x.shape, bits, block_size, torch.float32)
            out.append((codes, found, y))
        assert all(torch.equal(a, b) for other in out[1:] for a, b in zip(out[0], other, strict=True))


def test_codes_do_not_depend_on_strides():
    x = torch.randn(50, 6, 8)
    ranges = ops.group_range(x)
    codes, _ = ops.quantize(x, ranges, 4, 0, 2, True)
    apart = torch.randn(50, 6, 16)[:, :, ::2].copy_(x)
    other, _ = ops.quantize(apart, ranges, 4, 0, 2, True)
    assert torch.equal(codes, other)


def test_packing_is_little_end_first():
    x = torch.tensor([[[0.0, 1.0, 2.0, 3.0, 1.0]]])
    codes, _ = ops.quantize(x, torch.tensor([[0.0, 3.0]]), 2, 0, 0, False)
    assert codes.tolist() == [0b11100100, 0b01]
    codes, _ = ops.quantize(x, torch.tensor([[0.0, 15.0]]), 4, 0, 0, False)
    assert codes.tolist() == [0x10, 0x32, 0x01]


def test_update_ranges():
    inf = float('inf')
    running = torch.tensor([[-1.0, 1.0], [0.0, 2.0], [5.0, 6.0]])
    observed = torch.tensor([[-3.0, 3.0], [inf, -inf], [7.0, 7.0]])
    expected = reference_running = running.clone()
    reference.update_ranges(reference_running, observed, 0.9)
    version = running._version
    ops.update_ranges(running, observed, 0.9)
    assert torch.equal(running, expected) and running._version > version
    torch.testing.assert_close(running, torch.tensor([[-1.2, 1.2], [0.0, 2.0], [5.2, 6.1]]))
    ops.update_ranges(running, observed, 0.0)
    assert running.tolist() == [[-3.0, 3.0], [0.0, 2.0], [7.0, 7.0]]


# --- beyond 2^33 elements, where the key of the random bits changes ------------------------------------------------

def random_u16_by_hand(seed, i):
    """The definition, in Python's integers."""
    low = 0xffffffff

    def mix(x):
        x ^= x >> 16
        x = x * 0x21f0aaad & low
        x ^= x >> 15
        x = x * 0x735a2d97 & low
        return x ^ x >> 15
    word = i >> 1
    a = mix((seed & low) ^ mix(((word >> 32) + 0x9e3779b9) & low))
    b = mix((seed >> 32 & low) ^ a)
    x = (word & low) ^ a
    x ^= x >> 16
    x = (x * 0x21f0aaad + b) & low
    x ^= x >> 15
    x = x * 0x735a2d97 & low
    x ^= x >> 15
    return x >> 16 if i & 1 else x & 0xffff


def test_random_bits_of_the_reference_beyond_2_33():
    for seed in (0, 12345678901234567, -1):
        for start in (0, 2**33 - 5, 2**33 - 4, 2**33, 3 * 2**33 - 1, 2**40 + 7):
            bits = reference.random_u16(seed, start, 12).tolist()
            assert bits == [random_u16_by_hand(seed & 2**64 - 1, start + i) for i in range(12)]
    low = reference.random_u16(1, 0, 4096)
    high = reference.random_u16(1, 2**33, 4096)
    assert (low == high).float().mean() < 0.01  # another stream, not the same once more


def build(tmp_path, main, name, *flags):
    """csrc/cpu/chunk.cpp with a main of its own: what needs an index or a processor that no tensor here leads to."""
    csrc = ROOT / 'csrc' / 'cpu'
    source, program = tmp_path / 'main.cpp', tmp_path / name
    source.write_text(main)
    subprocess.run(['c++', '-std=c++20', '-ffp-contract=off', '-fno-trapping-math', '-fno-math-errno', *flags, f'-I{csrc}',
                    str(source), str(csrc / 'chunk.cpp'), '-o', str(program)], check=True)
    return lambda *arguments: subprocess.run([program, *map(str, arguments)], check=True, capture_output=True,
                                             text=True).stdout


def test_random_bits_of_the_kernels_beyond_2_33(tmp_path):
    program = build(tmp_path, """
#include <stdio.h>
#include <stdlib.h>
#include "chunk.h"
int main(int, char** argv) {
  alignas(64) uint16_t out[64];
  const uint64_t seed = strtoull(argv[1], 0, 10), first = strtoull(argv[2], 0, 10);
  mesa::fill_random(seed, first, 45, out);
  for (int i = 0; i < 45; ++i) printf("%u ", (unsigned)out[i]);
}
""", 'random', '-O1', '-DMESA_CLONES=')
    for seed in (7, 2**64 - 3):
        for start in (0, 1, 2**33 - 20, 2**33 - 21, 2**33, 5 * 2**33 - 1):
            expected = [random_u16_by_hand(seed, start + i) for i in range(45)]
            assert [int(word) for word in program(seed, start).split()] == expected, (seed, start)


@pytest.mark.skipif(platform.machine() != 'x86_64', reason='one version of the kernels on this processor')
def test_every_instruction_set_computes_the_same(tmp_path):
    main = """
#include <math.h>
#include <initializer_list>
#include <stdio.h>
#include "chunk.h"
#include "../common/random.h"
using namespace mesa;
static uint32_t sum = 1;
template <class T>
static void count(const T* values, int n) {
  const unsigned char* bytes = (const unsigned char*)values;
  for (size_t i = 0; i < n * sizeof(T); ++i) sum = mix32(sum ^ bytes[i]);
}
int main() {
  constexpr int n = 2048;
  alignas(64) static float x[n], lo[n], inv[n], low[n], high[n], y[n];
  alignas(64) static uint8_t codes[n];
  alignas(64) static uint16_t half[n], random[n], found[n];
  for (int i = 0; i < n; ++i) {
    x[i] = (float)(int32_t)mix32(i) * powf(10.0f, (int)(mix32(i + n) % 60) - 40);
    lo[i] = -(float)(mix32(3 * i) % 1000), inv[i] = 1.0f / (1 + mix32(7 * i) % 777);
    low[i] = INFINITY, high[i] = -INFINITY;
  }
  x[3] = x[77] = NAN, x[400] = INFINITY, x[401] = -INFINITY;
  for (DType t : {DType::f16, DType::bf16}) {
    store_floats(t, x, n, half);
    load_floats(t, half, 1, n, y);
    y[3] = y[77] = 0;  // which NaN does not matter
    count(y, n);
  }
  for (bool stochastic : {false, true}) {
    encode_strips(x, n, lo, inv, 192, 64, stochastic, 5, 128, 255.0f, codes, low, high);
    count(codes, n), count(low, 192), count(high, 192);
  }
  fill_random(9, 33, n, random);
  count(random, n);
  encode_chunk(x, n, make_step(-3.0f, 5.0f, 15.0f), random, 15.0f, codes);
  count(codes, n);
  pack_codes(codes, n, 4, (uint8_t*)half);
  count((uint8_t*)half, n / 2);
  decode_chunk(codes, n, lo, inv, y);
  count(y, n);
  encode_ranges(x, n - 5, 24, 255.0f, found, low, high);
  count(found, 2 * 86), count(low, 86), count(high, 86);
  float a = INFINITY, b = -INFINITY;
  range_chunk(x, n, a, b);
  count(&a, 1), count(&b, 1);
  printf("%u", sum);
}
"""
    with open('/proc/cpuinfo') as file:
        features = file.read()
    levels = ['x86-64'] + ['x86-64-v3'] * (' avx2 ' in features) + ['x86-64-v4'] * (' avx512vl ' in features)
    said = {level: build(tmp_path, main, level, '-O3', '-DMESA_CLONES=', f'-march={level}')() for level in levels}
    assert len(set(said.values())) == 1, said


# --- torch's own checks, and bad input --------------------------------------------------------------------------------

@pytest.mark.parametrize('block_size', [0, 16])
@pytest.mark.parametrize('bits', [8, 2])
def test_opcheck(bits, block_size):
    mesa = torch.ops.mesa_seg
    x = torch.randn(6, 3, 8)
    ranges = None if block_size else torch.tensor([[-1.0, 1.0]] * 3)
    torch.library.opcheck(mesa.quantize.default, (x, ranges, bits, block_size, 1, True))
    torch.library.opcheck(mesa.quantize.default, (x.transpose(0, 2).half(), None, bits, 16, 1, False))
    codes, found = ops.quantize(x, ranges, bits, block_size, 1, True)
    used = found if block_size else ranges
    torch.library.opcheck(mesa.dequantize.default, (codes, used, 6, 3, 8, bits, block_size, torch.bfloat16))
    torch.library.opcheck(mesa.dequantize_affine.default,
                          (codes, used, 6, 3, 8, bits, block_size, torch.randn(24), None, 1, True, torch.float32))
    torch.library.opcheck(mesa.group_range.default, (x,))
    torch.library.opcheck(mesa.update_ranges.default, (torch.rand(3, 2), torch.rand(3, 2), 0.9))


X = torch.randn(4, 2, 16)
RANGES = torch.tensor([[-1.0, 1.0]] * 2)
CODES = torch.zeros(128, dtype=torch.uint8)


@pytest.mark.parametrize('call, error, words', [
    (lambda: ops.quantize(X.double(), RANGES, 8, 0, 0, True), TypeError, ['x', 'float32', 'float64']),
    (lambda: ops.quantize(X[0], RANGES, 8, 0, 0, True), ValueError, ['x', '3-D', '(2, 16)']),
    (lambda: ops.quantize(X, RANGES, 3, 0, 0, True), ValueError, ['bits', '8, 4 or 2', '3']),
    (lambda: ops.quantize(X, None, 8, 20, 0, True), ValueError, ['block_size', 'multiple of 8', '20']),
    (lambda: ops.quantize(X, None, 8, 2048, 0, True), ValueError, ['block_size', '1024', '2048']),
    (lambda: ops.quantize(X, None, 8, 0, 0, True), ValueError, ['ranges', '[2, 2]', 'None']),
    (lambda: ops.quantize(X, RANGES[:1], 8, 0, 0, True), ValueError, ['ranges', '(2, 2)', '(1, 2)']),
    (lambda: ops.quantize(X, RANGES.double(), 8, 0, 0, True), TypeError, ['ranges', 'float32', 'float64']),
    (lambda: ops.quantize(X, RANGES, 8, 16, 0, True), ValueError, ['ranges', 'None', '(2, 2)']),
    (lambda: ops.dequantize(CODES[1:], RANGES, 4, 2, 16, 8, 0, torch.float32), ValueError, ['codes', '128', '127']),
    (lambda: ops.dequantize(CODES.int(), RANGES, 4, 2, 16, 8, 0, torch.float32), TypeError, ['codes', 'uint8', 'int32']),
    (lambda: ops.dequantize(CODES, RANGES, 4, 2, 16, 8, 16, torch.float32), TypeError, ['ranges', 'bfloat16', 'float32']),
    (lambda: ops.dequantize(CODES, RANGES, 4, 2, 16, 8, 0, torch.int8), TypeError, ['dtype', 'float32', 'int8']),
    (lambda: ops.dequantize(CODES, RANGES, -4, 2, 16, 8, 0, torch.float32), ValueError, ['outer', '-4']),
    (lambda: ops.dequantize_affine(CODES, RANGES, 4, 2, 16, 8, 0, torch.ones(5), None, 1, False, torch.float32),
     ValueError, ['scale', '5 channels', '128']),
    (lambda: ops.dequantize_affine(CODES, RANGES, 4, 2, 16, 8, 0, torch.ones(4), torch.ones(8), 1, False, torch.float32),
     ValueError, ['shift', '4', '8']),
    (lambda: ops.dequantize_affine(CODES, RANGES, 4, 2, 16, 8, 0, None, None, 0, False, torch.float32),
     ValueError, ['spatial', '0']),
    (lambda: ops.update_ranges(RANGES.clone(), RANGES[:1], 0.9), ValueError, ['observed', '(2, 2)', '(1, 2)']),
    (lambda: ops.update_ranges(RANGES.clone(), RANGES, 1.5), ValueError, ['decay', '1.5']),
])
def test_bad_arguments_are_named(call, error, words):
    with pytest.raises(error) as raised:
        call()
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_kernels_guard_memory_without_the_python_checks():
    with pytest.raises((RuntimeError, ValueError)):
        torch.ops.mesa_seg.dequantize(CODES[:10], RANGES, 4, 2, 16, 8, 0, torch.float32)
    if ops.KERNELS['CPU'] == 'compiled':
        with pytest.raises(RuntimeError, match='ranges'):
            torch.ops.mesa_seg.quantize(X, RANGES[:1], 8, 0, 0, True)
