"""Window attention on CUDA against the CPU operators: float sums are taken in another order, nothing else differs."""
import pytest
import torch

SHAPES = [
    # batch, height, width, heads, dim, window, shift
    (1, 7, 7, 1, 32, 7, 0),
    (2, 8, 13, 2, 8, 7, 3),     # padded, shifted
    (1, 3, 2, 1, 24, 4, 1),     # smaller than a window
    (2, 5, 6, 3, 5, 3, 1),      # odd head width
    (1, 9, 5, 2, 48, 4, 2),
    (1, 2, 3, 2, 16, 1, 0),
]


def make(batch, height, width, heads, dim, window, shift, dtype=torch.float32, pad=True):
    """Arguments of both operators, the gradient first."""
    generator = torch.Generator().manual_seed(height * 100 + width)
    qkv = torch.randn(batch, height, width, 3 * heads * dim, generator=generator).to(dtype)
    fill = torch.randn(3 * heads * dim, generator=generator) if pad else None
    bias = torch.randn(heads, window ** 2, window ** 2, generator=generator)
    grad = torch.randn(batch, height, width, heads * dim, generator=generator).to(dtype)
    return grad, qkv, fill, bias, heads, window, shift, dim ** -0.5


def run(call, args):
    return [call('window_attention', *args[1:]), *call('window_attention_backward', *args)]


def on_cpu(operator, *args):
    return getattr(torch.ops.mesa_seg, operator)(*args)


def compare(actual, expected, dtype):
    tolerance = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine.dtype == theirs.dtype
        scale = 1 + theirs.abs().max().item()
        torch.testing.assert_close(mine.float(), theirs.float(), rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('pad', [True, False])
def test_shapes(device, shape, pad, monkeypatch):
    args = make(*shape, pad=pad)
    expected = run(on_cpu, args)
    results = [run(device.call, args) for _ in device.orders(monkeypatch, 2)]
    compare(results[0], expected, torch.float32)
    for again in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(again, results[0], strict=True))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_dtypes(device, dtype):
    for shape in (SHAPES[1], SHAPES[3]):
        args = make(*shape, dtype=dtype)
        compare(run(device.call, args), run(on_cpu, args), dtype)


def test_window_of_twelve(device):
    """144 tokens: the queries come in several tiles."""
    args = make(1, 11, 12, 1, 8, 12, 5)
    compare(run(device.call, args), run(on_cpu, args), torch.float32)


def test_more_sums_than_threads(device):
    """144 tokens of width 64: more k and v gradients than the threads of a block hold at once."""
    args = make(1, 3, 5, 1, 64, 12, 0)
    compare(run(device.call, args), run(on_cpu, args), torch.float32)


def test_few_blocks(device, monkeypatch):
    device.limit_grid(monkeypatch, 2)
    args = make(2, 6, 9, 3, 4, 3, 1)
    compare(run(device.call, args), run(on_cpu, args), torch.float32)


def test_little_shared_memory(device, monkeypatch):
    """Smaller tiles, and the same result bit for bit."""
    args = make(1, 8, 7, 1, 16, 7, 2)
    expected = run(device.call, args)
    monkeypatch.setenv('MESA_EMU_MAX_SHARED', '20000')
    assert all(torch.equal(a, b) for a, b in zip(run(device.call, args), expected, strict=True))


def test_unaligned_and_empty(device):
    args = list(make(1, 4, 5, 2, 8, 4, 1))
    expected = run(on_cpu, args)
    for place in (0, 1):
        moved = torch.empty(args[place].numel() + 1)[1:].view(args[place].shape)
        args[place] = moved.copy_(args[place])
    compare(run(device.call, args), expected, torch.float32)
    args = make(0, 4, 5, 2, 8, 4, 1)
    assert all(torch.equal(a, b) for a, b in zip(run(device.call, args), run(on_cpu, args), strict=True))


def test_large_windows_are_refused(device):
    args = make(1, 4, 5, 1, 4, 17, 0)
    with pytest.raises(RuntimeError, match='window: expected 1 to 16, got 17'):
        device.call('window_attention', *args[1:])
