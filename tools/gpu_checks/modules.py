"""A converted model with the fused loss on the device: against stock's gradients, under autocast and torch.compile, on a
side stream, in a CUDA graph, on a second GPU."""
import copy

import torch
from torch import nn

from mesa_seg import convert
from mesa_seg.functional.upsample_cross_entropy import upsample_cross_entropy

TOLERANCE = {None: 0.05, torch.bfloat16: 0.1, torch.float16: 0.07}


class _Net(nn.Module):
    """Maps and tokens, each kind of layer that a segmentation transformer has, logits of 19 classes."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 4, 4), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
        self.mlp = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
        self.head = nn.Conv2d(64, 19, 1)

    def forward(self, x):
        x = self.stem(x)
        tokens = x.flatten(2).transpose(1, 2)
        return self.head((tokens + self.mlp(tokens)).transpose(1, 2).reshape(x.shape))


class _Setup:
    """Stock, its converted twin, and a batch."""

    def __init__(self, device):
        torch.manual_seed(0)
        self.device = torch.device(device)
        self.stock = _Net().to(device)
        self.mesa = copy.deepcopy(self.stock)
        convert(self.mesa)
        self.batches = [(torch.randn(2, 3, 64, 96, device=device), torch.randint(0, 19, (2, 64, 96), device=device))
                        for _ in range(2)]
        self.step(self.mesa)  # the first measures the ranges

    def step(self, model, batch=0, amp=None, call=None):
        """Gradients of one step in float64, one vector."""
        images, labels = self.batches[batch]
        model.zero_grad(set_to_none=True)
        self.loss(model if call is None else call, images, labels, amp).backward()
        return _vector(model)

    def loss(self, call, images, labels, amp=None):
        torch.default_generator.manual_seed(1)  # of the roundings; the GPU's may not be seeded in a capture
        with torch.autocast(self.device.type, amp, enabled=amp is not None):
            return upsample_cross_entropy(call(images), labels)[0]


def _vector(model):
    return torch.cat([p.grad.double().flatten() for p in model.parameters()]).cpu()


def _near(context, name, got, want, tolerance):
    error = ((got - want).norm() / want.norm()).item()
    if not error <= tolerance:
        context.wrong(f'{name}: gradients are off by {error:.2%} in norm, expected at most {tolerance:.1%}')


def run(context):
    checks = [gradients, compiled]
    if context.device.type == 'cuda':
        checks += [side_stream, graph_of_a_step, second_device]
    for check in checks:
        context.attempt(check.__name__.replace('_', ' '), check, context, _Setup(context.device))
    context.progress(f'modules: {len(checks)} checks of a converted model')


def gradients(context, setup):
    """Also under autocast."""
    for amp in (None, torch.bfloat16, torch.float16):
        if amp != torch.float16 or context.device.type == 'cuda':
            _near(context, f'converted model, autocast to {amp}', setup.step(setup.mesa, amp=amp),
                  setup.step(setup.stock, amp=amp), TOLERANCE[amp])


def compiled(context, setup):
    call = torch.compile(setup.mesa, backend='aot_eager')
    setup.step(setup.mesa, call=call)
    _near(context, 'compiled converted model', setup.step(setup.mesa, call=call), setup.step(setup.stock),
          TOLERANCE[None])
    images = setup.batches[0][0]
    with torch.no_grad():
        want = setup.mesa.eval()(images)
        got = torch.compile(setup.mesa, backend='aot_eager', fullgraph=True)(images)
    error = ((got - want).norm() / want.norm()).item()
    if not error <= 1e-4:
        context.wrong(f'converted model compiled for evaluation: off by {error:.2e}')


def side_stream(context, setup):
    want = setup.step(setup.stock)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = setup.step(setup.mesa)
    torch.cuda.current_stream().wait_stream(stream)
    _near(context, 'converted model on a side stream', got, want, TOLERANCE[None])


def graph_of_a_step(context, setup):
    """Forward and backward captured once, then replayed on other images."""
    model = setup.mesa
    images, labels = (t.clone() for t in setup.batches[0])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            setup.step(model)
    torch.cuda.current_stream().wait_stream(stream)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        setup.loss(model, images, labels).backward()
    for batch, (new_images, new_labels) in enumerate(setup.batches):
        images.copy_(new_images)
        labels.copy_(new_labels)
        graph.replay()
        context.synchronize()
        _near(context, f'converted model in a CUDA graph, batch {batch}', _vector(model),
              setup.step(setup.stock, batch), TOLERANCE[None])


def second_device(context, setup):
    if torch.cuda.device_count() < 2:
        context.skip('a converted model on a second GPU: there is only one')
        return
    other = _Setup('cuda:1')
    _near(context, 'converted model on the second GPU', other.step(other.mesa), other.step(other.stock), TOLERANCE[None])
