"""Activation functions by name: they keep their input's saved form, their output's, or one bit a value."""
from functools import partial

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from .. import ops
from ..saved import attach, derive, lookup
from ..saved.layout import memory_order
from ..saved.quantizer import QUANTIZED_DTYPES
from ._autograd import grad_needed, runs_eagerly
from .relu import in_order

aten = torch.ops.aten

# Backward from the input: name -> (function, backward(grad, x, *arguments)).
_OF_INPUT = {
    'silu': (F.silu, aten.silu_backward),
    'hardswish': (F.hardswish, aten.hardswish_backward),
    'mish': (F.mish, aten.mish_backward),
    'softplus': (F.softplus, aten.softplus_backward),
    'gelu': (lambda x, approximate: F.gelu(x, approximate=approximate),
             lambda grad, x, approximate: aten.gelu_backward(grad, x, approximate=approximate)),
    'elu': (F.elu, lambda grad, x, alpha: aten.elu_backward(grad, alpha, 1, 1, False, x)),
}
# Backward from the output: name -> (function, backward(grad, y)).
_OF_OUTPUT = {
    'sigmoid': (torch.sigmoid, aten.sigmoid_backward),
    'tanh': (torch.tanh, aten.tanh_backward),
}
# Two slopes: name -> (function, mask(x, *arguments) of the inside, slopes(*arguments) inside and outside).
_TWO_SLOPES = {
    'leaky_relu': (F.leaky_relu, lambda x, slope: x > 0, lambda slope: (1.0, slope)),
    'hardtanh': (F.hardtanh, lambda x, low, high: (x > low) & (x < high), lambda low, high: (1.0, 0.0)),
    'hardsigmoid': (F.hardsigmoid, lambda x: (x > -3) & (x < 3), lambda: (1 / 6, 0.0)),
}
ACTIVATIONS = (*_OF_INPUT, *_OF_OUTPUT, *_TWO_SLOPES)


def _result(ctx, x, y, inplace):
    """``y``, or ``x`` holding its values."""
    if not inplace:
        return y.detach()
    x.copy_(y)
    ctx.mark_dirty(x)
    return x


class _OfInput(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, name, arguments, inplace, saved):
        ctx.name, ctx.arguments, ctx.rebuild = name, arguments, saved.rebuild
        ctx.save_for_backward(*saved.tensors)
        return _result(ctx, x, _OF_INPUT[name][0](x, *arguments), inplace)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x = ctx.rebuild(*ctx.saved_tensors).to(grad.dtype)
        return _OF_INPUT[ctx.name][1](grad, x, *ctx.arguments), None, None, None, None


class _OfOutput(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, name, quantizer, channel_dim, saved, box):
        y = _OF_OUTPUT[name][0](x)
        if saved is None:
            saved = quantizer(y, channel_dim)
            box.append(saved)
        ctx.name, ctx.rebuild = name, saved.rebuild
        ctx.save_for_backward(*saved.tensors)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        y = ctx.rebuild(*ctx.saved_tensors).to(grad.dtype)
        return _OF_OUTPUT[ctx.name][1](grad, y), None, None, None, None, None


class _TwoSlopes(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, name, arguments, inplace):
        function, mask, slopes = _TWO_SLOPES[name]
        ctx.order, ctx.slopes = memory_order(x), slopes(*arguments)
        ctx.save_for_backward(ops.pack_mask(in_order(mask(x, *arguments), ctx.order)[0]))
        return _result(ctx, x, function(x, *arguments), inplace)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        bits, = ctx.saved_tensors
        inside, outside = ctx.slopes
        ordered, restore = in_order(grad, ctx.order)
        grad_x = restore(ops.mask_multiply(ordered, bits, inside - outside))
        return (grad_x.add_(grad, alpha=outside) if outside else grad_x), None, None, None


class _PReLU(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, weight, saved):
        ctx.rebuild, ctx.order = saved.rebuild, memory_order(x)
        bits = ops.pack_mask(in_order(x > 0, ctx.order)[0])  # the codes of values near 0 do not tell their sign
        ctx.save_for_backward(weight, bits, *saved.tensors)
        return torch.prelu(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        weight, bits, *tensors = ctx.saved_tensors
        ordered, restore = in_order(grad, ctx.order)
        positive = restore(ops.mask_multiply(ordered, bits, 1.0))
        negative = grad - positive
        grad_weight = None
        if ctx.needs_input_grad[1]:
            product = negative * ctx.rebuild(*tensors).to(grad.dtype)
            dims = [d for d in range(grad.dim()) if d != 1 or weight.numel() == 1]
            grad_weight = product.sum(dims).reshape(weight.shape).to(weight.dtype)
        shape = [1] * grad.dim()
        if weight.numel() > 1:
            shape[1] = -1
        return positive.add_(negative.mul_(weight.view(shape))), grad_weight, None


@runs_eagerly
def activation(x, name, arguments, quantizer, channel_dim=-1, inplace=False):
    """An activation function of torch by name, keeping as little of it as its backward can do with.

    ``silu``, ``hardswish``, ``mish``, ``softplus``, ``elu`` and ``gelu`` (whose own function is faster where the input has
    no form yet) keep the saved form of their input; ``sigmoid`` and ``tanh``
    that of their output; ``leaky_relu``, ``hardtanh`` (ReLU6) and ``hardsigmoid`` one bit a value. Where the
    input's form is there, the output has one, too, and what consumes it keeps nothing.

    Args:
        x (Tensor): any shape.
        name (str): one of :data:`ACTIVATIONS`.
        arguments (tuple[float | str]): the function's own, in torch's order.
        quantizer (Quantizer | None): for what is kept; None for the functions that keep a bit.
        channel_dim (int): the dimension that is cut into groups.
        inplace (bool): change ``x`` itself; not for ``sigmoid`` and ``tanh``.

    Returns:
        Tensor: as ``x``, equal to stock's bit for bit.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f'name={name!r}: expected one of {", ".join(ACTIVATIONS)}')
    function = (_OF_INPUT.get(name) or _OF_OUTPUT.get(name) or _TWO_SLOPES[name])[0]
    if not grad_needed(x) or x.dtype not in QUANTIZED_DTYPES:
        return function(x, *arguments, inplace=True) if inplace else function(x, *arguments)
    if name in _OF_INPUT:
        held = quantizer.keep(x, channel_dim)
        y = _OfInput.apply(x, name, arguments, inplace, held)
        reuse = quantizer.reuse
    elif name in _OF_OUTPUT:
        held = lookup(x) if quantizer.reuse else None
        box = []
        of_held = None if held is None else derive(function, (held, ), x.shape)
        y = _OfOutput.apply(x, name, quantizer, channel_dim, of_held, box)
        if box and quantizer.reuse:
            return attach(y, box[0])
        reuse = held is not None
    else:
        held = lookup(x)
        y = _TwoSlopes.apply(x, name, arguments, inplace)
        reuse = held is not None
    if reuse:
        attach(y, derive(partial(_apply, function=function, arguments=arguments), (held, ), y.shape))
    return y


def _apply(x, function, arguments):
    return function(x, *arguments)


@runs_eagerly
def prelu(x, weight, quantizer):
    """``torch.nn.functional.prelu``: keeps its input's saved form for the slopes' gradient, and one bit a value.

    Args:
        x (Tensor): ``[B, C, *spatial]``, or any shape with one slope.
        weight (Tensor): slopes left of 0, ``[C]`` or ``[1]``.
        quantizer (Quantizer): for the input.

    Returns:
        Tensor: as ``x``, equal to stock's bit for bit.
    """
    if not grad_needed(x, weight) or x.dtype not in QUANTIZED_DTYPES or x.dtype != weight.dtype:
        return F.prelu(x, weight)
    held = quantizer.keep(x, 1 if x.dim() > 1 else 0)
    y = _PReLU.apply(x, weight, held)
    return attach(y, derive(torch.prelu, (held, ), y.shape, extra=(weight, ))) if quantizer.reuse else y
