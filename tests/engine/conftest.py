import copy
import warnings

import pytest
import torch

NORM = dict(type='SyncBN', requires_grad=True)
LOSS = dict(type='CrossEntropyLoss', use_sigmoid=False)
TINY = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(type='SegDataPreProcessor', mean=[120.0] * 3, std=[60.0] * 3, bgr_to_rgb=True,
                           pad_val=0, seg_pad_val=255, size=(64, 64)),
    pretrained=None,
    backbone=dict(type='SwinTransformer', embed_dims=16, depths=[1, 1, 2, 1], num_heads=[1, 2, 2, 4], window_size=7,
                  drop_path_rate=0.3, init_cfg=dict(type='Pretrained', checkpoint='https://nowhere.invalid/weights.pth')),
    decode_head=dict(type='UPerHead', in_channels=[16, 32, 64, 128], in_index=[0, 1, 2, 3], pool_scales=(1, 2, 3, 6),
                     channels=16, dropout_ratio=0.1, num_classes=11, norm_cfg=NORM, align_corners=False,
                     loss_decode=LOSS),
    auxiliary_head=dict(type='FCNHead', in_channels=64, in_index=2, channels=8, num_convs=1, concat_input=False,
                        dropout_ratio=0.1, num_classes=11, norm_cfg=NORM, align_corners=False,
                        loss_decode=dict(LOSS, loss_weight=0.4)),
    train_cfg=dict(), test_cfg=dict(mode='whole'))


@pytest.fixture
def tiny_model():
    """`model` of a UPerNet Swin small enough for a test, stock."""
    return copy.deepcopy(TINY)


@pytest.fixture
def tiny_mesa_model(tiny_model):
    """The same model with Mesa."""
    for part, name in (('backbone', 'MesaSwinTransformer'), ('decode_head', 'MesaUPerHead'),
                       ('auxiliary_head', 'MesaFCNHead')):
        tiny_model[part].update(type=name, mesa=dict(bits=8))
    return tiny_model


@pytest.fixture
def tiny_config(tmp_path):
    """The same as a config file."""
    path = tmp_path / 'upernet_tiny.py'
    path.write_text(f'model = {TINY!r}\n')
    return path


@pytest.fixture(autouse=True)
def quiet_and_single_threaded():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors this small gain nothing from more
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        yield
    torch.set_num_threads(threads)
