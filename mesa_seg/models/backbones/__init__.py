from .mesa_pvt import MesaPyramidVisionTransformer, MesaPyramidVisionTransformerV2
from .pvt import PyramidVisionTransformer, PyramidVisionTransformerV2
from .swin import MesaSwinTransformer

__all__ = [
    'MesaPyramidVisionTransformer', 'MesaPyramidVisionTransformerV2', 'MesaSwinTransformer', 'PyramidVisionTransformer',
    'PyramidVisionTransformerV2'
]
