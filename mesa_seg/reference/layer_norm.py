"""LayerNorm that keeps x̂ quantised, in plain PyTorch. Arguments and results: :mod:`mesa_seg.ops.layer_norm`."""
import torch

from mesa_seg.reference.quantize import dequantize, quantize


def _float(tensor):
    return None if tensor is None else tensor.float()


def layer_norm_quantize(x, weight, bias, eps, ranges, groups, bits, block_size, seed, stochastic):
    rows, channels = x.shape
    values = x.contiguous().float()
    normalised, _, rstd = torch.native_layer_norm(values, [channels], None, None, eps)
    codes, ranges = quantize(normalised.view(rows, groups, channels // groups), ranges, bits, block_size, seed, stochastic)
    y = torch.native_layer_norm(values, [channels], _float(weight), _float(bias), eps)[0]
    return y.to(x.dtype), rstd.reshape(rows), codes, ranges


def layer_norm_backward(grad, codes, ranges, rstd, weight, groups, bits, block_size):
    rows, channels = grad.shape
    normalised = dequantize(codes, ranges, rows, groups, channels // groups, bits, block_size, torch.float32)
    normalised = normalised.view(rows, channels)
    gy = grad.float()
    g = gy if weight is None else gy * weight.float()
    gx = g - g.mean(1, keepdim=True) - normalised * (g * normalised).mean(1, keepdim=True)
    gx = (gx * rstd[:, None]).to(grad.dtype).contiguous()
    return gx, (gy * normalised).sum(0), gy.sum(0)
