import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mesa_seg import convert
from mesa_seg.nn import MesaBatchNorm2d, MesaLinear, MesaReLU, MesaRoot
from tests.kept import kept


class Odd(nn.Linear):

    def forward(self, x):
        return super().forward(x) * 2


class Net(nn.Module):

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 32, 3, padding=1)
        self.bn = nn.BatchNorm2d(32, eps=1e-3, momentum=0.3)
        self.relu = nn.ReLU(inplace=True)
        self.norm = nn.LayerNorm(32)
        self.fc1 = nn.Linear(32, 64)
        self.act = nn.GELU()
        self.drop = nn.Dropout(0.1)
        self.fc2 = nn.Linear(64, 32)
        self.odd = Odd(32, 32)
        self.reflect = nn.Conv2d(32, 32, 3, padding=1, padding_mode='reflect')
        self.last = nn.LogSigmoid()

    def forward(self, x):
        x = self.relu(self.bn(self.conv(x)))
        y = x.flatten(2).transpose(1, 2)
        y = self.fc2(self.drop(self.act(self.fc1(self.norm(y)))))
        y = self.odd(y).transpose(1, 2).reshape(x.shape)
        return self.last(self.reflect(y))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def test_all_but_the_class_stays(net):
    net.fc1.half().register_forward_hook(lambda *a: None)
    net.bn.eval()
    before, state = {n: p for n, p in net.named_parameters()}, list(net.state_dict())
    convert(net)
    assert type(net.fc1) is MesaLinear and type(net.bn) is MesaBatchNorm2d and type(net.relu) is MesaReLU
    assert {n: id(p) for n, p in net.named_parameters()} == {n: id(p) for n, p in before.items()}
    assert list(net.state_dict()) == state
    assert (net.bn.eps, net.bn.momentum, net.bn.training) == (1e-3, 0.3, False)
    assert net.fc1.weight.dtype == torch.float16 and len(net.fc1._forward_hooks) == 1 and net.relu.inplace


def test_it_says_what_it_did_and_what_it_left_and_why(net):
    done = convert(net, dict(rules=[dict(kind='fc', index=1, enable=False)]))
    assert done.converted['conv'] == 'conv' and done.converted['norm'] == 'layernorm'
    assert set(done.left) == {'fc2', 'odd', 'reflect', 'last'}
    assert 'rule' in done.left['fc2'] and 'Odd' in done.left['odd'] and 'reflect' in done.left['reflect']
    assert 'left as it is: last: LogSigmoid' in str(done)


def test_the_loss_is_stock_own_and_the_gradients_are_near(net):
    stock = copy.deepcopy(net)
    convert(net)
    x = torch.randn(4, 3, 12, 10)
    outs = []
    for model in (stock, net):
        torch.manual_seed(1)
        out, nbytes = kept(lambda model=model: model(x), *model.parameters(), *model.buffers())
        out.square().mean().backward()
        outs.append((out, nbytes))
    torch.testing.assert_close(outs[0][0], outs[1][0], rtol=1e-5, atol=1e-5)
    assert outs[1][1] < 0.6 * outs[0][1]  # the modules that it does not know keep theirs
    for (name, p), r in zip(net.named_parameters(), stock.parameters(), strict=False):
        assert (p.grad - r.grad).norm() < 0.03 * r.grad.norm() + 1e-5, name  # conv.bias: zero but for rounding
    for b, r in zip(net.bn.buffers(), stock.bn.buffers(), strict=False):
        torch.testing.assert_close(b, r)


@pytest.mark.parametrize('how', ['eval', 'no_grad', 'enable=False'])
def test_the_stock_path_is_bit_identical(net, how):
    stock = copy.deepcopy(net)
    done = convert(net, dict(enable=how != 'enable=False'))
    assert bool(done.converted) == (how != 'enable=False')
    x = torch.randn(2, 3, 8, 8)
    outs = []
    for model in (stock, net):
        model.train(how != 'eval')
        torch.manual_seed(1)
        with torch.set_grad_enabled(how != 'no_grad'):
            outs.append(model(x))
    assert torch.equal(*outs)
    assert getattr(net.fc1, 'quantizer', None) is None or net.fc1.quantizer.running is None
    assert not isinstance(net, MesaRoot) or net.mesa_enabled


def test_a_converted_model_is_copied_and_pickled_by_its_state(net):
    convert(net)
    twin = copy.deepcopy(net)
    net(torch.randn(2, 3, 8, 8)).sum().backward()
    twin.load_state_dict(pickle.loads(pickle.dumps(net.state_dict())))
    assert type(twin) is type(net) and twin.norm.quantizer.running is None
    whole = pickle.loads(pickle.dumps(twin))
    assert type(whole) is type(net) and whole.mesa_enabled
    assert torch.equal(whole.eval()(torch.ones(1, 3, 8, 8)), net.eval()(torch.ones(1, 3, 8, 8)))


def test_frozen_weights_and_frozen_modules(net):
    convert(net)
    net.fc1.requires_grad_(False)
    net.bn.eval()
    out, _ = kept(lambda: net(torch.randn(2, 3, 8, 8)))
    out.sum().backward()
    assert net.fc1.weight.grad is None and net.conv.weight.grad is not None and net.fc1.quantizer.running is None


def test_gradient_accumulation_adds_up(net):
    convert(net)
    x = torch.randn(2, 3, 8, 8)
    net.drop.p = 0.0
    net(x).sum().backward()
    once = net.fc2.weight.grad.clone()
    net(x).sum().backward()
    assert (net.fc2.weight.grad - 2 * once).norm() < 0.05 * once.norm()


def test_manual_seed_repeats_the_gradients_and_the_next_step_rounds_differently(net):
    convert(net, dict(granularity='block', bits=4))
    net.drop.p = 0.0
    x = torch.randn(2, 3, 8, 8)

    def step(seed=None):
        if seed is not None:
            torch.manual_seed(seed)
        net.zero_grad()
        net(x).sum().backward()
        return net.fc2.weight.grad.clone()

    first, again, other = step(0), step(0), step()
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_saved_forms_can_wait_on_the_cpu(net):
    convert(net)
    with torch.autograd.graph.save_on_cpu():
        out = net(torch.randn(2, 3, 8, 8))
    out.sum().backward()
    assert net.conv.weight.grad.isfinite().all()


def test_a_module_on_its_own_takes_mesa():
    layer = MesaLinear(32, 8, mesa=dict(bits=4, granularity='block'))
    x = torch.randn(100, 32, requires_grad=True)
    out, nbytes = kept(lambda: layer(x), *layer.parameters())
    assert torch.equal(out, F.linear(x, layer.weight, layer.bias)) and nbytes == 100 * 32 // 2 + 50 * 4


@pytest.mark.parametrize('mesa', [dict(bit=8), dict(bits=3), dict(rules=[dict(kind='x', bits=8)])], ids=str)
def test_a_mistake_changes_nothing(net, mesa):
    with pytest.raises(ValueError):
        convert(net, mesa)
    assert type(net.fc1) is nn.Linear and type(net) is Net


def test_bfloat16_autocast(net):
    stock = copy.deepcopy(net)
    convert(net)
    x = torch.randn(4, 3, 12, 10)
    grads = []
    for model in (stock, net):
        torch.manual_seed(1)
        with torch.autocast('cpu', torch.bfloat16):
            out = model(x)
        out.float().square().mean().backward()
        grads.append((out, model.fc1.weight.grad))
    assert grads[0][0].dtype == grads[1][0].dtype and grads[1][1].dtype == torch.float32
    torch.testing.assert_close(grads[0][0].float(), grads[1][0].float(), rtol=0.05, atol=0.05)
    assert (grads[0][1] - grads[1][1]).norm() < 0.1 * grads[0][1].norm()
