"""Quantising what conversion cannot see."""
import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from mesa_seg import convert
from mesa_seg.saved.leftovers import QuantizeLeftovers
from tests.kept import kept


class Functional(nn.Module):
    """Nothing of it is a module that conversion knows."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x):
        y = x @ self.weight
        return ((y @ y.transpose(1, 2) / 8).softmax(-1) @ (y * self.scale)).square().mean()


def gradients(model, x, **settings):
    model.zero_grad()
    if settings:
        with QuantizeLeftovers(model, **settings) as found:
            loss = model(x)
    else:
        loss, found = model(x), None
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters()]), found


@pytest.fixture
def case():
    torch.manual_seed(0)
    return Functional(), torch.randn(2, 128, 64)


def test_values_stay_and_gradients_are_close(case):
    model, x = case
    loss, exact, _ = gradients(model, x)
    same, found, what = gradients(model, x, min_numel=1000)
    assert torch.equal(loss, same)
    assert (found - exact).norm() <= 0.02 * exact.norm()
    assert 0 < what.codes <= 0.27 * what.quantized


def test_the_mean_over_seeds_is_the_gradient(case):
    model, x = case
    exact = gradients(model, x)[1]
    settings = dict(bits=4, min_numel=1000)
    one = gradients(model, x, **settings)[1]
    mean = sum(gradients(model, x, **settings)[1] for _ in range(30)) / 30
    assert (mean - exact).norm() <= 0.35 * (one - exact).norm()


def test_what_is_saved_twice_is_quantised_once():
    """y is saved by both products and by the multiplication, once transposed."""
    x = torch.randn(2, 128, 64)
    y = x.requires_grad_() * 1

    def forward():
        return (y @ y.transpose(1, 2)).sum() + (y * y).sum()

    with QuantizeLeftovers(nn.Identity(), min_numel=1000) as found:
        loss = forward()
    assert found.quantized == y.numel() * 4
    loss.backward()
    exact = torch.autograd.grad((lambda z: (z @ z.transpose(1, 2)).sum() + (z * z).sum())(x), x)[0]
    assert (x.grad - exact).norm() <= 0.02 * exact.norm()


def test_a_new_tensor_at_an_old_address_is_another_one():
    """Storages are told apart by identity: the memory of one that was freed is soon used again."""
    model = nn.Identity()
    x = torch.randn(4, 8192, requires_grad=True)

    def forward():
        y = x
        for i in range(6):
            y = y.sin() + i  # sin saves its input, which then only the codes stand for
        return y.sum()

    with QuantizeLeftovers(model, min_numel=1000) as found:
        loss = forward()
    loss.backward()
    assert found.quantized == 5 * x.numel() * 4  # x itself is a leaf
    exact = torch.autograd.grad(forward(), x)[0]
    assert (x.grad - exact).norm() <= 0.05 * exact.norm()


def test_an_edit_in_place_makes_another_tensor():
    x = torch.randn(2, 128, 64, requires_grad=True)
    y = x * 1
    with QuantizeLeftovers(nn.Identity(), min_numel=1000) as found:
        first = y.sin()
        y.mul_(2)
        second = y.sin()
    assert found.quantized == 2 * y.numel() * 4
    (first.sum() + second.sum()).backward()
    exact = x.detach().cos() + 2 * (2 * x.detach()).cos()
    assert (x.grad - exact).norm() <= 0.02 * exact.norm()


def test_parameters_statistics_indices_and_small_tensors_stay_exact():
    torch.manual_seed(0)
    big = nn.Linear(256, 256)
    norm = nn.LayerNorm(4)
    x = torch.randn(20000, 4, requires_grad=True)
    with QuantizeLeftovers(nn.ModuleList([big, norm]), min_numel=1000) as found:
        logits = big(torch.randn(2, 256, requires_grad=True))  # small input, large weight
        before = found.quantized
        out = norm(x * 1)
        values, index = out.max(0)
        loss = nn.functional.log_softmax(out, 1).sum()
    assert before == 0
    # LayerNorm keeps its input as codes, 20,000 means and 1/sigma exact; log-softmax its output exact.
    assert found.quantized == x.numel() * 4
    (loss + logits.sum() + values.sum()).backward()
    assert index.dtype == torch.int64


def test_places_that_grid_sample_reads_stay_exact():
    maps = torch.randn(2, 8, 16, 16, requires_grad=True)
    grid = (torch.rand(2, 40, 40, 2) * 2 - 1).requires_grad_()
    with QuantizeLeftovers(nn.Identity(), min_numel=1000) as found:
        out = nn.functional.grid_sample(maps * 1, grid * 1, align_corners=False)
    assert found.quantized == maps.numel() * 4
    out.square().sum().backward()
    other = nn.functional.grid_sample(maps, grid, align_corners=False)
    exact = torch.autograd.grad(other.square().sum(), (maps, grid))
    for found, expected in zip((maps.grad, grid.grad), exact, strict=True):
        assert (found - expected).norm() <= 0.02 * expected.norm()


def test_a_result_that_nobody_uses_is_freed_with_what_it_came_from():
    """Its own node saves it; were it saved as it is, the two would hold each other for ever."""
    x = torch.randn(500, requires_grad=True)
    with QuantizeLeftovers(nn.Identity()):  # too small to be quantised
        y = (x * 1).sigmoid()
    storage = StorageWeakRef(y.untyped_storage())
    del y
    assert storage.expired()


def test_attention_keeps_its_log_sum_exp():
    q = torch.randn(2, 4, 600, 16, requires_grad=True)
    with QuantizeLeftovers(nn.Identity(), min_numel=1000) as found:
        out = nn.functional.scaled_dot_product_attention(q * 1, q * 1, q * 1)
    assert found.quantized == 4 * q.numel() * 4  # q, k, v and the output
    out.square().sum().backward()
    exact = torch.autograd.grad(nn.functional.scaled_dot_product_attention(q, q, q).square().sum(), q)[0]
    assert (q.grad - exact).norm() <= 0.05 * exact.norm()


def test_copies_of_weights_that_autocast_makes_stay_exact():
    model = nn.Linear(64, 128)
    x = torch.randn(300, 64, requires_grad=True)
    with torch.autocast('cpu', torch.bfloat16), QuantizeLeftovers(model, min_numel=1000) as found:
        y = model(x * 1)
    assert found.quantized == x.numel() * 2
    y.float().sum().backward()


def test_bytes_are_seen_by_hooks_outside():
    model = Functional()
    x = torch.randn(2, 128, 64)

    def forward():
        with QuantizeLeftovers(model, min_numel=1000):
            return model(x)

    assert kept(forward, *model.parameters())[1] == 0, 'only the innermost hooks see what autograd saves'


@pytest.mark.parametrize('wrong, message', [(dict(bits=3), 'bits=3'), (dict(min_numel=0), 'min_numel=0'),
                                            (dict(block_size=12), 'block_size=12')])
def test_wrong_settings_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        QuantizeLeftovers(nn.Identity(), **wrong)


@pytest.mark.parametrize('granularity', ['head', 'block'])
def test_what_conversion_keeps_is_let_alone(granularity):
    """Its codes are integers, but ranges and 1/sigma are floating point, and many."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    convert(model, dict(granularity=granularity, block_size=16))
    x = torch.randn(2000, 64)
    with QuantizeLeftovers(model, min_numel=1000) as found:
        loss = model(x).square().mean()
    loss.backward()
    assert found.quantized == 2000 * 64 * 4, 'the input of the square alone'
