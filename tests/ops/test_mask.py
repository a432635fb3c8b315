"""One-bit masks: compiled against reference, and what a user counts on in either."""
import pytest
import torch

from mesa_seg import ops
from mesa_seg.reference import mask as reference

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHAPES = [(0,), (1,), (7,), (8,), (3, 5, 7), (2, 3, 40, 41), (70001,)]


def values(shape, dtype):
    x = torch.randn(shape)
    flat = x.view(-1)
    flat[::11] = 0.0
    flat[5::97] = float('nan')
    flat[6::97] = float('inf')
    flat[7::97] = float('-inf')
    return x.to(dtype)


@pytest.mark.parametrize('shape', SHAPES)
def test_pack_and_unpack(shape):
    mask = torch.rand(shape) < 0.3
    bits = ops.pack_mask(mask)
    assert torch.equal(bits, reference.pack_mask(mask))
    assert bits.dtype == torch.uint8 and bits.shape == ((mask.numel() + 7) // 8,)
    assert torch.equal(ops.unpack_mask(bits, mask.numel()), mask.reshape(-1))


def test_bit_order_and_unused_bits():
    mask = torch.tensor([1, 0, 0, 1, 0, 0, 0, 1, 1, 1], dtype=torch.bool)
    assert ops.pack_mask(mask).tolist() == [0b10001001, 0b11]


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('shape', SHAPES)
def test_relu_and_its_backward(shape, dtype):
    x, grad = values(shape, dtype), values(shape, dtype)
    y, bits = ops.relu_mask(x)
    expected_y, expected_bits = reference.relu_mask(x)
    assert torch.equal(bits, expected_bits)
    torch.testing.assert_close(y, expected_y, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(y, torch.relu(x), rtol=0, atol=0, equal_nan=True)
    for scale in (1.0, 1 / 0.9):
        back = ops.mask_multiply(grad, bits, scale)
        assert back.dtype == dtype and back.shape == grad.shape
        torch.testing.assert_close(back, reference.mask_multiply(grad, bits, scale), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(ops.mask_multiply(grad, bits, 1.0), torch.where(x > 0, grad, 0), rtol=0, atol=0,
                               equal_nan=True)


def test_order_is_logical_whatever_the_strides():
    x = torch.randn(3, 6, 5, 4).to(memory_format=torch.channels_last)
    y, bits = ops.relu_mask(x)
    assert torch.equal(y, torch.relu(x)) and torch.equal(bits, ops.pack_mask(x > 0))
    assert torch.equal(bits, ops.pack_mask((x > 0).contiguous()))
    grad = torch.randn(4, 5, 6, 3).permute(3, 2, 1, 0)
    assert torch.equal(ops.mask_multiply(grad, bits, 1.0), torch.where(x > 0, grad, 0))


def test_threads_do_not_matter():
    x = torch.randn(100_003)
    out = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        out.append(ops.relu_mask(x))
    assert all(torch.equal(a, b) for a, b in zip(*out, strict=True))


def test_opcheck():
    mesa = torch.ops.mesa_seg
    x = torch.randn(3, 7)
    _, bits = ops.relu_mask(x)
    torch.library.opcheck(mesa.pack_mask.default, (x > 0,))
    torch.library.opcheck(mesa.unpack_mask.default, (bits, 21))
    torch.library.opcheck(mesa.relu_mask.default, (x.half(),))
    torch.library.opcheck(mesa.mask_multiply.default, (x.t(), bits, 2.0))


@pytest.mark.parametrize('call, error, words', [
    (lambda: ops.pack_mask(torch.zeros(8)), TypeError, ['mask', 'bool', 'float32']),
    (lambda: ops.unpack_mask(torch.zeros(2, dtype=torch.uint8), 17), ValueError, ['bits', '(3,)', '(2,)', '17']),
    (lambda: ops.unpack_mask(torch.zeros(2), 16), TypeError, ['bits', 'uint8', 'float32']),
    (lambda: ops.relu_mask(torch.zeros(8, dtype=torch.int32)), TypeError, ['x', 'float32', 'int32']),
    (lambda: ops.mask_multiply(torch.zeros(9), torch.zeros(1, dtype=torch.uint8), 1.0), ValueError, ['bits', '(2,)']),
])
def test_bad_arguments_are_named(call, error, words):
    with pytest.raises(error) as raised:
        call()
    assert all(word in str(raised.value) for word in words), str(raised.value)
