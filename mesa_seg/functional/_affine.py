"""The saved form of a normalisation's output: codes of the normalised values, scaled and shifted a channel."""
from functools import partial

from .. import ops
from ..saved import SavedActivation


def _rebuild(codes, ranges, scale=None, shift=None, *, layout, bits, block_size, spatial, relu, dtype, shape):
    x = ops.dequantize_affine(codes, ranges, layout.outer, layout.groups, layout.inner, bits, block_size, scale, shift,
                              spatial, relu, dtype)
    return x.view(shape)


def affine_form(codes, ranges, layout, quantizer, weight, bias, spatial, relu, dtype, linear_shape, shape):
    """``relu?(codes * weight + bias)``, viewed as ``linear_shape`` (whose contiguous order is the codes')."""
    affine = tuple(t.detach() for t in (weight, bias) if t is not None)
    rebuild = partial(_rebuild, layout=layout, bits=quantizer.config.bits, block_size=quantizer.block_size, spatial=spatial,
                      relu=relu, dtype=dtype, shape=tuple(linear_shape))
    return SavedActivation((codes, ranges, *affine), rebuild, shape, 'derived')
