"""Segmentors registered with mmseg."""
from mesa_seg.models.segmentors.encoder_decoder import MesaEncoderDecoder
from mesa_seg.models.segmentors.seg_tta import MesaSegTTAModel

__all__ = ['MesaEncoderDecoder', 'MesaSegTTAModel']
