"""Modules that keep saved forms, and :func:`convert`, which puts them into any model."""
from .attention import MesaScaledDotProductAttention, ScaledDotProductAttention
from .batch_norm import MesaBatchNorm2d, MesaSyncBatchNorm
from .conv import MesaConv1d, MesaConv2d, MesaConvTranspose2d
from .convert import Conversion, convert, converts
from .dropout import MesaDropout, MesaDropout2d
from .gelu import MesaGELU
from .layer_norm import MesaLayerNorm
from .linear import MesaLinear
from .matmul import MatMul, MesaMatMul
from .pool import MesaAdaptiveAvgPool2d
from .relu import MesaReLU
from .root import MesaRoot
from .softmax import MesaSoftmax

__all__ = [
    'Conversion', 'MatMul', 'MesaAdaptiveAvgPool2d', 'MesaBatchNorm2d', 'MesaConv1d', 'MesaConv2d', 'MesaConvTranspose2d',
    'MesaDropout', 'MesaDropout2d', 'MesaGELU', 'MesaLayerNorm', 'MesaLinear', 'MesaMatMul', 'MesaReLU', 'MesaRoot',
    'MesaScaledDotProductAttention', 'MesaSoftmax', 'MesaSyncBatchNorm', 'MatMul', 'ScaledDotProductAttention', 'convert',
    'converts'
]
