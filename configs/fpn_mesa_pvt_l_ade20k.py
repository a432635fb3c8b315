"""The same recipe as fpn_pvt_l_ade20k.py, keeping its activations quantised (Mesa, arXiv 2111.11124)."""
_base_ = './fpn_pvt_l_ade20k.py'

mesa = dict(enable=True, bits=8, granularity='head', rounding='stochastic', decay=0.9)
model = dict(
    type='MesaEncoderDecoder',
    backbone=dict(type='MesaPyramidVisionTransformer', mesa=mesa),
    neck=dict(type='MesaFPN', mesa=mesa),
    decode_head=dict(type='MesaFPNHead', mesa=mesa))
tta_model = dict(type='MesaSegTTAModel')

custom_hooks = [dict(type='MemoryReportHook')]
