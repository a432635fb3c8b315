"""What is compressed under ``torch.compile``: training runs as it is, evaluation compiles as stock's."""
import copy

import pytest
import torch
from mmseg.registry import MODELS
from torch import nn

from mesa_seg import convert, ops
from tests.kept import kept


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def block():
    torch.manual_seed(0)
    backbone = MODELS.get('SwinTransformer')(
        embed_dims=32, depths=(2, 1, 1, 1), num_heads=(1, 1, 1, 1), window_size=3, mlp_ratio=2)
    return backbone.stages[0].blocks[1]  # shifted


def converted(model):
    convert(model)
    return model


def train(call, parameters, x):
    """The output's gradients, and the bytes kept, of a second step: the first measures ranges and compiles."""
    for _ in range(2):
        torch.manual_seed(1)
        out, nbytes = kept(lambda: call(x, (7, 7)), x, *parameters)
        grads = torch.autograd.grad(out.square().sum(), parameters)
    return out, grads, nbytes


def test_training_is_that_of_eager_code():
    model = converted(block())
    twin = copy.deepcopy(model)
    x = torch.randn(2, 49, 32)
    want = train(model, list(model.parameters()), x)
    got = train(torch.compile(twin, backend='aot_eager'), list(twin.parameters()), x)
    torch.testing.assert_close(got[:2], want[:2], rtol=1e-4, atol=1e-4)
    assert got[2] == want[2], 'the same is kept'


def test_a_compiled_part_of_a_converted_model():
    """Forms do not pass through a compiled part; what it computes stays right."""
    torch.manual_seed(0)
    stock = nn.Sequential(nn.Linear(32, 32), nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU()),
                          nn.Linear(64, 8))
    model = converted(copy.deepcopy(stock))
    model[1] = torch.compile(model[1], backend='aot_eager')
    x = torch.randn(200, 32)
    for net in (stock, model):
        net(x).square().mean().backward()
    for mine, theirs in zip(model.parameters(), stock.parameters(), strict=True):
        assert (mine.grad - theirs.grad).norm() < 0.05 * theirs.grad.norm()


def test_evaluation_compiles_as_one_graph():
    stock = block().eval()
    model = converted(copy.deepcopy(stock))
    x = torch.randn(2, 49, 32)
    with torch.no_grad():
        want = stock(x, (7, 7))
        got = torch.compile(model, backend='aot_eager', fullgraph=True)(x, (7, 7))
    torch.testing.assert_close(got, want)


def test_fullgraph_in_training_says_why_not():
    model = converted(block())
    with pytest.raises(torch._dynamo.exc.Unsupported, match='mesa_seg keeps saved forms beside the graph'):
        torch.compile(model, backend='eager', fullgraph=True)(torch.randn(2, 49, 32), (7, 7))


def test_operators_compile_as_one_graph():
    def there_and_back(x, ranges):
        codes, _ = ops.quantize(x, ranges, 4, 0, 7, True)
        return ops.dequantize(codes, ranges, *x.shape, 4, 0, x.dtype) * 2

    x, ranges = torch.rand(10, 3, 8), torch.tensor([[0.0, 1.0]] * 3)
    got = torch.compile(there_and_back, backend='aot_eager', fullgraph=True)(x, ranges)
    assert torch.equal(got, there_and_back(x, ranges))
