"""Window attention: the reference against mmseg's own modules, the compiled kernel against the reference."""
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
    for mine, theirs in zip(actual_grads, expected_grads):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-5 * theirs.abs().max().item() + 1e-5)


def make(batch, height, width, heads, dim, window, dtype=torch.float32, pad=True):
    generator = torch.Generator().manual_seed(height * 100 + width)
    qkv = torch.randn(batch, height, width, 3 * heads * dim, generator=generator).to(dtype)
    fill = torch.randn(3 * heads * dim, generator=generator) if pad else None
    bias = torch.randn(heads, window ** 2, window ** 2, generator=generator)
    grad = torch.randn(batch, height, width, heads * dim, generator=generator).to(dtype)
    return grad, qkv, fill, bias


@pytest.mark.parametrize('shift', [0, 1])
def test_reference_gradients(shift):
    """The explicit formulas against autograd, in float64."""
    _, qkv, pad, bias = [x.double() for x in make(2, 5, 7, 2, 3, 4)]
    inputs = [x.requires_grad_() for x in (qkv, pad, bias)]
    out = reference.window_attention(*inputs, 2, 4, shift, 0.3)
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(out, inputs, grad)
    actual = reference.window_attention_backward(grad, *inputs, 2, 4, shift, 0.3)
    for mine, theirs in zip(actual, expected):
        torch.testing.assert_close(mine, theirs)
