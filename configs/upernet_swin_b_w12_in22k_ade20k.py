"""UPerNet + Swin-B on ADE20K, stock MMSegmentation: windows of 12 x 12, ImageNet-22k; the schedule of Swin-T."""
_base_ = './upernet_swin_b_w12_ade20k.py'

# Trained on ImageNet-22k at 384 x 384, as published by MMSegmentation.
checkpoint = ('https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/swin/'
              'swin_base_patch4_window12_384_22k_20220317-e5c09f74.pth')
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=checkpoint)))
