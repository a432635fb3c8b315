"""Max pooling from one byte an output value."""
import pytest
import torch
from torch import nn

from mesa_seg import convert
from tests.kept import kept


@pytest.mark.parametrize('settings', [(3, 2, 1), (2, 2), (3, 1, 1, 2), ((5, 2), (2, 3), (2, 1)), (3, 2, 1, 1, False, True)])
@pytest.mark.parametrize('memory_format', [torch.contiguous_format, torch.channels_last])
def test_values_gradients_and_bytes(settings, memory_format):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 13, 17).contiguous(memory_format=memory_format)
    expected_x, found_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected = nn.MaxPool2d(*settings)(expected_x)
    module = nn.MaxPool2d(*settings)
    assert not convert(module).left
    y, size = kept(lambda: module.train()(found_x))
    assert torch.equal(y, expected)
    assert size == y.numel()
    grad = torch.randn_like(y)
    expected.backward(grad)
    y.backward(grad)
    torch.testing.assert_close(found_x.grad, expected_x.grad)


def test_what_it_cannot_do_is_left():
    model = nn.Sequential(nn.MaxPool2d(2, return_indices=True), nn.MaxPool2d(17))
    left = convert(model).left
    assert 'indices' in left['0'] and '17 x 17' in left['1']
