"""Modules that keep saved forms, and :func:`convert`, which puts them into any model."""
from .activation import (
    MesaELU,
    MesaHardsigmoid,
    MesaHardswish,
    MesaHardtanh,
    MesaLeakyReLU,
    MesaMish,
    MesaPReLU,
    MesaReLU6,
    MesaSigmoid,
    MesaSiLU,
    MesaSoftplus,
    MesaTanh,
)
from .attention import MesaScaledDotProductAttention, ScaledDotProductAttention
from .batch_norm import MesaBatchNorm2d, MesaSyncBatchNorm
from .conv import MesaConv1d, MesaConv2d, MesaConvTranspose2d
from .convert import Conversion, convert, converts, converts_named
from .dropout import MesaDropout, MesaDropout2d
from .gelu import MesaGELU
from .group_norm import MesaGroupNorm, MesaInstanceNorm1d, MesaInstanceNorm2d
from .layer_norm import MesaLayerNorm
from .linear import MesaLinear
from .matmul import MatMul, MesaMatMul
from .max_pool import MesaMaxPool2d
from .multihead_attention import MesaMultiheadAttention
from .pool import MesaAdaptiveAvgPool2d
from .relu import MesaReLU
from .root import MesaRoot
from .softmax import MesaSoftmax

__all__ = [
    'Conversion', 'MatMul', 'MesaAdaptiveAvgPool2d', 'MesaBatchNorm2d', 'MesaConv1d', 'MesaConv2d',
    'MesaConvTranspose2d', 'MesaDropout', 'MesaDropout2d', 'MesaELU', 'MesaGELU', 'MesaGroupNorm',
    'MesaHardsigmoid', 'MesaHardswish', 'MesaHardtanh', 'MesaInstanceNorm1d', 'MesaInstanceNorm2d',
    'MesaLayerNorm', 'MesaLeakyReLU', 'MesaLinear', 'MesaMatMul', 'MesaMaxPool2d', 'MesaMish',
    'MesaMultiheadAttention', 'MesaPReLU', 'MesaReLU', 'MesaReLU6', 'MesaRoot', 'MesaScaledDotProductAttention',
    'MesaSiLU', 'MesaSigmoid', 'MesaSoftmax', 'MesaSoftplus', 'MesaSyncBatchNorm', 'MesaTanh',
    'ScaledDotProductAttention', 'convert', 'converts', 'converts_named'
]
