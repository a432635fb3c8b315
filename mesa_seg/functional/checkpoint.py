"""Activation checkpointing whose kept input is a saved form, not the tensor."""
import torch
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import get_device_states, set_device_states

from ..saved import Propagate, seed_stream
from ._autograd import grad_needed, runs_eagerly


class _Checkpoint(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, function, saved, *parameters):
        ctx.function, ctx.rebuild = function, saved.rebuild
        ctx.cpu_state = torch.get_rng_state()
        ctx.devices, ctx.device_states = get_device_states(x)
        ctx.autocast = {d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in {'cpu', x.device.type}}
        ctx.save_for_backward(*saved.tensors)
        # Recorded and thrown away at once, so that running ranges move in the forward and not in its repetition.
        with torch.enable_grad(), seed_stream('checkpoint'):
            return function(x.detach().requires_grad_(x.requires_grad)).detach()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x = ctx.rebuild(*ctx.saved_tensors).detach().requires_grad_(ctx.needs_input_grad[0])
        with torch.random.fork_rng(ctx.devices, enabled=True):
            torch.set_rng_state(ctx.cpu_state)
            set_device_states(ctx.devices, ctx.device_states)
            with torch.enable_grad(), _autocast_as(ctx.autocast), seed_stream('checkpoint'), Propagate():
                out = ctx.function(x)
        torch.autograd.backward(out, grad)
        return (x.grad, None, None) + (None, ) * (len(ctx.needs_input_grad) - 3)


class _autocast_as:

    def __init__(self, states):
        self.contexts = [torch.autocast(device, dtype, enabled) for device, (enabled, dtype) in states.items()]

    def __enter__(self):
        for context in self.contexts:
            context.__enter__()

    def __exit__(self, *error):
        for context in reversed(self.contexts):
            context.__exit__(*error)


@runs_eagerly
def checkpoint(function, x, quantizer, parameters=(), channel_dim=-1):
    """Keep the saved form of ``x`` alone and repeat ``function`` in backward.

    Args:
        function (callable): ``Tensor -> Tensor``; repeated in backward with the same random numbers and autocast.
        x (Tensor): its input.
        quantizer (Quantizer): makes the form where ``x`` has none.
        parameters (sequence[Parameter]): of ``function``: they make the output need a gradient where ``x`` does not.
        channel_dim (int): the dimension that is cut into groups.

    Returns:
        Tensor: equal to ``function(x)`` bit for bit.
    """
    if not grad_needed(x, *parameters):
        return function(x)
    return _Checkpoint.apply(x, function, quantizer.keep(x, channel_dim), *parameters)
