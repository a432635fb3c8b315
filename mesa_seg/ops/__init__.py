"""The operators ``torch.ops.mesa_seg``: one file a family, each with its Python face, schema and fake kernel.

``KERNELS`` says what runs them: ``{'CPU': 'compiled' or 'reference', 'CUDA': ...}``.
"""
from mesa_seg.ops._library import load_kernels
from mesa_seg.ops.batch_norm import (
    batch_norm_backward,
    batch_norm_backward_reduce,
    batch_norm_quantize,
    batch_norm_stats,
)
from mesa_seg.ops.gelu import gelu_backward, gelu_dequantize, gelu_quantize
from mesa_seg.ops.layer_norm import layer_norm_backward, layer_norm_quantize
from mesa_seg.ops.mask import mask_multiply, pack_mask, relu_mask, unpack_mask
from mesa_seg.ops.quantize import dequantize, dequantize_affine, group_range, quantize, update_ranges
from mesa_seg.ops.upsample_argmax import upsample_argmax
from mesa_seg.ops.upsample_cross_entropy import upsample_cross_entropy
from mesa_seg.ops.window_attention import window_attention, window_attention_backward

KERNELS = load_kernels()  # after every family has stated its operators

__all__ = [
    'KERNELS', 'upsample_argmax', 'upsample_cross_entropy',
    'batch_norm_backward', 'batch_norm_backward_reduce', 'batch_norm_quantize', 'batch_norm_stats',
    'dequantize', 'dequantize_affine', 'group_range', 'quantize', 'update_ranges',
    'gelu_backward', 'gelu_dequantize', 'gelu_quantize',
    'layer_norm_backward', 'layer_norm_quantize',
    'mask_multiply', 'pack_mask', 'relu_mask', 'unpack_mask',
    'window_attention', 'window_attention_backward',
]
