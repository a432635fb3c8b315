"""Semantic FPN over PVTv2-B1, 150 classes (Wang et al., arXiv 2106.13797)."""
_base_ = './fpn_pvt.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='PyramidVisionTransformerV2',
        embed_dims=[64, 128, 320, 512],
        depths=[2, 2, 2, 2],
        num_heads=[1, 2, 5, 8],
        mlp_ratios=[8, 8, 4, 4],
        sr_ratios=[8, 4, 2, 1],
        linear=False,
        qkv_bias=True,
        drop_rate=0.0,
        attn_drop_rate=0.0,
        drop_path_rate=0.1,
        out_indices=(0, 1, 2, 3)))
