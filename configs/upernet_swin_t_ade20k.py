"""UPerNet + Swin-T on ADE20K, stock MMSegmentation: crop 512, 8 GPUs x 2 images, 160,000 iterations."""
_base_ = [
    '_base_/models/upernet_swin_t.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/adamw_160k.py',
    '_base_/default_runtime.py',
]

# Swin-T trained on ImageNet-1k, as published by MMSegmentation.
checkpoint = ('https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/swin/'
              'swin_tiny_patch4_window7_224_20220317-1cdeb081.pth')
model = dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=checkpoint)))
