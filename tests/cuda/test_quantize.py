"""The quantising kernels against the CPU operators, bit for bit."""
import pytest
import torch

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
BITS = [8, 4, 2]
# [outer, groups, inner]: vectors, odd sizes, one value, groups longer and shorter than a block of threads, nothing
SHAPES = [(5, 3, 32), (2, 2, 2080), (3, 5, 7), (1, 1, 1), (70, 1, 8), (4, 3, 12), (0, 3, 8), (3, 0, 8), (3, 2, 0)]


def values(shape, dtype, layout='contiguous', special=True):
    g = torch.Generator().manual_seed(sum(shape))
    outer, groups, inner = shape
    if layout == 'permuted':
        x = torch.randn(inner, outer, groups, generator=g).permute(1, 2, 0)
    elif layout == 'sliced':  # rows are apart, vectors still fit
        x = torch.randn(outer, groups + 1, inner + 8, generator=g)[:, 1:, 8:]
    elif layout == 'unaligned':
        x = torch.randn(outer * groups * inner + 1, generator=g)[1:].view(shape)
    else:
        x = torch.randn(shape, generator=g)
    x = x.mul_(3)
    if special and x.numel() > 40:
        flat = torch.tensor([float('nan'), float('inf'), float('-inf'), 0.0, -0.0, 1e-40, 3e38])
        x[1, 0, :flat.numel()] = flat[:inner]
        x[-1, -1] = float('nan')
    y = torch.empty_strided(x.shape, x.stride(), dtype=dtype) if layout != 'unaligned' else None
    if y is None:
        return torch.empty(x.numel() + 1, dtype=dtype)[1:].view(shape).copy_(x)
    if layout == 'sliced':
        y = torch.empty(outer, groups + 1, inner + 8, dtype=dtype)[:, 1:, 8:]
    return y.copy_(x)


def given_ranges(groups):
    r = torch.tensor([[-3.0, 4.0], [-1.0, 1.5], [0.0, 0.0], [-7.25, 3.0], [2.0, -2.0]])
    return r.repeat((groups + 4) // 5, 1)[:groups].contiguous()


def check(device, monkeypatch, x, ranges, bits, block_size, stochastic, orders=2):
    args = (x, ranges, bits, block_size, 0x123456789abcdef, stochastic)
    codes, found = torch.ops.mesa_seg.quantize(*args)
    used = found if block_size else ranges
    y = torch.ops.mesa_seg.dequantize(codes, used, *x.shape, bits, block_size, x.dtype)
    for _ in device.orders(monkeypatch, orders):
        got, got_found = device.call('quantize', *args)
        assert torch.equal(got, codes)
        assert torch.equal(got_found, found)
        assert torch.equal(device.call('dequantize', codes, used, *x.shape, bits, block_size, x.dtype), y)
    return codes, used


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('bits', BITS)
@pytest.mark.parametrize('shape', SHAPES)
def test_groups(device, shape, bits, dtype, monkeypatch):
    check(device, monkeypatch, values(shape, dtype), given_ranges(shape[1]), bits, 0, True)


@pytest.mark.parametrize('block_size', [16, 24, 64, 256, 1000, 1024])
@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('bits', BITS)
def test_blocks(device, bits, dtype, block_size, monkeypatch):
    for shape in ((2, 3, 411), (1, 1, 1), (0, 2, 4)):
        check(device, monkeypatch, values(shape, dtype), None, bits, block_size, True)


@pytest.mark.parametrize('layout', ['permuted', 'sliced', 'unaligned'])
@pytest.mark.parametrize('dtype', DTYPES)
def test_layouts(device, dtype, layout, monkeypatch):
    for shape in ((5, 3, 32), (3, 5, 7)):
        x = values(shape, dtype, layout)
        check(device, monkeypatch, x, given_ranges(shape[1]), 4, 0, True, orders=1)
        check(device, monkeypatch, x, None, 8, 64, True, orders=1)
        check(device, monkeypatch, x, None, 2, 40, False, orders=1)
        assert torch.equal(device.call('group_range', x), torch.ops.mesa_seg.group_range(x))


def test_nearest(device, monkeypatch):
    x = values((6, 2, 64), torch.float32)
    for bits in BITS:
        check(device, monkeypatch, x, given_ranges(2), bits, 0, False, orders=1)
        check(device, monkeypatch, x, None, bits, 128, False, orders=1)


def test_more_groups_than_the_table_holds(device, monkeypatch):
    check(device, monkeypatch, values((2, 700, 8), torch.float32), given_ranges(700), 8, 0, True)
    check(device, monkeypatch, values((2, 700, 3), torch.float16), given_ranges(700), 8, 0, True)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_few_blocks(device, dtype, monkeypatch):
    """More values than the grid has threads: what more than 65,535 blocks would be."""
    device.limit_grid(monkeypatch, 1)
    check(device, monkeypatch, values((40, 2, 96), dtype), given_ranges(2), 8, 0, True, orders=1)  # rows a thread
    check(device, monkeypatch, values((2, 2, 4160), dtype), given_ranges(2), 4, 0, True, orders=1)  # several columns
    check(device, monkeypatch, values((3, 5, 231), dtype), given_ranges(5), 4, 0, True, orders=1)  # no vectors
    check(device, monkeypatch, values((2, 3, 1371), dtype), None, 2, 16, True, orders=1)
    check(device, monkeypatch, values((20, 5, 7), dtype, 'permuted'), None, 2, 16, True, orders=1)


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('shape,channels,spatial', [
    ((6, 3, 32), 96, 1),      # tokens
    ((2, 2, 96), 4, 48),      # NCHW: [2, 4, 48]
    ((3, 2, 10), 4, 5),       # nothing fits a vector
    ((6, 1, 32), 96, 1),      # channels over several rows of the view
])
@pytest.mark.parametrize('block_size', [0, 32])
def test_affine(device, shape, channels, spatial, block_size, dtype):
    x = values(shape, torch.float32, special=False)
    scale, shift = torch.randn(channels, dtype=dtype), torch.randn(channels)
    for bits in BITS:
        given = None if block_size else given_ranges(shape[1])
        codes, found = torch.ops.mesa_seg.quantize(x, given, bits, block_size, 1, True)
        used = found if block_size else given
        for s, t, relu in ((scale, shift, True), (scale, None, False), (None, shift, False), (None, None, True)):
            args = (codes, used, *shape, bits, block_size, s, t, spatial, relu, dtype)
            assert torch.equal(device.call('dequantize_affine', *args), torch.ops.mesa_seg.dequantize_affine(*args))


def test_ranges(device):
    observed = torch.tensor([[-1.0, 2.0], [float('inf'), float('-inf')], [0.0, 0.0]])
    want, got = (torch.tensor([[-2.0, 2.5], [-1.0, 1.0], [-1.0, 1.0]]) for _ in range(2))
    torch.ops.mesa_seg.update_ranges(want, observed, 0.9)
    on_device = device.put(got)
    device.ops.update_ranges(on_device, device.put(observed), 0.9)
    assert torch.equal(on_device.cpu(), want)
    x = torch.full((3, 2, 8), float('nan'))
    x[:, 1] = -0.5
    assert torch.equal(device.call('group_range', x), torch.ops.mesa_seg.group_range(x))


def test_argument_errors(device):
    x = torch.zeros(2, 2, 8)
    for args, word in (((x, None, 8, 0, 0, True), 'ranges'), ((x, None, 8, 20, 0, True), 'block_size'),
                       ((x, None, 3, 64, 0, True), 'bits'), ((x[0], None, 8, 64, 0, True), 'x must be 3-D'),
                       ((x.double(), None, 8, 64, 0, True), 'x must be float')):
        with pytest.raises(RuntimeError, match=word):
            device.call('quantize', *args)
