"""A convolution whose output is rebuilt, where it is needed in backward, from the saved form of its input."""
from functools import partial

import torch.nn.functional as F

from ..saved import attach, derive, lookup
from .conv import MesaConv2d


def _convolve(x, weight, bias=None, *, dtype, settings):
    bias = None if bias is None else bias.to(dtype)
    return F.conv2d(x.to(dtype), weight.to(dtype), bias, **settings)


class MesaRebuiltConv2d(MesaConv2d):
    """:class:`MesaConv2d` whose output carries a saved form: the convolution repeated on the input's form.

    Nothing of the output is then kept by what consumes it. Worth it where repeating the convolution is cheap beside the
    consumer, as a 1 x 1 convolution in front of a 3 x 3 one is, and where it has no fewer output than input channels.
    """

    def forward(self, x):
        out = super().forward(x)
        saved = lookup(x) if self.compresses() and self.mesa_reuse else None
        if saved is None:
            return out
        settings = dict(stride=self.stride, padding=self.padding, dilation=self.dilation, groups=self.groups)
        rebuild = partial(_convolve, dtype=out.dtype, settings=settings)
        extra = tuple(p for p in (self.weight, self.bias) if p is not None)
        return attach(out, derive(rebuild, (saved, ), out.shape, extra=extra))
