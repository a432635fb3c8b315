"""Scaling by learned factors: mmcv's Scale and LayerScale."""
import pytest
import torch
from mmcv.cnn.bricks.scale import LayerScale, Scale
from torch import nn

from mesa_seg import convert
from tests.kept import kept


@pytest.mark.parametrize('make, shape', [(lambda: Scale(0.7), (2, 5, 32)), (lambda: LayerScale(32, scale=0.3), (2, 5, 32)),
                                         (lambda: LayerScale(32, data_format='channels_first'), (2, 32, 4, 5))])
def test_values_gradients_and_bytes(make, shape):
    torch.manual_seed(0)
    stock, mesa = make().train(), make().train()
    assert not convert(mesa, dict(granularity='block')).left
    x, grad = torch.randn(shape), torch.randn(shape)
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    expected = stock(leaves[0])
    y, size = kept(lambda: mesa(leaves[1]), *mesa.parameters())
    assert torch.equal(y, expected)
    assert size <= x.numel() * 1.0625 + 8
    expected.backward(grad)
    y.backward(grad)
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)
    (a, ), (b, ) = mesa.parameters(), stock.parameters()
    assert (a.grad - b.grad).norm() <= 0.03 * b.grad.norm() + 0.02


def test_between_norm_and_linear_it_keeps_nothing():
    model = nn.Sequential(nn.LayerNorm(32), LayerScale(32), nn.Linear(32, 4)).train()
    convert(model)
    _, size = kept(lambda: model(torch.randn(50, 32, requires_grad=True)), *model.parameters())
    assert size <= 50 * 32 + 50 * 4 + 32


def test_in_place_is_left_alone():
    assert 'in place' in convert(nn.Sequential(LayerScale(4, inplace=True))).left['0']
