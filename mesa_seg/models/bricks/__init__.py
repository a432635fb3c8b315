"""Conversions of mmcv's and mmseg's own building blocks; importing them makes :func:`mesa_seg.nn.convert` know them."""
from . import batch_norm, deformable_attention, layers, local_attention, mmdet, mmpretrain, multihead_attention, wrappers  # noqa: F401
from .conv_module import MesaConvModule
from .pvt_block import MesaPVTBlock
from .swin_block import MesaSwinBlock
from .window_attention import MesaShiftWindowMSA

__all__ = ['MesaConvModule', 'MesaPVTBlock', 'MesaShiftWindowMSA', 'MesaSwinBlock']
