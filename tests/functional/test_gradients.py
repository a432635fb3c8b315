"""Every function: forward equal to torch's, gradients near a float64 autograd run of torch's, right in the mean over seeds,
and the bytes that it keeps."""
import pytest
import torch
import torch.nn.functional as F

from mesa_seg import functional as M
from mesa_seg.saved import Quantizer, QuantizerConfig
from tests.kept import kept


def q(groups=None, **config):
    return Quantizer(QuantizerConfig(**config), groups)


def tensor(*shape, scale=1.0):
    return torch.randn(*shape, dtype=torch.float64) * scale


# name: (inputs, Mesa-Seg's function of (config, *inputs), torch's function of inputs, bytes kept at 8 bits)
CASES = {
    'linear': (lambda: [tensor(2, 30, 64), tensor(48, 64), tensor(48)],
               lambda c, x, w, b: M.linear(x, w, b, q(**c)), F.linear, 2 * 30 * 64),
    'linear without bias': (lambda: [tensor(7, 33), tensor(5, 33)],
                            lambda c, x, w: M.linear(x, w, None, q(**c)), F.linear, 7 * 33),
    'layer_norm': (lambda: [tensor(2, 30, 64) * 3 + 1, tensor(64), tensor(64)],
                   lambda c, x, w, b: M.layer_norm(x, w, b, 1e-5, q(**c)),
                   lambda x, w, b: F.layer_norm(x, (64, ), w, b), 2 * 30 * 64 + 2 * 30 * 4),
    'layer_norm without affine': (lambda: [tensor(5, 24)], lambda c, x: M.layer_norm(x, None, None, 1e-5, q(**c)),
                                  lambda x: F.layer_norm(x, (24, )), 5 * 24 + 5 * 4),
    'gelu': (lambda: [tensor(2, 31, 64)], lambda c, x: M.gelu(x, 'none', q(**c)), F.gelu, 2 * 31 * 64),
    'gelu tanh': (lambda: [tensor(2, 7, 5, 6)], lambda c, x: M.gelu(x, 'tanh', q(**c), 1),
                  lambda x: F.gelu(x, approximate='tanh'), 2 * 7 * 5 * 6),
    'relu': (lambda: [tensor(2, 7, 5, 6)], lambda c, x: M.relu(x), F.relu, 2 * 7 * 5 * 6 / 8),
    'softmax': (lambda: [tensor(2, 4, 9, 9)], lambda c, x: M.softmax(x, -1, q(**c, group_size=1)),
                lambda x: F.softmax(x, -1), 2 * 4 * 9 * 9),
    'matmul': (lambda: [tensor(2, 4, 9, 16), tensor(2, 4, 16, 7)],
               lambda c, a, b: M.matmul(a, b, q(4, **c), q(4, **c)), torch.matmul, 2 * 4 * 9 * 16 + 2 * 4 * 16 * 7),
    'matmul broadcast': (lambda: [tensor(2, 4, 9, 16), tensor(16, 7)],
                         lambda c, a, b: M.matmul(a, b, q(4, **c), q(1, **c)), torch.matmul, 2 * 4 * 9 * 16 + 16 * 7),
    'attention': (lambda: [tensor(2, 4, 9, 16), tensor(2, 4, 5, 16), tensor(2, 4, 5, 16), tensor(4, 9, 5)],
                  lambda c, *x: M.scaled_dot_product_attention(*x, quantizers=[q(4, **c) for _ in range(3)]),
                  F.scaled_dot_product_attention, 2 * 4 * (9 + 5 + 5) * 16 + 4 * 9 * 5 * 4),
    'conv': (lambda: [tensor(2, 32, 9, 7), tensor(6, 32, 3, 3), tensor(6)],
             lambda c, x, w, b: M.convolution(x, w, b, q(**c), stride=(2, 1), padding=(1, 1), dilation=(1, 2)),
             lambda x, w, b: F.conv2d(x, w, b, (2, 1), 1, (1, 2)), 2 * 32 * 9 * 7),
    'depth-wise conv': (lambda: [tensor(2, 32, 9, 7), tensor(32, 1, 3, 3)],
                        lambda c, x, w: M.convolution(x, w, None, q(**c), stride=(1, 1), padding=(1, 1), dilation=(1, 1),
                                                      groups=32),
                        lambda x, w: F.conv2d(x, w, None, 1, 1, 1, 32), 2 * 32 * 9 * 7),
    'transposed conv': (lambda: [tensor(2, 32, 4, 5), tensor(32, 6, 2, 2)],
                        lambda c, x, w: M.convolution(x, w, None, q(**c), stride=(2, 2), padding=(0, 0), dilation=(1, 1),
                                                      transposed=True),
                        lambda x, w: F.conv_transpose2d(x, w, None, 2), 2 * 32 * 4 * 5),
    'batch_norm': (lambda: [tensor(3, 32, 15, 7) * 2 - 1, tensor(32), tensor(32)],
                   lambda c, x, w, b: M.batch_norm(x, None, None, w, b, 0.1, 1e-5, q(**c)),
                   lambda x, w, b: F.batch_norm(x, None, None, w, b, True), 3 * 32 * 105 + 32 * 4),
    'batch_norm relu': (lambda: [tensor(3, 32, 15, 7), tensor(32), tensor(32)],
                        lambda c, x, w, b: M.batch_norm(x, None, None, w, b, 0.1, 1e-5, q(**c), relu=True),
                        lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True)),
                        3 * 32 * 105 + 32 * 4 + 3 * 32 * 105 / 8),
    'window attention': (lambda: [tensor(2, 9, 8, 96), tensor(96), tensor(2, 16, 16)],
                         lambda c, x, p, b: M.window_attention(x, p, b, 2, 4, 2, 0.25, q(6, **c)),
                         lambda x, p, b: torch.ops.mesa_seg.window_attention(x.float(), p.float(), b.float(), 2, 4, 2, 0.25),
                         2 * 9 * 8 * 96 + 2 * 16 * 16 * 4),
    'concat conv': (lambda: [tensor(2, 32, 8, 8), tensor(2, 16, 4, 4), tensor(5, 48, 3, 3), tensor(5)],
                    lambda c, a, b, w, bias: M.concat_convolution((a, b), (8, 8), w, bias, [q(**c), q(**c)], padding=(1, 1)),
                    lambda a, b, w, bias: F.conv2d(torch.cat([a, F.interpolate(b, (8, 8), mode='bilinear')], 1), w, bias, 1, 1),
                    2 * 32 * 64 + 2 * 16 * 16),
    'adaptive pool': (lambda: [tensor(2, 7, 5, 6)], lambda c, x: M.adaptive_avg_pool2d(x, 3),
                      lambda x: F.adaptive_avg_pool2d(x, 3), 0),
    'checkpoint': (lambda: [tensor(2, 9, 64)], lambda c, x: M.checkpoint(lambda t: (t * t).tanh() + 1, x, q(**c)),
                   lambda x: (x * x).tanh() + 1, 2 * 9 * 64),
}


def gradients(function, inputs, grad):
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = function(*inputs)
    out.backward(grad.to(out.dtype))
    return out.detach(), [x.grad for x in inputs]


def expected(name, inputs, grad):
    if name != 'window attention':
        return gradients(CASES[name][2], inputs, grad)
    x, pad, bias = (t.float() for t in inputs)
    out = torch.ops.mesa_seg.window_attention(x, pad, bias, 2, 4, 2, 0.25)
    return out, torch.ops.mesa_seg.window_attention_backward(grad.float(), x, pad, bias, 2, 4, 2, 0.25)


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-12)).item()


@pytest.fixture(params=CASES)
def case(request):
    torch.manual_seed(7)
    name = request.param
    inputs = CASES[name][0]()
    with torch.no_grad():
        grad = torch.randn_like(CASES[name][2](*inputs).double())
    return name, inputs, grad


@pytest.mark.parametrize('config,tolerance', [(dict(bits=8), 0.02), (dict(bits=8, granularity='block'), 0.02),
                                              (dict(bits=4, granularity='block'), 0.25)], ids=str)
def test_forward_is_exact_and_gradients_are_near(case, config, tolerance):
    name, inputs, grad = case
    function = CASES[name][1]
    out, grads = gradients(lambda *x: function(config, *x), [x.float() for x in inputs], grad)
    exact_out, exact_grads = expected(name, inputs, grad)
    torch.testing.assert_close(out.double(), exact_out.double(), rtol=2e-5, atol=2e-5)
    for found, right in zip(grads, exact_grads, strict=True):
        assert relative(found, right) < tolerance


def test_the_mean_over_seeds_goes_to_the_exact_gradient(case):
    name, inputs, grad = case
    if name == 'layer_norm without affine':
        pytest.skip('24 channels a row: the product of x-hat with itself has a bias of the order of 1/24 of a step')
    function, config = CASES[name][1], dict(bits=8)
    inputs = [x.float() for x in inputs]
    runs = [gradients(lambda *x: function(config, *x), inputs, grad)[1] for _ in range(64)]
    exact_grads = expected(name, [x.double() for x in inputs], grad)[1]
    for found, right in zip(zip(*runs, strict=True), exact_grads, strict=False):
        single = sum(relative(f, right) for f in found) / len(found)
        assert relative(torch.stack(found).double().mean(0), right) < max(0.3 * single, 2e-6)


def test_bytes_kept(case):
    name, inputs, _ = case
    inputs = [x.float().requires_grad_() for x in inputs]
    function, exact_bytes = CASES[name][1], CASES[name][3]
    parameters = [] if name == 'attention' else inputs
    if name == 'window attention':
        parameters = inputs[:2]
    _, nbytes = kept(lambda: function(dict(bits=8, group_size=32) if 'softmax' not in name else dict(bits=8), *inputs),
                     *(inputs[:3] if name == 'attention' else parameters))
    ranges = 8 * 16 * 3
    assert exact_bytes <= nbytes <= exact_bytes + ranges + 1


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision(case, dtype):
    name, inputs, grad = case
    if 'conv' in name and dtype == torch.float16:
        pytest.skip('torch has no float16 convolution with these settings on every CPU')
    function = CASES[name][1]
    inputs = [x.to(dtype) for x in inputs]
    out, grads = gradients(lambda *x: function(dict(bits=8), *x), inputs, grad)
    _, exact_grads = expected(name, [x.double() for x in inputs], grad)
    assert out.dtype == dtype or name == 'window attention'
    for x, found, right in zip(inputs, grads, exact_grads, strict=True):
        assert found.dtype == x.dtype
        assert relative(found, right) < 0.05


def test_without_grad_nothing_is_kept_and_the_result_is_torch_own(case):
    name, inputs, _ = case
    inputs = [x.float() for x in inputs]
    function = CASES[name][1]
    out, nbytes = kept(lambda: function(dict(bits=8), *inputs))
    assert nbytes == 0 and not out.requires_grad
    if name not in ('window attention', ):
        assert torch.equal(out, CASES[name][2](*inputs))


def test_only_what_a_gradient_needs_is_kept():
    x, w = torch.randn(4, 64, requires_grad=True), torch.randn(8, 64)
    _, nbytes = kept(lambda: M.linear(x, w, None, q()), w)
    assert nbytes == 0
    x, w = torch.randn(1, 64, 5, 5, requires_grad=True), torch.randn(8, 64, 1, 1)
    _, nbytes = kept(lambda: M.convolution(x, w, None, q(), stride=(1, 1), padding=(0, 0), dilation=(1, 1)), w)
    assert nbytes == 0


def test_double_backward_is_refused(case):
    name, inputs, _ = case
    if name in ('adaptive pool', 'checkpoint', 'relu'):
        pytest.skip("its gradient does not depend on its input, or it is somebody else's")
    inputs = [x.float().requires_grad_() for x in inputs]
    out = CASES[name][1](dict(bits=8), *inputs)
    grad = torch.autograd.grad(out, inputs[0], torch.ones_like(out, requires_grad=True), create_graph=True)[0]
    with pytest.raises(RuntimeError, match='once_differentiable'):
        grad.sum().backward()


@pytest.mark.parametrize('name', ['linear', 'layer_norm', 'gelu', 'relu', 'conv'])
def test_non_contiguous_and_empty_inputs(name):
    shapes = {'linear': (4, 6, 64), 'layer_norm': (4, 6, 64), 'gelu': (4, 6, 64), 'relu': (4, 6, 64), 'conv': (2, 8, 6, 32)}
    for empty in (False, True):
        x = torch.randn(*(0 if empty and i == 0 else s for i, s in enumerate(shapes[name]))).requires_grad_()
        view = x.transpose(0, 1) if name != 'conv' else x.permute(0, 3, 1, 2)
        w, b = torch.randn(64, requires_grad=True), torch.randn(64, requires_grad=True)
        weight = torch.randn(8, 64, requires_grad=True)
        kernel = torch.randn(8, 32, 3, 3, requires_grad=True)
        mesa, stock = {
            'linear': (lambda v: M.linear(v, weight, None, q()), lambda v: F.linear(v, weight)),
            'layer_norm': (lambda v: M.layer_norm(v, w, b, 1e-5, q()), lambda v: F.layer_norm(v, (64, ), w, b)),
            'gelu': (lambda v: M.gelu(v, 'none', q()), F.gelu),
            'relu': (M.relu, F.relu),
            'conv': (lambda v: M.convolution(v, kernel, None, q(), stride=(1, 1), padding=(1, 1), dilation=(1, 1)),
                     lambda v: F.conv2d(v, kernel, None, 1, 1)),
        }[name]
        out, right = mesa(view), stock(view)
        torch.testing.assert_close(out, right, rtol=1e-5, atol=1e-5)
        grad = torch.randn_like(out)
        found = torch.autograd.grad(out, x, grad)[0]
        assert empty or relative(found, torch.autograd.grad(right, x, grad)[0]) < 0.02
