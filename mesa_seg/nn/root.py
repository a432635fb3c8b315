"""The module that was converted as a whole: its forward hands saved forms on between its parts."""
import functools

import torch

from ..functional._autograd import runs_eagerly
from ..saved import Propagate, advance_with_gradient, seed_stream


class MesaRoot:
    """Mixed in front of a model's class. In training its forward runs with saved forms handed on through functions that move
    values, and with seeds of its own (:mod:`mesa_seg.saved.seed`)."""

    mesa_enabled = False

    def forward(self, *args, **kwargs):
        if not (self.mesa_enabled and self.training and torch.is_grad_enabled()):
            return super().forward(*args, **kwargs)
        return self._forward_in_training(*args, **kwargs)

    @runs_eagerly
    def _forward_in_training(self, *args, **kwargs):
        with seed_stream(type(self).__name__) as outermost:
            if not outermost:
                return super().forward(*args, **kwargs)
            with Propagate():
                out = super().forward(*args, **kwargs)
        advance_with_gradient(out)
        return out


@functools.cache
def root_class(cls):
    """The class ``cls`` with :class:`MesaRoot` in front. Its modules are copied and pickled through ``cls``."""

    def __reduce_ex__(self, protocol):
        return _new_root, (cls, ), self.__dict__.copy()

    return type(f'Mesa{cls.__name__}', (MesaRoot, cls),
                {'__module__': cls.__module__, '__doc__': cls.__doc__, '__reduce_ex__': __reduce_ex__})


def _new_root(cls):
    made = root_class(cls)
    return made.__new__(made)
