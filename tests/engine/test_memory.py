import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from mesa_seg.engine.memory import KeptForBackward
from mesa_seg.engine.peak import PeakMemory


def kept_by(model, *inputs, forward=None):
    with KeptForBackward(model) as watch:
        out = (forward or model)(*inputs)
    report = watch.report(out)
    return report, out


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 32)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(32, 8)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


def test_counts_what_each_layer_keeps_and_leaves_parameters_out():
    report, _ = kept_by(Mlp(), torch.randn(5, 8))
    assert report.by_layer() == {'fc1': 5 * 8 * 4, 'act': 5 * 32 * 4, 'fc2': 5 * 32 * 4}
    assert report.by_kind() == {'GELU': 640, 'Linear': 800} or report.by_kind() == {'Linear': 800, 'GELU': 640}
    assert [kept.op for kept in report.tensors] == ['Addmm', 'Gelu', 'Addmm']
    assert report.total == 1440 and report.loss == 0


def test_counts_a_shared_storage_once_for_the_first_op_and_whole():
    x = torch.randn(6, 16)
    first, second = nn.Linear(8, 4), nn.Linear(8, 4)
    model = nn.ModuleList([first, second])
    report, _ = kept_by(model, forward=lambda: first(x[:, :8]) + second(x[:, 8:]))
    assert report.by_layer() == {'0': x.numel() * 4}


def test_address_used_again_within_the_pass_is_another_tensor():
    layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(4)])

    def forward():
        # each input dies before the next is made, but for what autograd keeps
        return sum(layer(torch.randn(32, 64)).sum() for layer in layers)

    report, _ = kept_by(layers, forward=forward)
    assert report.total == 4 * 32 * 64 * 4


def test_what_was_saved_and_let_go_is_not_counted():
    model = Mlp()

    def forward(x):
        model(x)  # its graph dies here
        with torch.no_grad():
            model(x)
        return model.fc1(x)

    report, _ = kept_by(model, torch.randn(5, 8), forward=forward)
    assert report.by_layer() == {'fc1': 160}


def test_a_branch_that_nobody_uses_is_let_go_with_what_it_came_from():
    class Branches(nn.Module):

        def forward(self, x):
            (x * 2).sigmoid()
            return x * 3

    with KeptForBackward(Branches()) as kept:
        out = Branches()(torch.randn(100, requires_grad=True) * 1)
    assert kept.report(out).total == 0


def test_a_plain_layer_that_edits_a_view_in_place_keeps_its_name():
    """Its node is hidden inside that of the edit."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8))
    with KeptForBackward(model) as kept:
        out = model(torch.randn(2, 3, 8))
    assert kept.report(out).by_kind() == {'Linear': 192, 'ReLU': 192}


def test_python_functions_count_what_they_save():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.half())
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad * ctx.saved_tensors[0].float()

    x = torch.randn(7, 3, requires_grad=True)
    report, out = kept_by(nn.Identity(), forward=lambda: Square.apply(x).sum())
    assert [(kept.op, kept.nbytes, kept.dtype) for kept in report.tensors] == [('Square', 42, torch.float16)]
    out.backward()
    assert torch.allclose(x.grad, 2 * x, atol=1e-2)


@pytest.mark.parametrize('reentrant', [False, True])
def test_checkpointing_keeps_its_input_only_and_is_not_run_again_by_the_report(reentrant):
    model = Mlp()
    runs = []
    model.act.register_forward_hook(lambda *_: runs.append(1))
    x = torch.randn(5, 8, requires_grad=True)
    report, out = kept_by(model, forward=lambda: checkpoint(model, x * 1, use_reentrant=reentrant))
    assert report.by_kind() == {'checkpoint': 160}
    assert len(runs) == 1
    out.sum().backward()
    assert len(runs) == 2 and model.fc1.weight.grad is not None


def test_inner_hooks_are_seen_through():
    model = Mlp()
    x = torch.randn(5, 8)

    def pack(tensor):
        return {'half': (tensor.half(), )} if tensor.dim() == 2 and tensor.shape[0] == 5 else tensor

    def unpack(packed):
        return packed['half'][0].float() if isinstance(packed, dict) else packed

    def forward():
        with saved_tensors_hooks(pack, unpack):
            return model(x)

    report, out = kept_by(model, forward=forward)
    assert report.total == 1440 // 2
    out.sum().backward()
    assert model.fc1.weight.grad is not None


def test_tensors_moved_off_the_device_are_counted():
    model = Mlp()
    x = torch.randn(5, 8)

    def forward():
        with save_on_cpu():
            return model(x)

    report, out = kept_by(model, forward=forward)
    assert report.total >= 1440
    out.sum().backward()


def test_values_random_numbers_and_module_are_untouched():
    model = nn.Sequential(Mlp(), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.ReLU(inplace=True))
    x = torch.randn(5, 8)
    torch.manual_seed(0)
    expected = model(x)
    expected.sum().backward()
    grads = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    torch.manual_seed(0)
    _, out = kept_by(model, x)
    out.sum().backward()
    assert torch.equal(out, expected)
    assert all(torch.equal(weight.grad, grad) for weight, grad in zip(model.parameters(), grads, strict=True))
    assert not model[0]._forward_hooks and not nn.modules.module._global_forward_hooks


def test_an_error_in_the_forward_pass_leaves_no_hook_behind():
    model = Mlp()
    before = torch.autograd.graph.saved_tensors_hooks.__enter__
    with pytest.raises(RuntimeError, match='shapes'):
        kept_by(model, torch.randn(5, 9))
    assert torch.autograd.graph.saved_tensors_hooks.__enter__ is before
    assert not nn.modules.module._global_forward_pre_hooks
    watch = KeptForBackward(model)
    with watch:
        pass
    with pytest.raises(RuntimeError, match='one forward pass'), watch:
        pass


def test_a_head_is_followed_through_loss_and_its_loss_is_told_apart():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)

        def loss(self, x):
            return self.loss_by_feat(self.conv(x) * 2)

        def loss_by_feat(self, x):
            return x.exp().mean()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.decode_head = Head()

        def forward(self, x):
            return self.decode_head.loss(x)

    report, _ = kept_by(Model(), torch.randn(2, 4, 3, 3))
    assert report.by_part() == {'decode_head': 2 * 288}
    assert report.loss == report.outside_loss == 288
    assert report.by_kind() == {'Conv2d': 288, 'loss': 288}


def test_agrees_with_the_allocator():
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
                          nn.Conv2d(16, 4, 1))
    x = torch.randn(2, 3, 32, 32)
    with KeptForBackward(model) as watch:
        out = model(x).exp().sum()
    total = watch.report(out).total - x.untyped_storage().nbytes()
    del out, watch
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with PeakMemory() as peak:
        out = model(x).exp().sum()
        peak.mark()
        out.backward()
    assert total <= peak.marked_bytes <= total + 256  # the result, and nothing else
    assert peak.peak_bytes > peak.marked_bytes
    assert peak.end_bytes <= 256


def test_peak_ignores_what_was_there_before():
    before = torch.empty(1 << 20)
    with PeakMemory() as peak:
        small = torch.empty(1 << 10)
        before.zero_()
        del before
        small.zero_()
    assert peak.peak_bytes == 4 << 10
    assert peak.marked_bytes is None
