"""Semantic FPN + PVT-Tiny on ADE20K, the published recipe: crop 512, 8 GPUs x 4 images, 40,000 iterations."""
_base_ = [
    '_base_/models/fpn_pvt.py',
    '_base_/datasets/ade20k_pvt.py',
    '_base_/schedules/adamw_40k.py',
    '_base_/default_runtime.py',
]

custom_imports = dict(imports=['mesa_seg'])

# Trained on ImageNet-1k, as published by the authors.
checkpoint = 'https://github.com/whai362/PVT/releases/download/v2/pvt_tiny.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=checkpoint)))
