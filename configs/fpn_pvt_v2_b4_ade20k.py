"""Semantic FPN + PVTv2-B4 on ADE20K, the published recipe: crop 512, 8 GPUs x 4 images, 40,000 iterations."""
_base_ = './fpn_pvt_v2_b1_ade20k.py'

# Trained on ImageNet-1k, as published by the authors.
checkpoint = 'https://github.com/whai362/PVT/releases/download/v2/pvt_v2_b4.pth'
model = dict(backbone=dict(depths=[3, 8, 27, 3], init_cfg=dict(type='Pretrained', checkpoint=checkpoint)))
