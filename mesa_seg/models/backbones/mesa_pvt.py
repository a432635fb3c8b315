"""Pyramid Vision Transformers (arXiv 2102.12122, 2106.13797) whose activations are kept compressed."""
from mmseg.registry import MODELS

from ..component import MesaComponent
from .pvt import PyramidVisionTransformer, PyramidVisionTransformerV2


@MODELS.register_module(name=['MesaPyramidVisionTransformer', 'MesaPVT'])
class MesaPyramidVisionTransformer(MesaComponent, PyramidVisionTransformer):
    """:class:`PyramidVisionTransformer`: the same arguments and checkpoints, and ``mesa=dict(...)``."""


@MODELS.register_module(name=['MesaPyramidVisionTransformerV2', 'MesaPVTv2'])
class MesaPyramidVisionTransformerV2(MesaComponent, PyramidVisionTransformerV2):
    """:class:`PyramidVisionTransformerV2`: the same arguments and checkpoints, and ``mesa=dict(...)``."""
