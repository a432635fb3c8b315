"""The same recipe as upernet_swin_b_in22k_ade20k.py, keeping its activations quantised (Mesa, arXiv 2111.11124)."""
_base_ = './upernet_swin_b_in22k_ade20k.py'

custom_imports = dict(imports=['mesa_seg'])

mesa = dict(enable=True, bits=8, granularity='head', rounding='stochastic', decay=0.9)
model = dict(
    type='MesaEncoderDecoder',
    backbone=dict(type='MesaSwinTransformer', mesa=mesa),
    decode_head=dict(type='MesaUPerHead', mesa=mesa),
    auxiliary_head=dict(type='MesaFCNHead', mesa=mesa))
tta_model = dict(type='MesaSegTTAModel')

custom_hooks = [dict(type='MemoryReportHook')]
