"""Compressing a whole model of any kind: what ``mesa`` does at the level of the segmentor."""
import functools

import torch
from mmseg.models.decode_heads.decode_head import BaseDecodeHead

from ..functional._autograd import runs_eagerly
from ..nn import MesaRoot, convert
from ..saved import Policy, advance_with_gradient, seed_stream
from ..saved.leftovers import QuantizeLeftovers
from .decode_heads.fused_loss import FusedLossMixin


@functools.cache
def _with_fused_loss(cls):
    return type(f'Mesa{cls.__name__}', (FusedLossMixin, cls), {'__module__': cls.__module__, '__doc__': cls.__doc__})


class _Leftovers:
    """Enters :class:`QuantizeLeftovers` around each training forward of a module."""

    def __init__(self, settings):
        self.settings = settings
        self.contexts = []

    @runs_eagerly
    def before(self, module, args):
        if not (module.training and torch.is_grad_enabled()):
            self.contexts.append(())
            return
        contexts = [QuantizeLeftovers(module, **self.settings)]
        if not (isinstance(module, MesaRoot) and module.mesa_enabled):  # which has seeds of its own
            contexts.append(seed_stream('leftovers'))
        for context in contexts:
            context.__enter__()
        self.contexts.append(contexts)

    @runs_eagerly
    def after(self, module, args, output):
        contexts = self.contexts.pop()
        for context in reversed(contexts):
            context.__exit__(None, None, None)
        if len(contexts) > 1:
            advance_with_gradient(output)


def compress(model, mesa=None, *, fused_loss=True, leftovers=False):
    """Have any model keep its activations compressed: conversion in place, and what only a whole model can have.

    Parts that are Mesa components already stay as they are.

    Args:
        model (nn.Module): a segmentor or any other module; its forward in training mode returns the loss or losses.
        mesa (dict | Policy, optional): see :class:`mesa_seg.saved.Policy`.
        fused_loss (bool): decode heads of mmseg compute their loss without full-size logits where they can
            (:class:`FusedLossMixin`).
        leftovers (bool | dict): also quantise what conversion cannot see; a dict gives the arguments of
            :class:`QuantizeLeftovers`.

    Returns:
        Conversion: what was converted, and what was left and why.
    """
    policy = Policy.from_config(mesa)
    done = convert(model, policy)
    if not policy.enable:
        return done
    for name, module in model.named_modules():
        if fused_loss and isinstance(module, BaseDecodeHead) and not isinstance(module, FusedLossMixin):
            module.__class__ = _with_fused_loss(type(module))
            done.converted[f'{name} (loss)'] = 'loss'
    if leftovers:
        hooks = _Leftovers(dict(leftovers) if isinstance(leftovers, dict) else {})
        QuantizeLeftovers(model, **hooks.settings)  # checks the settings now
        model.register_forward_pre_hook(hooks.before)
        model.register_forward_hook(hooks.after, always_call=True)
    return done
