"""GELU that keeps its input quantised, in plain PyTorch. Arguments and results: :mod:`mesa_seg.ops.gelu`."""
import torch
import torch.nn.functional as F

from mesa_seg.reference.quantize import dequantize, quantize


def _approximate(tanh):
    return 'tanh' if tanh else 'none'


def gelu_quantize(x, ranges, bits, block_size, seed, stochastic, tanh):
    codes, ranges = quantize(x, ranges, bits, block_size, seed, stochastic)
    y = F.gelu(x.contiguous().float(), approximate=_approximate(tanh)).to(x.dtype)
    return y, codes, ranges


def gelu_backward(grad, codes, ranges, bits, block_size, tanh):
    h = dequantize(codes, ranges, *grad.shape, bits, block_size, torch.float32)
    gx = torch.ops.aten.gelu_backward(grad.contiguous().float(), h, approximate=_approximate(tanh))
    return gx.to(grad.dtype)


def gelu_dequantize(codes, ranges, outer, groups, inner, bits, block_size, tanh, dtype):
    h = dequantize(codes, ranges, outer, groups, inner, bits, block_size, torch.float32)
    return F.gelu(h, approximate=_approximate(tanh)).to(dtype)
