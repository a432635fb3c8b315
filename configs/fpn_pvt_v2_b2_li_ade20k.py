"""Semantic FPN + PVTv2-B2-Li on ADE20K, the published recipe: crop 512, 8 GPUs x 4 images, 40,000 iterations."""
_base_ = './fpn_pvt_v2_b1_ade20k.py'

# Trained on ImageNet-1k, as published by the authors.
checkpoint = 'https://github.com/whai362/PVT/releases/download/v2/pvt_v2_b2_li.pth'
model = dict(
    backbone=dict(depths=[3, 4, 6, 3], linear=True,
                  init_cfg=dict(type='Pretrained', checkpoint=checkpoint)))
