"""Semantic FPN + PVTv2-B1 on ADE20K, the published recipe: crop 512, 8 GPUs x 4 images, 40,000 iterations."""
_base_ = [
    '_base_/models/fpn_pvt_v2.py',
    '_base_/datasets/ade20k_pvt.py',
    '_base_/schedules/adamw_40k.py',
    '_base_/default_runtime.py',
]

custom_imports = dict(imports=['mesa_seg'])

# Trained on ImageNet-1k, as published by the authors.
checkpoint = 'https://github.com/whai362/PVT/releases/download/v2/pvt_v2_b1.pth'
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=checkpoint)))
