"""Each thing is kept once: what a consumer finds on its input."""
import torch
import torch.nn.functional as F

from mesa_seg import functional as M
from mesa_seg.saved import Propagate, Quantizer, QuantizerConfig
from tests.kept import kept


def q(groups=None, **config):
    return Quantizer(QuantizerConfig(**config), groups)


def pairs(out, exact, grad, inputs):
    """The gradients of both with respect to each input."""
    return zip(torch.autograd.grad(out, inputs, grad), torch.autograd.grad(exact, inputs, grad), strict=True)


def one(function, *parameters):
    with Propagate():
        out, nbytes = kept(function, *parameters)
    return out, nbytes


def test_linear_after_layer_norm_keeps_nothing_more():
    x = torch.randn(100, 64, requires_grad=True)
    w, b, weight = (torch.randn(*s, requires_grad=True) for s in ((64, ), (64, ), (32, 64)))
    out, nbytes = one(lambda: M.linear(M.layer_norm(x, w, b, 1e-5, q()), weight, None, q()), w, b, weight)
    assert nbytes == 100 * 64 + 100 * 4 + 2 * 8
    grad = torch.randn_like(out)
    exact = F.linear(F.layer_norm(x, (64, ), w, b), weight)
    for found, right in pairs(out, exact, grad, (x, w, b, weight)):
        assert (found - right).norm() < 0.02 * right.norm()


def test_linear_after_gelu_keeps_nothing_more():
    x, weight = torch.randn(100, 64, requires_grad=True), torch.randn(32, 64, requires_grad=True)
    out, nbytes = one(lambda: M.linear(M.gelu(x, 'none', q()), weight, None, q()), weight)
    assert nbytes == 100 * 64 + 2 * 8
    grad = torch.randn_like(out)
    found, = torch.autograd.grad(out, weight, grad)
    right, = torch.autograd.grad(F.linear(F.gelu(x), weight), weight, grad)
    assert (found - right).norm() < 0.02 * right.norm()


def test_conv_after_batch_norm_and_relu_keeps_one_bit_a_value_more():
    x = torch.randn(2, 32, 16, 16, requires_grad=True)
    w, b, kernel = (torch.randn(*s, requires_grad=True) for s in ((32, ), (32, ), (16, 32, 3, 3)))

    def forward(fused):
        y = M.batch_norm(x, None, None, w, b, 0.1, 1e-5, q(), relu=fused)
        y = y if fused else M.relu(y)
        return M.convolution(y, kernel, None, q(), stride=(1, 1), padding=(1, 1), dilation=(1, 1))

    for fused in (True, False):
        out, nbytes = one(lambda fused=fused: forward(fused), w, b, kernel)
        assert nbytes == 2 * 32 * 256 * 9 / 8 + 32 * 4 + 8
        grad = torch.randn_like(out)
        exact = F.conv2d(F.relu(F.batch_norm(x, None, None, w, b, True)), kernel, None, 1, 1)
        for found, right in pairs(out, exact, grad, (x, w, kernel)):
            assert (found - right).norm() < 0.02 * right.norm()


def test_two_consumers_of_one_tensor_share_its_form():
    x = torch.randn(100, 64, requires_grad=True) * 1
    a, b = torch.randn(8, 64, requires_grad=True), torch.randn(9, 64, requires_grad=True)
    _, nbytes = one(lambda: (M.linear(x, a, None, q()), M.linear(x, b, None, q())), a, b)
    assert nbytes == 100 * 64 + 2 * 8


def test_without_reuse_each_keeps_its_own():
    x = torch.randn(100, 64, requires_grad=True)
    weight = torch.randn(8, 64, requires_grad=True)
    own = Quantizer(QuantizerConfig(), reuse=False), Quantizer(QuantizerConfig(), reuse=False)
    _, nbytes = one(lambda: M.linear(M.gelu(x, 'none', own[0]), weight, None, own[1]), weight)
    assert nbytes == 2 * (100 * 64 + 2 * 8)


def test_an_edit_in_place_between_producer_and_consumer_is_seen():
    x, weight = torch.randn(100, 64, requires_grad=True), torch.randn(32, 64, requires_grad=True)
    y = M.gelu(x, 'none', q())
    with torch.no_grad():
        y.mul_(3)
    out = M.linear(y, weight, None, q())
    found, = torch.autograd.grad(out.sum(), weight)
    assert (found - y.sum(0)).norm() < 0.02 * found.norm()


def test_conv_over_a_concatenation_of_resized_maps_keeps_nothing_more():
    xs = [torch.randn(2, 32, s, s, requires_grad=True) for s in (64, 32, 16)]
    w, b, kernel = (torch.randn(*s, requires_grad=True) for s in ((32, ), (32, ), (16, 96, 3, 3)))
    quantizers = [q() for _ in xs]

    def forward(norm):
        maps = [F.interpolate(norm(x, c), size=(64, 64), mode='bilinear') for x, c in zip(xs, quantizers, strict=True)]
        return torch.cat(maps, 1)

    def mesa():
        y = forward(lambda x, c: M.batch_norm(x, None, None, w, b, 0.1, 1e-5, c, relu=True))
        return M.convolution(y, kernel, None, q(), stride=(1, 1), padding=(1, 1), dilation=(1, 1))

    out, nbytes = one(mesa, w, b, kernel)
    assert nbytes == sum(x.numel() * 9 // 8 + 32 * 4 + 8 for x in xs)
    exact = F.conv2d(forward(lambda x, c: F.relu(F.batch_norm(x, None, None, w, b, True))), kernel, None, 1, 1)
    torch.testing.assert_close(out, exact, rtol=1e-4, atol=1e-4)
    grad = torch.randn_like(out)
    for found, right in pairs(out, exact, grad, (*xs, kernel)):
        assert (found - right).norm() < 0.02 * right.norm()


def test_channel_dropout_hands_the_form_on_and_draws_what_torch_draws():
    x = torch.randn(2, 32, 16, 16, requires_grad=True)
    w, b, kernel = (torch.randn(*s, requires_grad=True) for s in ((32, ), (32, ), (16, 32, 1, 1)))

    def mesa():
        y = M.batch_norm(x, None, None, w, b, 0.1, 1e-5, q(rounding='nearest'))
        torch.manual_seed(0)
        return M.convolution(M.channel_dropout(y, 0.5), kernel, None, q(), stride=(1, 1), padding=(0, 0), dilation=(1, 1))

    out, nbytes = one(mesa, w, b, kernel)
    assert nbytes == 2 * 32 * 256 + 32 * 4 + 8 + 2 * 32 * 4
    y = F.batch_norm(x, None, None, w, b, True)
    torch.manual_seed(0)
    exact = F.conv2d(F.dropout2d(y, 0.5), kernel)
    torch.testing.assert_close(out, exact, rtol=1e-4, atol=1e-4)
    found, right = (torch.autograd.grad(o.square().sum(), kernel)[0] for o in (out, exact))
    assert (found - right).norm() < 0.02 * right.norm()


def test_dropout_keeps_one_bit_a_value_and_draws_what_torch_draws():
    x = torch.randn(100, 64, requires_grad=True)
    torch.manual_seed(0)
    out, nbytes = one(lambda: M.dropout(x, 0.3))
    torch.manual_seed(0)
    exact = F.dropout(x, 0.3)
    assert nbytes == 100 * 64 / 8 and torch.equal(out, exact)
    grad = torch.randn_like(out)
    torch.testing.assert_close(torch.autograd.grad(out, x, grad), torch.autograd.grad(exact, x, grad))


def test_relu_in_place_changes_its_input_and_has_the_right_gradient():
    x = torch.randn(100, 64, requires_grad=True)
    y = x * 1
    out = M.relu(y, inplace=True)
    assert out is y and torch.equal(y, x.clamp(min=0))
    grad = torch.randn_like(out)
    assert torch.equal(torch.autograd.grad(out, x, grad)[0], grad * (x > 0))


def test_a_module_called_twice_before_backward_is_right():
    w, b, weight = (torch.randn(*s, requires_grad=True) for s in ((64, ), (64, ), (32, 64)))
    norm, fc = q(decay=0.0), q()
    xs = [torch.randn(50, 64) * s for s in (1, 10)]

    def forward(x, mesa):
        if mesa:
            return M.linear(M.layer_norm(x, w, b, 1e-5, norm), weight, None, fc).square().sum()
        return F.linear(F.layer_norm(x, (64, ), w, b), weight).square().sum()

    losses = [forward(x, True) for x in xs]
    found = torch.autograd.grad(sum(losses), (w, weight))
    right = torch.autograd.grad(sum(forward(x, False) for x in xs), (w, weight))
    for f, r in zip(found, right, strict=True):
        assert (f - r).norm() < 0.02 * r.norm()


def test_saved_tensor_hooks_see_all_of_it_and_retain_graph_works():
    x, weight = torch.randn(100, 64, requires_grad=True), torch.randn(32, 64, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        out = M.linear(M.gelu(x, 'none', q()), weight, None, q()).sum()
    first = torch.autograd.grad(out, (x, weight), retain_graph=True)
    second = torch.autograd.grad(out, (x, weight))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_batch_norm_over_few_values_is_exact():
    x, w, b = (torch.randn(*s, requires_grad=True) for s in ((2, 32, 1, 1), (32, ), (32, )))
    out = M.batch_norm(x, None, None, w, b, 0.1, 1e-5, q(bits=2), relu=True)
    exact = F.relu(F.batch_norm(x, None, None, w, b, True))
    grad = torch.randn_like(out)
    for found, right in pairs(out, exact, grad, (x, w, b)):
        torch.testing.assert_close(found, right)


def test_gelu_after_layer_norm_keeps_nothing_more():
    x, w, b, weight = (torch.randn(*s, requires_grad=True) for s in ((100, 64), (64, ), (64, ), (32, 64)))
    for approximate in ('none', 'tanh'):
        out, nbytes = one(lambda how=approximate: M.linear(M.gelu(M.layer_norm(x, w, b, 1e-5, q()), how, q()), weight, None, q()),
                          w, b, weight)
        assert nbytes == 100 * 64 + 100 * 4 + 2 * 8
        exact = F.linear(F.gelu(F.layer_norm(x, (64, ), w, b), approximate=approximate), weight)
        torch.testing.assert_close(out, exact, rtol=1e-4, atol=1e-4)
        for found, right in pairs(out, exact, torch.randn_like(out), (x, w, b, weight)):
            assert (found - right).norm() < 0.02 * right.norm()
