"""UPerNet + Swin-S on ADE20K, stock MMSegmentation: windows of 7 x 7, ImageNet-1k; the schedule of Swin-T."""
_base_ = './upernet_swin_t_ade20k.py'

# Trained on ImageNet-1k, as published by MMSegmentation.
checkpoint = ('https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/swin/'
              'swin_small_patch4_window7_224_20220317-7ba6d6dd.pth')
model = dict(backbone=dict(depths=[2, 2, 18, 2], init_cfg=dict(type='Pretrained', checkpoint=checkpoint)))
