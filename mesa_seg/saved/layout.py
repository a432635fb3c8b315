"""Viewing any activation as ``[outer, groups, inner]`` without copying it, and back."""
from math import gcd
from typing import NamedTuple


def inverse(order):
    """list[int]: the permutation that undoes ``order``."""
    undo = [0] * len(order)
    for position, dim in enumerate(order):
        undo[dim] = position
    return undo


class Layout(NamedTuple):
    """How a tensor was viewed when it was quantised.

    Attributes:
        order: permutation that sorts the tensor's dimensions by stride, outermost first.
        sizes: the tensor's sizes in that order.
        outer, groups, inner: sizes of the 3-D view.
    """
    order: tuple[int, ...]
    sizes: tuple[int, ...]
    outer: int
    groups: int
    inner: int

    def restore(self, x):
        """``[outer, groups, inner]`` back to the tensor's own shape and order of dimensions (a view)."""
        x = x.view(self.sizes)
        if self.order == tuple(range(len(self.order))):
            return x
        return x.permute(inverse(self.order))


def memory_order(x):
    """Dimensions of ``x`` from the largest stride to the smallest; ``range(x.dim())`` for a contiguous tensor."""
    dims = tuple(range(x.dim()))
    if x.is_contiguous() or any(x.stride(d) == 0 and x.size(d) > 1 for d in dims):
        return dims
    return tuple(sorted(dims, key=lambda d: (-x.stride(d), d)) if x.numel() else dims)


def grouped(x, channel_dim, group_size=None, groups=None):
    """View ``x`` as ``[outer, groups, inner]``.

    Args:
        x (Tensor): any shape, any strides; copied only where no view of the three dimensions exists.
        channel_dim (int): the dimension that is cut into groups.
        group_size (int, optional): channels of a group; where it does not divide the channels, their greatest common
            divisor is taken.
        groups (int, optional): the number of groups, instead of ``group_size``.

    Returns:
        tuple[Tensor, Layout]
    """
    order = memory_order(x)
    channel_dim = channel_dim % x.dim()
    position = order.index(channel_dim)
    x = x.permute(order)
    sizes = tuple(x.shape)
    channels = sizes[position]
    if groups is None:
        groups = channels // gcd(channels, group_size) if channels else 1
    outer = inner = 1
    for size in sizes[:position]:
        outer *= size
    for size in sizes[position + 1:]:
        inner *= size
    inner *= channels // groups
    return x.reshape(outer, groups, inner), Layout(order, sizes, outer, groups, inner)
