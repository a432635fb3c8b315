"""Conversions of mmcv's and mmseg's own building blocks; importing them makes :func:`mesa_seg.nn.convert` know them."""
from . import wrappers  # noqa: F401
from .conv_module import MesaConvModule
from .swin_block import MesaSwinBlock
from .window_attention import MesaShiftWindowMSA

__all__ = ['MesaConvModule', 'MesaShiftWindowMSA', 'MesaSwinBlock']
