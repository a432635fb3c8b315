import torch
import torch.nn.functional as F
from torch import nn

from mesa_seg import functional as M
from mesa_seg.saved import Quantizer, QuantizerConfig, exact


class ExactQuantizer(Quantizer):

    def forward(self, x, channel_dim):
        return exact(x)


def test_dropout_inside_repeats_its_numbers_and_ranges_move_once():
    torch.manual_seed(0)
    inner = Quantizer(QuantizerConfig(decay=0.5))
    weight = nn.Parameter(torch.randn(64, 64))
    calls = []

    def block(x):
        calls.append(inner.running.clone() if inner.running is not None else None)
        return F.dropout(M.linear(M.gelu(x, 'none', inner), weight, None, Quantizer(QuantizerConfig())), 0.5)

    x = torch.randn(200, 64, requires_grad=True)
    torch.manual_seed(1)
    y = M.checkpoint(block, x, ExactQuantizer(QuantizerConfig()), (weight, ))
    after_forward = inner.running.clone()
    state = torch.get_rng_state()
    y.square().sum().backward()
    assert torch.equal(inner.running, after_forward), 'the recomputation moved the ranges'
    assert torch.equal(torch.get_rng_state(), state) and len(calls) == 2
    kept = (y != 0).float()
    expected = torch.autograd.grad((F.linear(F.gelu(x), weight) * kept * 2).square().sum(), (x, weight))
    assert (x.grad - expected[0]).norm() < 0.03 * expected[0].norm()
    assert (weight.grad - expected[1]).norm() < 0.03 * expected[1].norm()


def test_torch_own_checkpoint_does_not_move_ranges_in_backward_either():
    quantizer = Quantizer(QuantizerConfig(decay=0.5))
    x = torch.randn(50, 64, requires_grad=True)
    for reentrant in (False, True):
        y = torch.utils.checkpoint.checkpoint(lambda t: M.gelu(t, 'none', quantizer), x, use_reentrant=reentrant)
        before = None if quantizer.running is None else quantizer.running.clone()
        y.sum().backward()
        assert before is None or torch.equal(before, quantizer.running)
