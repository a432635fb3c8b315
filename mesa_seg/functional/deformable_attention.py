"""Deformable attention (arXiv 2010.04159) that keeps its inputs and none of the values that it samples."""
from ..saved.leftovers import leave_exact
from ._autograd import runs_eagerly
from .checkpoint import recompute


@runs_eagerly
def deformable_attention(value, locations, weights, attend, value_quantizer, weights_quantizer):
    """Weighted sums of values sampled at places of their own for each query, head and level.

    The values and the weights are kept quantised and the places exact; backward repeats the sampling.

    Args:
        value (Tensor): ``[B, S, heads, d]``, the maps of all levels one after the other.
        locations (Tensor): ``[B, N, heads, levels, points, 2]``, x and y of the places, 0 to 1 over a map.
        weights (Tensor): ``[B, N, heads, levels, points]``.
        attend (callable): ``attend(value, locations, weights) -> [B, N, heads * d]``, such as mmcv's.
        value_quantizer (Quantizer): for the values, with a group a head.
        weights_quantizer (Quantizer): for the weights, with a group a head.

    Returns:
        Tensor: ``[B, N, heads * d]``, as ``attend`` gives it bit for bit.
    """
    leave_exact(locations)
    forms = (value_quantizer.keep(value, 2), None, weights_quantizer.keep(weights, 2))
    return recompute(attend, (value, locations, weights), forms)
