"""Autograd functions that keep saved forms instead of activations, one file an operation."""
from .attention import scaled_dot_product_attention
from .batch_norm import batch_norm
from .checkpoint import checkpoint
from .conv import convolution
from .dropout import channel_dropout, dropout
from .gelu import gelu
from .layer_norm import layer_norm
from .linear import linear
from .matmul import matmul
from .pool import adaptive_avg_pool2d
from .relu import relu
from .softmax import softmax
from .window_attention import window_attention

__all__ = [
    'adaptive_avg_pool2d', 'batch_norm', 'channel_dropout', 'checkpoint', 'convolution', 'dropout', 'gelu', 'layer_norm',
    'linear', 'matmul', 'relu', 'scaled_dot_product_attention', 'softmax', 'window_attention'
]
