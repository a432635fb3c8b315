"""UPerNet + Swin-B on ADE20K, stock MMSegmentation: windows of 12 x 12, ImageNet-1k; the schedule of Swin-T."""
_base_ = './upernet_swin_b_ade20k.py'

# Trained on ImageNet-1k at 384 x 384, as published by MMSegmentation.
checkpoint = ('https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/swin/'
              'swin_base_patch4_window12_384_20220317-55b0104a.pth')
model = dict(
    backbone=dict(pretrain_img_size=384, window_size=12,
                  init_cfg=dict(type='Pretrained', checkpoint=checkpoint)))
