"""CUDA prediction against the CPU operator."""
import pytest
import torch

from mesa_seg.ops import upsample_argmax
from mesa_seg.reference.upsample import bilinear_taps, chain_taps, merge_taps

# A CPU without fused multiply-adds rounds products that a GPU does not.
FUSED = torch.backends.cpu.get_cpu_capability() in ('AVX2', 'AVX512')


def taps(size, middle, low):
    return merge_taps(*chain_taps(bilinear_taps(size, middle, False), bilinear_taps(middle, low, False)))


def arguments(maps, sizes=((37, 24), (29, 30))):
    """Lists of each map for an output of 37 x 29, by way of 24 x 30."""
    lists = [[taps(*size, low) for size, low in zip(sizes, image.shape[1:], strict=True)] for image in maps]
    return [maps, *[[axes[axis][part] for axes in lists] for axis in (0, 1) for part in (0, 1)]]


def call(device, args, softmax):
    args = [[device.put(tensor) for tensor in tensors] for tensors in args]
    return device.ops.upsample_argmax(*args, softmax).cpu()


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize('softmax', [False, True])
@pytest.mark.parametrize('count', [1, 3])
def test_equals_cpu(device, count, softmax, dtype, monkeypatch):
    torch.manual_seed(0)
    maps = [torch.randn(11, 6 + i, 8).to(dtype).transpose(1, 2).contiguous().transpose(1, 2) for i in range(count)]
    args = arguments(maps)
    expected = upsample_argmax(*args, softmax)
    for _ in device.orders(monkeypatch, 2):
        found = call(device, args, softmax)
        if FUSED and (count == 1 or not softmax):  # the same operations in the same order
            assert torch.equal(found, expected)
        else:  # sums of probabilities that are equal to rounding may name either class
            assert (found == expected).float().mean() > 0.999


def test_many_taps_and_few_blocks(device, monkeypatch):
    """More sources than a thread holds: a strong reduction after windows that overlap."""
    device.limit_grid(monkeypatch, 2)
    torch.manual_seed(0)
    maps = [torch.randn(5, 20, 30)]
    index, weight = torch.arange(6).repeat(9, 1).int() * 3, torch.rand(9, 6)
    args = [maps, [index], [weight], [index + 1], [weight.flip(1)]]
    assert torch.equal(call(device, args, False), upsample_argmax(*args, False))


def test_equal_values_give_the_lowest_class(device):
    logits = torch.zeros(7, 2, 2)
    logits[[3, 6]] = 1
    assert (call(device, arguments([logits]), False) == 3).all()
