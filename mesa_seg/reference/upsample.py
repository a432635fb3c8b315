"""Where a bilinearly resized map takes its values from, with ``torch.nn.functional.interpolate``'s own rounding."""
import torch


def bilinear_taps(out_size, in_size, align_corners, device='cpu'):
    """The two sources of each output position along one axis.

    The position is computed as torch's kernels do it, in float32 with a fused multiply-add (here: in float64, whose
    product of two float32 is exact, then rounded once).

    Args:
        out_size (int): size of the resized axis.
        in_size (int): size of the axis it is taken from.
        align_corners (bool): as in ``interpolate``.
        device (torch.device | str): where the tables are wanted.

    Returns:
        tuple[Tensor, Tensor]: indices int64 and weights float32, both ``[out_size, 2]``.
    """
    position = torch.arange(out_size, dtype=torch.float64)
    if out_size == in_size:
        source = position.float()
    elif align_corners:
        scale = torch.tensor(float(in_size - 1)) / float(out_size - 1) if out_size > 1 else torch.tensor(0.0)
        source = (scale.double() * position).float()
    else:
        scale = torch.tensor(float(in_size)) / float(out_size)
        source = (scale.double() * (position + 0.5) - 0.5).float().clamp_(min=0)
    first = source.long().clamp_(max=in_size - 1)
    upper = (source - first).clamp_(0, 1)
    second = (first + 1).clamp_(max=in_size - 1)
    return torch.stack([first, second], 1).to(device), torch.stack([1 - upper, upper], 1).to(device)


def tap_matrix(indices, weights, in_size):
    """Dense float32 ``[out_size, in_size]`` matrix of taps ``[out_size, T]``; taps on one source add up."""
    matrix = torch.zeros(len(indices), in_size, dtype=torch.float32, device=weights.device)
    for tap in range(indices.shape[1]):
        matrix[torch.arange(len(indices), device=weights.device), indices[:, tap].long()] += weights[:, tap]
    return matrix


def merge_taps(indices, weights):
    """Taps ``[n, T]`` sorted, with one entry for each source and none of weight 0; shorter lists end in (0, 0).

    Args:
        indices (Tensor): integer ``[n, T]``.
        weights (Tensor): floating point ``[n, T]``.

    Returns:
        tuple[Tensor, Tensor]: int32 and float32 ``[n, T']``, T' the longest list (at least 1).
    """
    limit = torch.iinfo(torch.int32).max
    indices = torch.where(weights != 0, indices.long(), limit)
    indices, order = indices.sort(1)
    weights = weights.double().gather(1, order)
    fresh = torch.ones_like(indices)
    fresh[:, 1:] = indices[:, 1:] != indices[:, :-1]
    slot = fresh.cumsum(1) - 1
    merged = torch.zeros_like(weights).scatter_add_(1, slot, weights)
    sources = torch.full_like(indices, limit).scatter_(1, slot, indices)
    real = sources != limit
    count = max(1, int(real.sum(1).max())) if len(indices) else 1
    sources, merged = torch.where(real, sources, 0)[:, :count], torch.where(real, merged, 0)[:, :count]
    return sources.int().contiguous(), merged.float().contiguous()


def chain_taps(outer, inner):
    """Taps of a resize that follows another: ``outer`` takes from what ``inner`` gives.

    Args:
        outer (tuple[Tensor, Tensor]): indices and weights ``[n, T]`` into the middle axis.
        inner (tuple[Tensor, Tensor]): indices and weights ``[middle, U]`` into the source axis.

    Returns:
        tuple[Tensor, Tensor]: indices and float64 weights ``[n, T * U]``.
    """
    index = outer[0].long()
    weights = outer[1].double()[:, :, None] * inner[1].double()[index]
    return inner[0][index].flatten(1), weights.flatten(1)
