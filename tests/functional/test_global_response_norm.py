"""Global Response Normalization against its formula."""
import pytest
import torch

from mesa_seg import functional as M
from mesa_seg.saved import Quantizer, QuantizerConfig
from tests.kept import kept


def formula(x, gamma, beta, eps, channel_dim):
    x = x.movedim(channel_dim, 1)
    norms = x.square().sum((2, 3), keepdim=True).sqrt()
    y = gamma.view(-1, 1, 1) * x * (norms / (norms.mean(1, keepdim=True) + eps)) + beta.view(-1, 1, 1) + x
    return y.movedim(1, channel_dim)


@pytest.mark.parametrize('channel_dim', [1, 3])
def test_values_gradients_and_bytes(channel_dim):
    torch.manual_seed(0)
    x = torch.randn((2, 32, 5, 7) if channel_dim == 1 else (2, 5, 7, 32))
    gamma, beta = torch.randn(32), torch.randn(32)
    grad = torch.randn_like(x)
    results = []
    for function in (lambda *a: formula(*a, 1e-6, channel_dim),
                     lambda *a: M.global_response_norm(*a, 1e-6, Quantizer(QuantizerConfig(granularity='block')), channel_dim)):
        leaves = [t.clone().requires_grad_() for t in (x, gamma, beta)]
        y, size = kept(lambda f=function, a=leaves: f(*a), *leaves)
        y.backward(grad)
        results.append((y, [t.grad for t in leaves], size))
    (expected, exact, _), (y, found, size) = results
    torch.testing.assert_close(y, expected)
    for a, b in zip(found, exact, strict=True):
        assert (a - b).norm() <= 0.03 * b.norm()
    assert size <= x.numel() * 1.0625 + 2 * 32 * 4 + 16
