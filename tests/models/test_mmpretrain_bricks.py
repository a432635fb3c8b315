"""Building blocks of mmpretrain, where it is installed."""
import copy
import pickle

import pytest
import torch

import mesa_seg  # noqa: F401  makes the packages importable
from mesa_seg import convert
from tests.kept import kept


@pytest.fixture(scope='module')
def mmpretrain():
    return pytest.importorskip('mmpretrain', reason='mmpretrain is not installed')


@pytest.mark.parametrize('settings', [dict(), dict(linear_pw_conv=False), dict(use_grn=True), dict(layer_scale_init_value=0.)])
def test_convnext_block(mmpretrain, settings):
    from mmpretrain.models.backbones.convnext import ConvNeXtBlock
    torch.manual_seed(0)
    stock = ConvNeXtBlock(32, **{'layer_scale_init_value': 0.5, **settings}).train()
    for p in stock.parameters():
        torch.nn.init.normal_(p, std=0.2)
    mesa = copy.deepcopy(stock)
    assert not convert(mesa, dict(granularity='block')).left
    x = torch.randn(2, 32, 9, 8)
    results = []
    for model in (stock, mesa):
        leaf = x.clone().requires_grad_()
        y, size = kept(lambda m=model, a=leaf: m(a), *model.parameters(), leaf)
        y.square().sum().backward()
        results.append((y, [leaf.grad, *(p.grad for p in model.parameters())], size))
    (expected, exact, stock_size), (y, found, size) = results
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    for a, b in zip(found, exact, strict=True):
        assert (a - b).norm() <= 0.05 * b.norm() + 1e-3
    assert size <= 0.25 * stock_size
    assert type(copy.deepcopy(mesa)) is type(mesa) is type(pickle.loads(pickle.dumps(mesa)))
