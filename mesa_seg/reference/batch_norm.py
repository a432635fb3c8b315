"""Training BatchNorm (+ ReLU) that keeps x̂ quantised, in plain PyTorch. Arguments and results:
:mod:`mesa_seg.ops.batch_norm`."""
import torch

from mesa_seg.reference.mask import pack_mask, unpack_mask
from mesa_seg.reference.quantize import dequantize, quantize


def _channels(tensor):
    return tensor.float()[None, :, None]


def batch_norm_stats(x):
    var, mean = torch.var_mean(x.float(), dim=(0, 2), correction=0)
    return mean, var


def batch_norm_quantize(x, mean, rstd, weight, bias, relu, ranges, groups, bits, block_size, seed, stochastic):
    batch, channels, positions = x.shape
    normalised = (x.contiguous().float() - _channels(mean)) * _channels(rstd)
    view = normalised.view(batch, groups, channels // groups * positions)
    codes, ranges = quantize(view, ranges, bits, block_size, seed, stochastic)
    y = normalised
    if weight is not None:
        y = y * _channels(weight)
    if bias is not None:
        y = y + _channels(bias)
    y = y.to(x.dtype)
    if relu:
        y = torch.relu(y)
        mask = pack_mask(y > 0)
    else:
        mask = codes.new_empty([0])
    return y, mask, codes, ranges


def _masked(grad, mask):
    grad = grad.contiguous().float()
    if mask.numel() == 0:
        return grad
    return torch.where(unpack_mask(mask, grad.numel()).view(grad.shape), grad, torch.zeros_like(grad))


def _normalised(grad, codes, ranges, groups, bits, block_size):
    batch, channels, positions = grad.shape
    inner = channels // groups * positions
    return dequantize(codes, ranges, batch, groups, inner, bits, block_size, torch.float32).view(grad.shape)


def batch_norm_backward_reduce(grad, mask, codes, ranges, groups, bits, block_size):
    g = _masked(grad, mask)
    normalised = _normalised(grad, codes, ranges, groups, bits, block_size)
    return g.sum((0, 2)), (g * normalised).sum((0, 2))


def batch_norm_backward(grad, mask, codes, ranges, rstd, weight, mean_g, mean_gx, groups, bits, block_size):
    g = _masked(grad, mask)
    normalised = _normalised(grad, codes, ranges, groups, bits, block_size)
    scale = rstd if weight is None else rstd * weight.float()
    gx = (g - _channels(mean_g) - normalised * _channels(mean_gx)) * _channels(scale)
    return gx.to(grad.dtype)
