"""Window attention: against mmseg's own modules, and the compiled kernel against the reference in float64."""
import os
import pathlib
import subprocess
import sys

import pytest
import torch

from mesa_seg import compat, ops
from mesa_seg.reference import window_attention as reference


@pytest.mark.parametrize('size', [(14, 14), (10, 17), (3, 5)])
@pytest.mark.parametrize('window,shift', [(7, 0), (7, 3), (12, 0), (12, 6)])
@pytest.mark.parametrize('qkv_bias', [True, False])
def test_equals_mmseg(size, window, shift, qkv_bias):
    compat.prepare()
    from mmseg.models.backbones import swin
    heads, width = 3, 24
    module = swin.ShiftWindowMSA(width, heads, window, shift, qkv_bias=qkv_bias)
    msa, n = module.w_msa, window * window
    torch.nn.init.normal_(msa.relative_position_bias_table)
    x = torch.randn(2, size[0] * size[1], width, requires_grad=True)
    expected = module(x, size)
    leaves = [x, *msa.parameters()]
    grad = torch.randn_like(expected)
    expected_grads = torch.autograd.grad(expected, leaves, grad, retain_graph=True)

    qkv = msa.qkv(x).view(2, *size, -1)
    table = msa.relative_position_bias_table[msa.relative_position_index.flatten()]
    bias = table.view(n, n, heads).permute(2, 0, 1)
    pad = msa.qkv.bias.detach() if qkv_bias else None
    args = qkv.detach(), pad, bias.detach(), heads, window, shift, msa.scale
    out = ops.window_attention(*args).requires_grad_()
    actual = msa.proj(out).view_as(expected)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)

    gout, = torch.autograd.grad(actual, out, grad, retain_graph=True)
    gqkv, gpad, gbias = ops.window_attention_backward(gout, *args)
    assert not gpad[:width].any()
    actual_grads = list(torch.autograd.grad([qkv, bias, actual], leaves, [gqkv, gbias, grad]))
    for place, leaf in enumerate(leaves):
        if leaf is msa.qkv.bias:
            actual_grads[place] = actual_grads[place] + gpad
    for mine, theirs in zip(actual_grads, expected_grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-5 * theirs.abs().max().item() + 1e-5)


def make(batch, height, width, heads, dim, window, shift, dtype=torch.float32, pad=True):
    """Arguments of both operators, the gradient first."""
    generator = torch.Generator().manual_seed(height * 100 + width)
    qkv = torch.randn(batch, height, width, 3 * heads * dim, generator=generator).to(dtype)
    fill = torch.randn(3 * heads * dim, generator=generator) if pad else None
    bias = torch.randn(heads, window ** 2, window ** 2, generator=generator)
    grad = torch.randn(batch, height, width, heads * dim, generator=generator).to(dtype)
    return grad, qkv, fill, bias, heads, window, shift, dim ** -0.5


def wide(args):
    return [x.double() if isinstance(x, torch.Tensor) else x for x in args]


SHAPES = [
    # batch, height, width, heads, dim, window, shift
    (2, 14, 14, 3, 32, 7, 0),
    (2, 14, 14, 3, 32, 7, 3),
    (1, 16, 17, 2, 32, 7, 3),   # padded at the right and the bottom
    (2, 3, 5, 1, 24, 7, 2),     # smaller than a window
    (1, 8, 20, 2, 8, 7, 6),
    (1, 13, 25, 1, 48, 12, 6),
    (1, 24, 12, 2, 32, 12, 0),
    (1, 9, 10, 3, 5, 4, 1),     # odd head width
    (3, 1, 1, 2, 16, 4, 3),
    (1, 3, 2, 2, 64, 1, 0),     # every token attends to itself alone
]


@pytest.mark.parametrize('dtype,tolerance', [(torch.float32, 2e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('pad', [True, False])
def test_equals_float64_reference(shape, pad, dtype, tolerance):
    grad, *args = make(*shape, dtype=dtype, pad=pad)
    out = ops.window_attention(*args)
    expected = reference.window_attention(*wide(args))
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    actual = ops.window_attention_backward(grad, *args)
    expected = reference.window_attention_backward(*wide([grad, *args]))
    assert [x.dtype for x in actual] == [dtype, torch.float32, torch.float32]
    for mine, theirs in zip(actual, expected, strict=True):
        scale = 1 + theirs.abs().max().item()
        torch.testing.assert_close(mine.double(), theirs, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize('shape', [(2, 5, 7, 2, 3, 4, 0), (2, 5, 7, 2, 3, 4, 1)])
def test_reference_equals_autograd(shape):
    grad, *args = wide(make(*shape))
    inputs = [x.requires_grad_() for x in args[:3]]
    expected = torch.autograd.grad(reference.window_attention(*args), inputs, grad)
    for mine, theirs in zip(reference.window_attention_backward(grad, *args), expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def both(args):
    return [ops.window_attention(*args[1:]), *ops.window_attention_backward(*args)]


def test_threads_do_not_matter():
    args = make(3, 16, 23, 3, 32, 7, 3)
    threads = torch.get_num_threads()
    results = []
    try:
        for n in (1, 2, 5):
            torch.set_num_threads(n)
            results.append(both(args))
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


@pytest.mark.parametrize('level', ['0', '3'])
def test_lesser_instruction_sets(level, tmp_path):
    """The kernel has a copy for each instruction set: plain, AVX2 and AVX-512."""
    shapes = [SHAPES[2], SHAPES[5], SHAPES[7]]
    code = f"""
import sys
import torch
sys.path[:0] = ['.', 'tests/ops']
from test_window_attention import both, make
torch.save([both(make(*shape)) for shape in {shapes}], {str(tmp_path / 'out.pt')!r})
"""
    root = pathlib.Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, '-W', 'ignore', '-c', code], check=True, cwd=root,
                   env={**os.environ, 'MESA_SEG_CPU_LEVEL': level})
    for shape, actual in zip(shapes, torch.load(tmp_path / 'out.pt'), strict=True):
        for mine, theirs in zip(actual, both(make(*shape)), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=2e-5)


def test_other_layouts_and_dtypes_of_the_small_arguments():
    grad, qkv, pad, bias, *rest = make(2, 9, 8, 2, 16, 4, 2)
    expected = both([grad, qkv, pad.bfloat16().float(), bias.half().float(), *rest])
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (grad, qkv)]
    actual = both([*turned, pad.bfloat16(), bias.half().transpose(1, 2).contiguous().transpose(1, 2), *rest])
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize('shape', [(0, 8, 8, 2, 16, 4, 2), (2, 0, 8, 2, 16, 4, 2)])
def test_empty(shape):
    out, gqkv, gpad, gbias = both(make(*shape))
    assert out.shape == (*shape[:3], 32) and gqkv.shape == (*shape[:3], 96)
    assert gpad.shape == (96,) and gbias.shape == (2, 16, 16) and not gpad.any() and not gbias.any()


def test_non_finite_values_stay_in_their_window():
    """A NaN key spoils its own window and head, as it does in mmseg, and nothing else; large logits do not overflow."""
    grad, qkv, *rest = make(1, 8, 8, 2, 16, 4, 0)
    good = ops.window_attention(qkv, *rest)
    qkv[0, 1, 1, 32:48] = float('nan')  # k of head 0 in the first window
    bad = ops.window_attention(qkv, *rest)
    assert bad[0, :4, :4, :16].isnan().all()
    bad[0, :4, :4, :16] = good[0, :4, :4, :16]
    assert torch.equal(bad, good)
    large = ops.window_attention(torch.full_like(qkv, 1e4), *rest)
    torch.testing.assert_close(large, torch.full_like(large, 1e4))


@pytest.mark.parametrize('change,message', [
    ({'qkv': torch.zeros(2, 9, 96)}, 'qkv: expected'),
    ({'heads': 5}, 'heads: expected a divisor'),
    ({'window': 0}, 'window: expected'),
    ({'shift': 4}, 'shift: expected 0 <= shift < window = 4, got 4'),
    ({'shift': -1}, 'shift: expected'),
    ({'pad': torch.zeros(95)}, r'pad: expected \[3C\] = \[96\], got \[95\]'),
    ({'bias': torch.zeros(2, 16, 15)}, r'bias: expected .*got \[2, 16, 15\]'),
    ({'grad': torch.zeros(2, 9, 8, 33)}, 'grad: expected'),
    ({'grad': torch.zeros(2, 9, 8, 32).half()}, "grad: expected qkv's dtype"),
])
@pytest.mark.parametrize('run', [ops.window_attention_backward, reference.window_attention_backward])
def test_bad_arguments_are_named(run, change, message):
    names = 'grad', 'qkv', 'pad', 'bias', 'heads', 'window', 'shift', 'scale'
    args = {**dict(zip(names, make(2, 9, 8, 2, 16, 4, 2), strict=True)), **change}
    with pytest.raises(RuntimeError, match=message):
        run(*args.values())


@pytest.mark.parametrize('pad', [True, False])
def test_opcheck(pad):
    grad, *args = make(1, 5, 6, 2, 8, 4, 1, pad=pad)
    torch.library.opcheck(torch.ops.mesa_seg.window_attention.default, args)
    torch.library.opcheck(torch.ops.mesa_seg.window_attention_backward.default, (grad, *args))
