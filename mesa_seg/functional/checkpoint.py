"""Activation checkpointing whose kept inputs are saved forms, not the tensors."""
import torch
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import get_device_states, set_device_states

from ..saved import Propagate, exact, seed_stream
from ._autograd import autocast_state, grad_needed, runs_eagerly


class _Checkpoint(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, function, saved, *parameters):
        ctx.function, ctx.rebuild, ctx.parameters = function, saved.rebuild, parameters
        ctx.cpu_state = torch.get_rng_state()
        ctx.devices, ctx.device_states = get_device_states(x)
        ctx.autocast = autocast_state(x.device.type)
        ctx.save_for_backward(*saved.tensors)
        # Recorded and thrown away at once, so that running ranges move in the forward and not in its repetition.
        with torch.enable_grad(), seed_stream('checkpoint'):
            return function(x.detach().requires_grad_(x.requires_grad)).detach()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        needed = [ctx.needs_input_grad[0], *ctx.needs_input_grad[3:]]
        x = ctx.rebuild(*ctx.saved_tensors).detach().requires_grad_(needed[0])
        with torch.random.fork_rng(ctx.devices, enabled=True):
            torch.set_rng_state(ctx.cpu_state)
            set_device_states(ctx.devices, ctx.device_states)
            with torch.enable_grad(), ctx.autocast, seed_stream('checkpoint'), Propagate():
                out = ctx.function(x)
        # Returned, not accumulated here: hooks on the parameters (DDP's) expect one gradient a backward pass.
        inputs = [t for t, wanted in zip((x, *ctx.parameters), needed, strict=True) if wanted]
        found = iter(torch.autograd.grad(out, inputs, grad, allow_unused=True))
        grad_x, *grads = [next(found) if wanted else None for wanted in needed]
        return (grad_x, None, None, *grads)


@runs_eagerly
def checkpoint(function, x, quantizer, parameters=(), channel_dim=-1):
    """Keep the saved form of ``x`` alone and repeat ``function`` in backward.

    Args:
        function (callable): ``Tensor -> Tensor``; repeated in backward with the same random numbers and autocast.
        x (Tensor): its input.
        quantizer (Quantizer): makes the form where ``x`` has none.
        parameters (sequence[Parameter]): all of ``function``'s; no other gets a gradient.
        channel_dim (int): the dimension that is cut into groups.

    Returns:
        Tensor: equal to ``function(x)`` bit for bit.
    """
    if not grad_needed(x, *parameters):
        return function(x)
    return _Checkpoint.apply(x, function, quantizer.keep(x, channel_dim), *parameters)


class _Recompute(torch.autograd.Function):

    @staticmethod
    def forward(ctx, function, saved, *tensors):
        ctx.function = function
        ctx.autocast = autocast_state(next(t for t in tensors if t is not None).device.type)
        ctx.parts = [(None, 1) if s is None else (s.rebuild, len(s.tensors)) for s in saved]
        ctx.save_for_backward(*(t for s in saved for t in ((None, ) if s is None else s.tensors)))
        return function(*tensors).detach()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        kept, inputs = list(ctx.saved_tensors), []
        for (rebuild, count), needed in zip(ctx.parts, ctx.needs_input_grad[2:], strict=True):
            x = None if rebuild is None else rebuild(*kept[:count]).detach().requires_grad_(needed)
            inputs.append(x)
            del kept[:count]
        with torch.enable_grad(), ctx.autocast:
            out = ctx.function(*inputs)
        if out.requires_grad:
            torch.autograd.backward(out, grad)
        return (None, None, *(None if x is None else x.grad for x in inputs))


@runs_eagerly
def recompute(function, tensors, forms=None):
    """Keep the inputs of a function and nothing from inside it, and repeat it in backward.

    Args:
        function (callable): of the tensors, to one Tensor; draws no random numbers, and has no parameters of its own.
        tensors (sequence[Tensor | None]): its inputs, at least one of them a tensor.
        forms (sequence[SavedActivation | None], optional): what is kept for each; ``None`` for the tensor itself.

    Returns:
        Tensor: equal to ``function(*tensors)`` bit for bit.
    """
    if not grad_needed(*tensors):
        return function(*tensors)
    forms = forms or [None] * len(tensors)
    saved = [form or (None if x is None else exact(x.detach())) for x, form in zip(tensors, forms, strict=True)]
    return _Recompute.apply(function, saved, *tensors)
