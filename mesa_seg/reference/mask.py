"""One-bit masks in plain PyTorch: the oracle of the tests, and the path where no compiled module loads."""
import torch

from mesa_seg.reference.quantize import pack, unpack


def pack_mask(mask):
    return pack(mask.reshape(-1).to(torch.uint8), 1).clone()


def unpack_mask(bits, numel):
    return unpack(bits, numel, 1).to(torch.bool)


def relu_mask(x):
    x = x.contiguous()
    return torch.relu(x), pack_mask(x > 0)


def mask_multiply(grad, bits, scale):
    grad = grad.contiguous()
    kept = unpack_mask(bits, grad.numel()).reshape(grad.shape)
    value = grad.to(torch.float32) * torch.full((), scale, dtype=torch.float32, device=grad.device)
    return torch.where(kept, value, 0.0).to(grad.dtype)
