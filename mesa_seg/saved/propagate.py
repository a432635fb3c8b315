"""Saved forms through functions that move values and are cheap to repeat.

A view, a permutation, a roll, a padding, a resize, a pooling, a concatenation or a sum of activations that have saved forms
has one too: the same function over what is rebuilt. The model's own code stays as it is; a
``TorchFunctionMode`` sees the calls.
"""
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .activation import attach, derive, lookup

_ONE = {
    Tensor.view, Tensor.reshape, Tensor.permute, Tensor.transpose, Tensor.contiguous, Tensor.flatten, Tensor.unsqueeze,
    Tensor.squeeze, Tensor.unflatten, Tensor.movedim, Tensor.roll, Tensor.narrow, torch.reshape, torch.permute,
    torch.transpose, torch.flatten, torch.unsqueeze, torch.squeeze, torch.roll, torch.movedim, torch.narrow, F.pad, F.interpolate,
    F.adaptive_avg_pool2d, F.avg_pool2d, Tensor.float, Tensor.half, Tensor.bfloat16,
}
_SEVERAL = {torch.cat, torch.concat, torch.concatenate}
_SUMS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}
_SLICES = {Tensor.__getitem__}


def _call(x, function, args, kwargs):
    return function(x, *args, **kwargs)


def _concatenate(*xs, dim):
    return torch.cat(xs, dim)


def _add(a, b):
    return a + b


def _plain(value):
    """Whether an argument is small and immutable enough to be kept in a rebuild function."""
    if isinstance(value, (tuple, list)):
        return all(map(_plain, value))
    return value is None or isinstance(value, (int, float, str, bool, slice, torch.dtype, torch.memory_format)) \
        or value is Ellipsis


def _derive_one(function, out, args, kwargs):
    x = args[0] if args else kwargs.get('input')
    if not isinstance(x, Tensor) or out is x or not args:
        return
    saved = lookup(x)
    rest = args[1:]
    if saved is None or not _plain(rest) or not _plain(tuple(kwargs.values())):
        return
    attach(out, derive(partial(_call, function=function, args=rest, kwargs=kwargs), (saved, ), out.shape))


def _derive_concatenation(out, args, kwargs):
    tensors = args[0] if args else kwargs['tensors']
    dim = args[1] if len(args) > 1 else kwargs.get('dim', kwargs.get('axis', 0))
    forms = tuple(lookup(t) if isinstance(t, Tensor) else None for t in tensors)
    if not isinstance(dim, int) or any(f is None for f in forms) or kwargs.get('out') is not None:
        return
    dim = dim % out.dim()
    attach(out, derive(partial(_concatenate, dim=dim), forms, out.shape, parts=(dim, forms)))


def _derive_sum(out, args, kwargs):
    if kwargs or len(args) != 2 or not all(isinstance(a, Tensor) for a in args):
        return
    forms = tuple(lookup(a) for a in args)
    if forms[0] is not None and forms[1] is not None:
        attach(out, derive(_add, forms, out.shape))


class Propagate(TorchFunctionMode):
    """While it is active, the functions listed above hand saved forms on from their inputs to their output."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = function(*args, **kwargs)
        if not isinstance(out, Tensor) or not out.requires_grad or not torch.is_grad_enabled():
            return out
        if function in _ONE or (function in _SLICES and _plain(args[1])):
            _derive_one(function, out, args, kwargs)
        elif function in _SEVERAL:
            _derive_concatenation(out, args, kwargs)
        elif function in _SUMS:
            _derive_sum(out, args, kwargs)
        return out
