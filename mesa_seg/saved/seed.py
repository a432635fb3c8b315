"""Seeds of stochastic rounding.

A seed comes from torch's default generator, so that ``torch.manual_seed`` reproduces a run. Inside a model's forward
the generator is only looked at, never advanced: dropout and stochastic depth then draw the same numbers as in the
stock model, and the two have the same loss. It is advanced when the gradient comes back to the model's output, so
that the next step rounds differently even where nothing else draws from it.
"""
import threading
import zlib
from contextlib import contextmanager

import torch

_MASK = (1 << 64) - 1
_state = threading.local()


def _draw(generator=None):
    return int(torch.randint(0, 1 << 62, (), generator=generator))


def _mix(x):
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def in_backward():
    """bool: whether the caller runs inside a backward pass, as a checkpoint's recomputation does."""
    return torch._C._current_graph_task_id() != -1


def next_seed():
    """int: a new seed, below 2^63."""
    base = getattr(_state, 'base', None)
    if base is None and not in_backward():
        return _draw()
    _state.count = getattr(_state, 'count', 0) + 1
    if base is None:  # a recomputation must leave the generator to the dropout that it repeats
        base = _draw(torch.default_generator.clone_state())
    return _mix(base + _state.count) >> 1


@contextmanager
def seed_stream(name):
    """Within it, :func:`next_seed` takes seeds from a stream of its own and leaves torch's generator alone.

    Args:
        name (str): tells apart streams that start from the same state of the generator (backbone and head).

    Yields:
        bool: whether this is the outermost stream; one inside another only goes on with it.
    """
    if getattr(_state, 'base', None) is not None:
        yield False
        return
    peek = torch.default_generator.clone_state()
    _state.base = _mix(_draw(peek) ^ zlib.crc32(name.encode()))
    _state.count = 0
    try:
        yield True
    finally:
        _state.base = None


def advance_with_gradient(output):
    """Advance torch's generator once when a gradient reaches ``output``: a tensor, or a list, tuple or dict of them."""
    if isinstance(output, torch.Tensor):
        if output.requires_grad:
            output.register_hook(_advance)
            return True
        return False
    values = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else ()
    return any(advance_with_gradient(value) for value in values)


def _advance(gradient):
    _draw()
