"""GroupNorm and InstanceNorm that keep codes of their normalised output."""
import pytest
import torch
from torch import nn

from mesa_seg import convert
from tests.kept import kept

MODULES = [lambda: nn.GroupNorm(8, 32), lambda: nn.GroupNorm(1, 32, affine=False), lambda: nn.GroupNorm(32, 32, eps=1e-3),
           lambda: nn.InstanceNorm2d(32, affine=True), lambda: nn.InstanceNorm2d(32)]


def run(module, x, grad):
    leaf = x.clone().requires_grad_()
    module.zero_grad()
    y, size = kept(lambda: module(leaf), *module.parameters())
    y.backward(grad)
    return y.detach(), [leaf.grad, *[p.grad for p in module.parameters()]], size


@pytest.mark.parametrize('make', MODULES, ids=lambda make: repr(make()))
@pytest.mark.parametrize('granularity', ['head', 'block'])
@pytest.mark.parametrize('memory_format', [torch.contiguous_format, torch.channels_last])
def test_values_gradients_and_bytes(make, granularity, memory_format):
    torch.manual_seed(0)
    stock, mesa = make().train(), make().train()
    for p in stock.parameters():
        nn.init.normal_(p, 1, 0.5)
    mesa.load_state_dict(stock.state_dict())
    assert not convert(mesa, dict(granularity=granularity)).left
    x, grad = ((torch.randn(3, 32, 8, 6) * 2 + 1).contiguous(memory_format=memory_format) for _ in range(2))
    y, exact, _ = run(stock, x, grad)
    found_y, found, size = run(mesa, x, grad)
    torch.testing.assert_close(found_y, y, rtol=1e-5, atol=1e-5)
    for a, b in zip(found, exact, strict=True):
        assert (a - b).norm() <= 0.03 * b.norm()
    assert size <= x.numel() * 1.0625 + 4 * 3 * 32 + 64


def test_the_convolution_behind_keeps_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.GroupNorm(4, 32), nn.Conv2d(32, 8, 3)).train()
    stock = nn.Sequential(nn.GroupNorm(4, 32), nn.Conv2d(32, 8, 3)).train()
    stock.load_state_dict(model.state_dict())
    convert(model)
    x = torch.randn(2, 32, 9, 9)
    y, size = kept(lambda: model(x.requires_grad_()), *model.parameters())
    assert size <= x.numel() + 4 * 8 + 64
    y.square().sum().backward()
    stock(x).square().sum().backward()
    for a, b in zip(model.parameters(), stock.parameters(), strict=True):
        assert (a.grad - b.grad).norm() <= 0.03 * b.grad.norm()


def test_running_statistics_are_left_alone():
    model = nn.Sequential(nn.InstanceNorm2d(4, track_running_stats=True))
    assert 'running statistics' in convert(model).left['0']
