"""Quantising one activation of one module: its settings and its running ranges."""
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import nn

from .. import ops
from .activation import SavedActivation, attach, exact, lookup
from .layout import grouped
from .seed import in_backward, next_seed

QUANTIZED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class QuantizerConfig:
    """How activations are quantised.

    Attributes:
        bits: 8, 4 or 2.
        granularity: ``'head'``, one running range for each group of channels (Mesa, arXiv 2111.11124, section 3.2), or
            ``'block'``, the exact range of each ``block_size`` neighbouring values.
        block_size: values of a block, a multiple of 8 from 16 to 1024.
        rounding: ``'stochastic'`` (unbiased) or ``'nearest'``.
        decay: weight of the past in the running ranges, 0 <= decay < 1.
        group_size: channels of a group (granularity ``'head'``); attention takes its heads instead.
    """
    bits: int = 8
    granularity: str = 'head'
    block_size: int = 64
    rounding: str = 'stochastic'
    decay: float = 0.9
    group_size: int = 32

    def __post_init__(self):
        def check(ok, name, expected):
            if not ok:
                raise ValueError(f'mesa: {name}={getattr(self, name)!r}: expected {expected}')

        def whole(value):
            return isinstance(value, int) and not isinstance(value, bool)

        check(whole(self.bits) and self.bits in (8, 4, 2), 'bits', '8, 4 or 2')
        check(self.granularity in ('head', 'block'), 'granularity', "'head' or 'block'")
        check(whole(self.block_size) and 16 <= self.block_size <= 1024 and self.block_size % 8 == 0, 'block_size',
              'a multiple of 8 from 16 to 1024')
        check(self.rounding in ('stochastic', 'nearest'), 'rounding', "'stochastic' or 'nearest'")
        check(isinstance(self.decay, (int, float)) and not isinstance(self.decay, bool) and 0 <= self.decay < 1, 'decay',
              'a number from 0 up to, not including, 1')
        check(whole(self.group_size) and self.group_size > 0, 'group_size', 'a positive whole number of channels')

    @classmethod
    def keys(cls):
        return tuple(f.name for f in fields(cls))


def dequantize(codes, ranges, layout, bits, block_size, dtype):
    """Codes back to the tensor they were made from (its shape and dtype, its order of dimensions)."""
    return layout.restore(
        ops.dequantize(codes, ranges, layout.outer, layout.groups, layout.inner, bits, block_size, dtype))


class Quantizer(nn.Module):
    """Quantises the activation that one module keeps.

    The running ranges are a buffer that is not part of the state dict: checkpoints of a Mesa model and of its stock twin
    have the same keys, and after a resume the first step measures its ranges exactly.

    Args:
        config (QuantizerConfig): settings.
        groups (int, optional): number of groups, instead of ``config.group_size`` channels each.
        reuse (bool): whether a saved form that another operation made may stand in for a copy of one's own.
    """

    def __init__(self, config, groups=None, reuse=True):
        super().__init__()
        self.config = config
        self.groups = groups
        self.reuse = reuse
        self.register_buffer('running', None, persistent=False)

    @property
    def block_size(self):
        """int: the operators' ``block_size``: 0 stands for granularity ``'head'``."""
        return self.config.block_size if self.config.granularity == 'block' else 0

    @property
    def stochastic(self):
        return self.config.rounding == 'stochastic'

    def grouped(self, x, channel_dim):
        """``x`` viewed ``[outer, groups, inner]``, and its :class:`Layout`."""
        return grouped(x, channel_dim, self.config.group_size, self.groups)

    @property
    def coding(self):
        """tuple[int, int]: ``(bits, block_size)`` for an operator that reads codes."""
        return self.config.bits, self.block_size

    def encode(self, groups, observe, operator):
        """Run an operator that quantises, with the ranges of this forward, and let it move the running ones.

        Args:
            groups (int): number of groups of what is quantised.
            observe (callable): returns its own ranges; see :meth:`ranges`.
            operator (callable): ``operator(ranges, bits, block_size, seed, stochastic) -> (*outputs, codes, ranges found)``.

        Returns:
            tuple: the operator's outputs, the last one being the ranges that the codes were made with.
        """
        ranges = self.ranges(groups, observe)
        *outputs, found = operator(ranges, *self.coding, next_seed() if self.stochastic else 0, self.stochastic)
        self.update(found)
        return (*outputs, found if ranges is None else ranges)

    def ranges(self, groups, observe):
        """The ranges to quantise with in this forward, float32 ``[groups, 2]``; ``None`` for granularity ``'block'``.

        Args:
            groups (int): number of groups of this activation.
            observe (callable): returns this activation's own ranges; called where there is no running estimate yet.
        """
        if self.block_size:
            return None
        if self.running is None or self.running.shape[0] != groups:
            observed = observe()
            observed = torch.where(observed[:, :1] > observed[:, 1:], 0.0, observed)  # a group with nothing finite
            if not in_backward():
                self.running = observed.clone()
            return observed
        return self.running.clone()  # kept beside the codes; later forwards update `running` in place

    def update(self, observed):
        """Move the running ranges towards this forward's own (``observed``, float32 ``[groups, 2]``).

        Nothing moves inside a backward pass, where a forward is only repeated.
        """
        if not self.block_size and not in_backward():
            ops.update_ranges(self.running, observed, self.config.decay)

    def keep(self, x, channel_dim):
        """The saved form of ``x``: the one attached to it, else a new one, which is attached for the next consumer.

        None is attached to a leaf: an input outlives the step, and its form should not.
        """
        saved = lookup(x) if self.reuse else None
        if saved is None:
            saved = self(x, channel_dim)
            if self.reuse and x.grad_fn is not None:
                attach(x, saved)
        return saved

    def forward(self, x, channel_dim):
        """Quantise ``x``.

        Args:
            x (Tensor): float32, float16 or bfloat16, any shape. Other dtypes are kept exact.
            channel_dim (int): the dimension that is cut into groups.

        Returns:
            SavedActivation
        """
        x = x.detach()
        if x.dtype not in QUANTIZED_DTYPES:
            return exact(x)
        x3, layout = self.grouped(x, channel_dim)
        kept = self.encode(layout.groups, partial(ops.group_range, x3), partial(ops.quantize, x3))
        rebuild = partial(dequantize, layout=layout, bits=self.config.bits, block_size=self.block_size, dtype=x.dtype)
        return SavedActivation(kept, rebuild, x.shape, 'quantized')

    def extra_repr(self):
        c = self.config
        where = f'block_size={c.block_size}' if self.block_size else f'decay={c.decay}'
        return f'bits={c.bits}, granularity={c.granularity!r}, {where}, rounding={c.rounding!r}'
