"""UPerNet + Swin-B on ADE20K, stock MMSegmentation: windows of 7 x 7, ImageNet-1k; the schedule of Swin-T."""
_base_ = './upernet_swin_t_ade20k.py'

# Trained on ImageNet-1k, as published by MMSegmentation.
checkpoint = ('https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/swin/'
              'swin_base_patch4_window7_224_20220317-e9b98025.pth')
model = dict(
    backbone=dict(
        embed_dims=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32],
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
    decode_head=dict(in_channels=[128, 256, 512, 1024]),
    auxiliary_head=dict(in_channels=512))
