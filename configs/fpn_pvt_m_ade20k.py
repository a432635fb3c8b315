"""Semantic FPN + PVT-Medium on ADE20K, the published recipe: crop 512, 8 GPUs x 4 images, 40,000 iterations."""
_base_ = './fpn_pvt_t_ade20k.py'

# Trained on ImageNet-1k, as published by the authors.
checkpoint = 'https://github.com/whai362/PVT/releases/download/v2/pvt_medium.pth'
model = dict(backbone=dict(depths=[3, 4, 18, 3], init_cfg=dict(type='Pretrained', checkpoint=checkpoint)))
