"""Autograd functions that keep saved forms instead of activations, one file an operation."""
from .activation import activation, prelu
from .attention import scaled_dot_product_attention
from .batch_norm import batch_norm
from .checkpoint import checkpoint, recompute
from .concat_conv import concat_convolution
from .conv import convolution
from .deformable_attention import deformable_attention
from .dropout import channel_dropout, dropout
from .gelu import gelu
from .global_response_norm import global_response_norm
from .group_norm import group_norm
from .layer_norm import layer_norm
from .linear import linear
from .matmul import matmul
from .max_pool import max_pool2d
from .pool import adaptive_avg_pool2d
from .relu import relu
from .scale import scale
from .softmax import softmax
from .window_attention import window_attention

__all__ = [
    'activation', 'adaptive_avg_pool2d', 'batch_norm', 'channel_dropout', 'checkpoint', 'concat_convolution', 'convolution',
    'deformable_attention', 'dropout', 'gelu', 'global_response_norm', 'group_norm', 'layer_norm', 'linear', 'matmul',
    'max_pool2d', 'prelu', 'recompute', 'relu', 'scale', 'scaled_dot_product_attention', 'softmax', 'window_attention'
]
