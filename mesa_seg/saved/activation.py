"""What stands in for an activation until backward needs it: the saved form.

Three kinds: *exact* (the tensor itself), *quantized* (codes and the ranges they were made with) and *derived* (a pure
function of other saved forms: affine, GELU, ReLU, resize, concatenation, permutation, view, ...). An operation that
produces an activation attaches the form to its output; the operation that consumes it looks it up, so that each thing is
kept once.
"""
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

# A derived form that would have to read more than this many values for each value it rebuilds is not made: the consumer
# quantises the tensor instead. Bounds chains such as the residual stream of a ResNet.
MAX_REBUILD_COST = 4.0

_ATTRIBUTE = '_mesa_saved_form'


@dataclass(frozen=True)
class SavedActivation:
    """How to get an activation back.

    Attributes:
        tensors: what goes into ``ctx.save_for_backward``, nothing else of the activation is kept.
        rebuild: ``rebuild(*tensors) -> Tensor``, a pure function that closes over no tensor.
        shape: shape of the activation.
        kind: ``'exact'``, ``'quantized'`` or ``'derived'``.
        cost: values read for one value rebuilt, 1 for codes, the sum of its sources' for a derived form.
        parts: for a concatenation, ``(dim, forms)``, so that a consumer can rebuild and use one part at a time.
    """
    tensors: tuple[Tensor, ...]
    rebuild: Callable[..., Tensor] = field(repr=False)
    shape: torch.Size
    kind: str
    cost: float = 1.0
    parts: tuple[int, tuple['SavedActivation', ...]] | None = field(default=None, repr=False)

    def nbytes(self):
        """Bytes of ``tensors``."""
        return sum(t.numel() * t.element_size() for t in self.tensors)


def _identity(x):
    return x


def exact(x):
    """The form that is the tensor itself."""
    return SavedActivation((x.detach(),), _identity, x.shape, 'exact', 0.0)


class _Rebuild:
    """``function`` over the tensors rebuilt from each source, then ``extra`` tensors."""
    __slots__ = ('function', 'sources', 'counts')

    def __init__(self, function, sources, counts):
        self.function = function
        self.sources = sources
        self.counts = counts

    def __call__(self, *tensors):
        arguments, start = [], 0
        for rebuild, count in zip(self.sources, self.counts, strict=False):
            arguments.append(rebuild(*tensors[start:start + count]))
            start += count
        return self.function(*arguments, *tensors[start:])


def derive(function, sources, shape, extra=(), parts=None):
    """A form computed from others, or ``None`` where rebuilding would read too much (:data:`MAX_REBUILD_COST`).

    Args:
        function (callable): pure; takes the rebuilt sources, then ``extra``.
        sources (sequence[SavedActivation]): what it is computed from.
        shape (torch.Size): shape of the result.
        extra (sequence[Tensor]): further tensors, small ones or parameters, kept as they are.
        parts (tuple, optional): see :class:`SavedActivation`.
    """
    numel = max(1, shape.numel())
    cost = sum(max(1.0, s.cost) * s.shape.numel() for s in sources) / numel
    if cost > MAX_REBUILD_COST:
        return None
    extra = tuple(e.detach() for e in extra)
    rebuild = _Rebuild(function, tuple(s.rebuild for s in sources), tuple(len(s.tensors) for s in sources))
    tensors = sum((s.tensors for s in sources), ()) + extra
    return SavedActivation(tensors, rebuild, shape, 'derived', cost, parts)


def attach(x, saved):
    """Attach a form to the tensor it stands for. An in-place edit of ``x`` makes it stale."""
    if saved is not None:
        setattr(x, _ATTRIBUTE, (saved, x._version))
    return x


def lookup(x):
    """The form attached to ``x``, or ``None`` where there is none or it is stale."""
    found = getattr(x, _ATTRIBUTE, None)
    if found is None or found[1] != x._version:
        return None
    return found[0]
