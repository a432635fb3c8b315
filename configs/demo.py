"""UPerNet + Mesa-Swin-T on drawn scenes, from scratch, in minutes on two CPU cores: what `make demo` trains.

Also an example of a config of one's own: it inherits the real recipe and changes data, image sizes and schedule.
"""
_base_ = './upernet_mesa_swin_t_ade20k.py'

data_root = 'data/toy_ade20k'
crop_size = (128, 128)
iterations = 60

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='RandomResize', scale=(256, 192), ratio_range=(0.75, 1.25), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(data_root=data_root, pipeline=train_pipeline))
val_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(data_root=data_root, pipeline=test_pipeline))
test_dataloader = val_dataloader

# No ImageNet weights: nothing is downloaded, and so the first steps are larger than the recipe's.
model = dict(data_preprocessor=dict(size=crop_size), backbone=dict(init_cfg=None, drop_path_rate=0.1))
optim_wrapper = dict(optimizer=dict(lr=5e-4))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=5),
    dict(type='PolyLR', eta_min=0.0, power=1.0, by_epoch=False, begin=5, end=iterations),
]
train_cfg = dict(max_iters=iterations, val_interval=iterations)
default_hooks = dict(logger=dict(interval=5), checkpoint=dict(interval=iterations))
custom_hooks = [dict(type='MemoryReportHook'), dict(type='ProgressHook', interval=5)]
randomness = dict(seed=0)
