"""UPerNet + Swin-L on ADE20K, stock MMSegmentation: windows of 12 x 12, ImageNet-22k; the schedule of Swin-T."""
_base_ = './upernet_swin_l_ade20k.py'

# Trained on ImageNet-22k at 384 x 384, as published by MMSegmentation.
checkpoint = ('https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/swin/'
              'swin_large_patch4_window12_384_22k_20220412-6580f57d.pth')
model = dict(
    backbone=dict(pretrain_img_size=384, window_size=12,
                  init_cfg=dict(type='Pretrained', checkpoint=checkpoint)))
