import pytest
import torch
import torch.nn.functional as F

from mesa_seg.saved import Propagate, Quantizer, QuantizerConfig, attach, lookup

FUNCTIONS = {
    'view': lambda x: x.view(2, 8, 8, 32),
    'reshape': lambda x: x.reshape(2, 2, 32, 32),
    'permute': lambda x: x.permute(0, 2, 1),
    'contiguous': lambda x: x.transpose(1, 2).contiguous(),
    'flatten': lambda x: x.flatten(1),
    'slice': lambda x: x[:, :50, 3:],
    'index': lambda x: x[1],
    'roll': lambda x: torch.roll(x.view(2, 8, 8, 32), shifts=(-3, -3), dims=(1, 2)),
    'pad': lambda x: F.pad(x, (0, 0, 0, 6)),
    'window partition': lambda x: x.view(2, 2, 4, 2, 4, 32).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 4, 4, 32),
    'resize': lambda x: F.interpolate(x.view(2, 64, 8, 4), size=(5, 9), mode='bilinear', align_corners=False),
    'pool': lambda x: F.adaptive_avg_pool2d(x.view(2, 64, 8, 4), 3),
    'concatenation': lambda x: torch.cat([x, x], dim=1),
    'sum': lambda x: x + x.view(2, 64, 32),
    'cast': lambda x: x.bfloat16(),
}


def activation():
    x = torch.randn(2, 64, 32, requires_grad=True) * 1
    saved = Quantizer(QuantizerConfig())(x, -1)
    return attach(x, saved), saved


@pytest.mark.parametrize('name', FUNCTIONS)
def test_the_form_goes_through(name):
    x, saved = activation()
    with Propagate():
        y = FUNCTIONS[name](x)
    form = lookup(y)
    assert form is not None and form.shape == y.shape
    assert {t.data_ptr() for t in form.tensors} == {t.data_ptr() for t in saved.tensors}, 'something more is kept'
    expected = FUNCTIONS[name](saved.rebuild(*saved.tensors))
    assert torch.equal(form.rebuild(*form.tensors), expected)


def test_a_concatenation_can_be_rebuilt_part_by_part():
    (x, first), (y, second) = activation(), activation()
    with Propagate():
        z = torch.cat((x, y), 1)
    dim, parts = lookup(z).parts
    assert dim == 1 and parts == (first, second)


def test_nothing_goes_through_a_function_that_changes_values_or_a_part_without_a_form():
    x, _ = activation()
    with Propagate():
        assert lookup(x.exp()) is None
        assert lookup(torch.cat([x, torch.randn(2, 64, 32)])) is None
        assert lookup(x + 1) is None
        assert lookup(x.view(torch.int32)) is None


def test_nothing_goes_on_from_an_edited_tensor_or_without_grad():
    x, _ = activation()
    with Propagate():
        with torch.no_grad():
            assert lookup(x.view(-1)) is None
            x.mul_(2)
        assert lookup(x.view(-1)) is None
