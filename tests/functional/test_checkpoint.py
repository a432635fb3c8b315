import torch
import torch.nn.functional as F
from torch import nn

from mesa_seg import functional as M
from mesa_seg.saved import Quantizer, QuantizerConfig, exact
from tests.kept import kept


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


def test_recompute_keeps_its_inputs_alone():
    torch.manual_seed(0)
    x, y = (torch.randn(30, 40, requires_grad=True) for _ in range(2))

    def function(a, nothing, b):
        assert nothing is None
        return (a.exp() * b.sigmoid()).sum()

    def forward():
        return M.recompute(function, (x * 1, None, y.detach()))

    out, size = kept(forward, y)
    assert torch.equal(out, function(x, None, y)) and size == x.numel() * 4
    out.backward()
    assert torch.equal(x.grad, torch.autograd.grad(function(x, None, y), x)[0]) and y.grad is None
    with torch.no_grad():
        assert not M.recompute(function, (x, None, y)).requires_grad


def test_recompute_repeats_autocast():
    x = torch.randn(30, 40, requires_grad=True)
    dtypes = []

    def function(a):
        out = a @ a.t()
        dtypes.append(out.dtype)
        return out

    with torch.autocast('cpu', torch.bfloat16):
        out = M.recompute(function, (x, ))
    out.sum().backward()
    assert dtypes == [torch.bfloat16] * 2


def test_distributed_data_parallel_sees_each_gradient_once(tmp_path):
    """In one process of gloo: its hooks refuse a parameter that becomes ready twice."""
    torch.distributed.init_process_group('gloo', init_method=f'file://{tmp_path}/rendezvous', rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        linear = nn.Linear(64, 64)

        class Block(nn.Module):

            def __init__(self):
                super().__init__()
                self.inner, self.outer, self.quantizer = linear, nn.Linear(64, 64), Quantizer(QuantizerConfig())

            def forward(self, x):
                return M.checkpoint(self.inner, self.outer(x), self.quantizer, tuple(self.inner.parameters()))

        model = Block()
        wrapped = nn.parallel.DistributedDataParallel(model)
        x = torch.randn(200, 64)
        with wrapped.no_sync():
            wrapped(x).square().sum().backward()
        wrapped(x).square().sum().backward()
        found = [p.grad for p in model.parameters()]
        exact = torch.autograd.grad(model.inner(model.outer(x)).square().sum(), list(model.parameters()))
        for mine, theirs in zip(found, exact, strict=True):
            assert (mine - 2 * theirs).norm() < 0.06 * theirs.norm()
    finally:
        torch.distributed.destroy_process_group()
