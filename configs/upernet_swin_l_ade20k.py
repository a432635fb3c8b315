"""UPerNet + Swin-L on ADE20K, stock MMSegmentation: windows of 7 x 7, ImageNet-22k; the schedule of Swin-T."""
_base_ = './upernet_swin_t_ade20k.py'

# Trained on ImageNet-22k, as published by MMSegmentation.
checkpoint = ('https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/swin/'
              'swin_large_patch4_window7_224_22k_20220412-aeecf2aa.pth')
model = dict(
    backbone=dict(
        embed_dims=192, depths=[2, 2, 18, 2], num_heads=[6, 12, 24, 48],
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
    decode_head=dict(in_channels=[192, 384, 768, 1536]),
    auxiliary_head=dict(in_channels=768))
