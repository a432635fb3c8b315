"""UPerNet + Swin-B on ADE20K, stock MMSegmentation: windows of 7 x 7, ImageNet-22k; the schedule of Swin-T."""
_base_ = './upernet_swin_b_ade20k.py'

# Trained on ImageNet-22k, as published by MMSegmentation.
checkpoint = ('https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/swin/'
              'swin_base_patch4_window7_224_22k_20220317-4f79f7c0.pth')
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=checkpoint)))
