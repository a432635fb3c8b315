"""Window attention on CUDA against the CPU operators: float sums are taken in another order, nothing else differs."""
import pytest
import torch

from mesa_seg.reference import window_attention as reference

SHAPES = [
    # batch, height, width, heads, dim, window, shift
    (1, 7, 7, 1, 32, 7, 0),
    (2, 8, 13, 2, 8, 7, 3),     # padded, shifted
    (1, 3, 2, 1, 24, 4, 1),     # smaller than a window
    (2, 5, 6, 3, 5, 3, 1),      # odd head width
    (1, 9, 5, 2, 48, 4, 2),
    (1, 2, 3, 2, 16, 1, 0),
]

HALF_SHAPES = [
    # What the kernels for tensor cores take, and beside it what they leave to the others.
    (3, 14, 14, 1, 32, 7, 0),
    (2, 8, 13, 2, 32, 7, 3),
    (1, 12, 24, 1, 32, 12, 0),
    (1, 11, 14, 2, 32, 12, 5),
    (1, 13, 9, 1, 32, 8, 3),
    (1, 10, 11, 1, 16, 11, 5),  # 121 tokens
    (2, 8, 9, 2, 8, 7, 2),
    (1, 5, 6, 2, 24, 8, 3),
    (1, 7, 9, 1, 48, 7, 3),
    (1, 9, 7, 1, 64, 8, 4),
    (1, 5, 13, 1, 56, 12, 2),
    (1, 2, 3, 2, 16, 1, 0),
    (1, 6, 5, 1, 20, 5, 1),     # a width that is no multiple of eight
    (1, 5, 6, 1, 72, 4, 1),     # too wide
    (1, 9, 13, 1, 8, 13, 0),    # too many tokens
]
HALVES = pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])


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


def exact(args):
    """Outputs of both operators in float64, backward by autograd."""
    grad, qkv, fill, bias, *rest = (x.double() if isinstance(x, torch.Tensor) else x for x in args)
    leaves = [x.requires_grad_() for x in (qkv, fill, bias)]
    out = reference.window_attention(*leaves, *rest)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def compare(actual, expected, dtype):
    tolerance = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine.dtype == theirs.dtype or theirs.dtype == torch.float64
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


@HALVES
@pytest.mark.parametrize('shape', HALF_SHAPES)
def test_halves(device, shape, dtype, monkeypatch):
    args = make(*shape, dtype=dtype)
    results = [run(device.call, args) for _ in device.orders(monkeypatch, 2)]
    compare(results[0], run(on_cpu, args), dtype)
    compare(results[0], exact(args), dtype)
    for again in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(again, results[0], strict=True))


@HALVES
def test_halves_without_pad(device, dtype):
    args = make(1, 8, 13, 1, 32, 7, 3, dtype=dtype, pad=False)
    compare(run(device.call, args), run(on_cpu, args), dtype)


@HALVES
def test_halves_without_tensor_cores(device, dtype, monkeypatch):
    monkeypatch.setenv('MESA_EMU_CAPABILITY', '75')
    args = make(*SHAPES[1], dtype=dtype)
    compare(run(device.call, args), run(on_cpu, args), dtype)


@pytest.mark.parametrize('shape', [(2, 8, 13, 1, 32, 7, 3), (1, 12, 24, 1, 32, 12, 5)])
def test_small_and_large_gradients_of_float16(device, shape):
    """Neither what is small next to float16's least normal number is lost, nor what is near its largest."""
    grad, *rest = make(*shape, dtype=torch.float16)
    for factor in (2.0**-14, 2.0**12):
        args = [grad * factor, *rest]
        actual, expected = run(device.call, args), run(on_cpu, args)
        for mine, theirs in zip(actual[1:], expected[1:], strict=True):
            bound = 2e-3 * theirs.abs().max().item() + 2.0**-24
            assert (mine.float() - theirs.float()).abs().max() <= bound


@HALVES
@pytest.mark.parametrize('shape', [(4, 7, 7, 1, 32, 7, 0), (3, 12, 12, 1, 32, 12, 0)])
def test_what_is_not_finite_stays_in_its_window(device, shape, dtype, monkeypatch):
    device.limit_grid(monkeypatch, 1)  # one block takes all of the windows
    grad, qkv, *rest = make(*shape, dtype=dtype)
    expected = run(device.call, [grad, qkv, *rest])
    grad, qkv = grad.clone(), qkv.clone()
    grad[0, 1, 2, 3] = qkv[0, 2, 1, 40] = float('inf')
    actual = run(device.call, [grad, qkv, *rest])
    for mine, theirs in zip(actual[:2], expected[:2], strict=True):
        assert not mine[0].isfinite().all()
        assert torch.equal(mine[1:], theirs[1:])


def test_window_of_twelve(device):
    """144 tokens: the queries come in several tiles."""
    args = make(1, 11, 12, 1, 8, 12, 5)
    compare(run(device.call, args), run(on_cpu, args), torch.float32)


def test_more_sums_than_threads(device):
    """144 tokens of width 64: more k and v gradients than the threads of a block hold at once."""
    args = make(1, 3, 5, 1, 64, 12, 0)
    compare(run(device.call, args), run(on_cpu, args), torch.float32)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
def test_few_blocks(device, dtype, monkeypatch):
    device.limit_grid(monkeypatch, 2)
    args = make(2, 6, 9, 3, 8, 3, 1, dtype=dtype)
    compare(run(device.call, args), run(on_cpu, args), dtype)


def test_little_shared_memory(device, monkeypatch):
    """Smaller tiles, and the same result bit for bit."""
    args = make(1, 8, 7, 1, 16, 7, 2)
    expected = run(device.call, args)
    monkeypatch.setenv('MESA_EMU_MAX_SHARED', '20000')
    assert all(torch.equal(a, b) for a, b in zip(run(device.call, args), expected, strict=True))


@pytest.mark.parametrize('window,kilobytes,of', [(7, 30, 'MAX'), (12, 99, 'MAX'), (7, 100, 'ALL')])
def test_one_window_in_shared_memory(device, window, kilobytes, of, monkeypatch):
    """No room to copy the next one ahead, of the block or of all blocks of a multiprocessor; the same result bit for bit.
    With less room yet the other kernels take over, as long as they have enough."""
    args = make(3, window, window, 1, 32, window, 2, dtype=torch.float16)
    expected = run(device.call, args)
    monkeypatch.setenv(f'MESA_EMU_{of}_SHARED', str(kilobytes * 1024))
    assert all(torch.equal(a, b) for a, b in zip(run(device.call, args), expected, strict=True))
    monkeypatch.setenv('MESA_EMU_MAX_SHARED', '25000' if window == 7 else '60000')
    compare(run(device.call, args), expected, torch.float16)
    if device.name == 'emulated':
        monkeypatch.setenv('MESA_EMU_MAX_SHARED', '12000')
        with pytest.raises(RuntimeError, match=f'window {window} with heads of 32 channels.*does not fit'):
            run(device.call, args)


def test_one_key_that_counts(device):
    """-infinity in the bias, for whole chunks of keys."""
    for dtype in (torch.float32, torch.float16):
        args = list(make(1, 12, 12, 1, 32, 12, 0, dtype=dtype))
        args[3] = torch.full_like(args[3], -float('inf'))
        args[3][..., 100] = 0.5
        compare(run(device.call, args)[:2], run(on_cpu, args)[:2], dtype)


def test_unaligned_and_empty(device):
    for dtype in (torch.float32, torch.float16):
        args = list(make(1, 4, 5, 2, 8, 4, 1, dtype=dtype))
        expected = run(on_cpu, args)
        for place in (0, 1):
            moved = torch.empty(args[place].numel() + 1, dtype=dtype)[1:].view(args[place].shape)
            args[place] = moved.copy_(args[place])
        compare(run(device.call, args), expected, dtype)
        args = make(0, 4, 5, 2, 8, 4, 1, dtype=dtype)
        assert all(torch.equal(a, b) for a, b in zip(run(device.call, args), run(on_cpu, args), strict=True))


def test_large_windows_are_refused(device):
    args = make(1, 4, 5, 1, 4, 17, 0)
    with pytest.raises(RuntimeError, match='window: expected 1 to 16, got 17'):
        device.call('window_attention', *args[1:])
