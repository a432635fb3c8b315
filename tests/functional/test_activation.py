"""Activation modules besides GELU and ReLU: torch's values and gradients, and what they keep."""
import pytest
import torch
from torch import nn

from mesa_seg import convert
from tests.kept import kept

OF_INPUT = [nn.SiLU(), nn.Hardswish(), nn.Mish(), nn.Softplus(2, 15), nn.ELU(0.7), nn.PReLU(), nn.PReLU(32)]
OF_OUTPUT = [nn.Sigmoid(), nn.Tanh()]
BITS = [nn.LeakyReLU(0.1), nn.ReLU6(), nn.Hardtanh(-0.5, 0.7), nn.Hardsigmoid()]
SHAPE = (2, 32, 9, 7)


def run(module, x, grad):
    """Output, the gradients of the input and of parameters, and the bytes kept."""
    leaf = x.clone().requires_grad_()
    module.zero_grad()
    y, size = kept(lambda: module(leaf), *module.parameters())
    y.backward(grad)
    return y.detach(), [leaf.grad, *[p.grad for p in module.parameters()]], size


def pair(module, **mesa):
    stock, twin = type(module)(*_settings(module)), type(module)(*_settings(module))
    twin.load_state_dict(stock.state_dict())
    assert not convert(twin, mesa).left
    return stock.train(), twin.train()


def _settings(module):
    names = dict(Softplus=('beta', 'threshold'), ELU=('alpha', ), PReLU=('num_parameters', ), LeakyReLU=('negative_slope', ),
                 Hardtanh=('min_val', 'max_val'))
    return [getattr(module, name) for name in names.get(type(module).__name__, ())]


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SHAPE, generator=generator) * 3, torch.randn(SHAPE, generator=generator)


@pytest.mark.parametrize('module', OF_INPUT + OF_OUTPUT, ids=repr)
def test_values_and_gradients(module):
    x, grad = data()
    stock, mesa = pair(module, granularity='block')
    y, exact, _ = run(stock, x, grad)
    found_y, found, size = run(mesa, x, grad)
    assert torch.equal(found_y, y)
    for a, b in zip(found, exact, strict=True):
        assert (a - b).norm() <= 0.05 * b.norm()  # the derivative of Hardswish jumps at -3 and 3
    # A byte a value and 4 for the range of 64, and one bit more for PReLU.
    assert size <= x.numel() * (1.0625 + isinstance(module, nn.PReLU) / 8) + 8


@pytest.mark.parametrize('module', BITS, ids=repr)
def test_one_bit_is_exact(module):
    x, grad = data()
    stock, mesa = pair(module)
    y, exact, _ = run(stock, x, grad)
    found_y, found, size = run(mesa, x, grad)
    assert torch.equal(found_y, y)
    torch.testing.assert_close(found, exact)
    assert size == -(-x.numel() // 8)


@pytest.mark.parametrize('module', OF_INPUT + OF_OUTPUT, ids=repr)
def test_the_mean_over_seeds_is_the_gradient(module):
    x, grad = data()
    stock, mesa = pair(module, granularity='block')
    exact = run(stock, x, grad)[1]
    errors = []
    for count in (1, 100):
        total = [torch.zeros_like(b) for b in exact]
        for seed in range(count):
            torch.manual_seed(seed)
            for t, g in zip(total, run(mesa, x, grad)[1], strict=True):
                t.add_(g, alpha=1 / count)
        errors.append([(t - b).norm() / b.norm() for t, b in zip(total, exact, strict=True)])
    for one, mean in zip(*errors, strict=True):
        # A curved derivative of a noisy input has a small bias, which stays.
        assert mean <= max(0.3 * one, 0.03)


@pytest.mark.parametrize('module', OF_INPUT + OF_OUTPUT + BITS, ids=repr)
def test_what_follows_keeps_nothing(module):
    """norm -> activation -> Linear: one set of codes, and bits where the function needs them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(32), pair(module)[0], nn.Linear(32, 8))
    convert(model)
    x = torch.randn(100, 32, requires_grad=True)
    y, size = kept(lambda: model.train()(x), *model.parameters())
    masks = isinstance(module, (*map(type, BITS), nn.PReLU))
    assert size <= 100 * 32 * (1 + masks / 8) + 100 * 4 + 64
    y.sum().backward()


@pytest.mark.parametrize('module', [nn.SiLU(True), nn.Hardswish(True), nn.LeakyReLU(inplace=True), nn.ReLU6(True),
                                    nn.ELU(1., True), nn.Hardsigmoid(True), nn.Mish(True)], ids=repr)
def test_in_place(module):
    x, grad = data()
    leaf = x.clone().requires_grad_()
    expected = type(module)()(leaf)
    expected.backward(grad)
    convert(module, dict(granularity='block'))
    other = x.clone().requires_grad_()
    given = other * 1
    y = module.train()(given)
    assert y is given and torch.equal(y, expected)
    y.backward(grad)
    assert (other.grad - leaf.grad).norm() <= 0.05 * leaf.grad.norm()  # Hardswish: see above


def test_channels_last_gradients_land_where_they_belong():
    x, grad = (t.contiguous(memory_format=torch.channels_last) for t in data())
    for module in (nn.LeakyReLU(0.1), nn.SiLU(), nn.PReLU(32)):
        stock, mesa = pair(module, granularity='block')
        for a, b in zip(run(mesa, x, grad)[1], run(stock, x, grad)[1], strict=True):
            assert (a - b).norm() <= 0.03 * b.norm()


def test_an_unknown_name_is_refused():
    from mesa_seg.functional import activation
    with pytest.raises(ValueError, match="name='swoosh'"):
        activation(torch.randn(3), 'swoosh', (), None)
