"""Shapes of the outputs that several families share, for their fake kernels."""
import torch


def empty_codes(x, numel, bits):
    """Codes of ``numel`` values: uint8 [ceil(numel*bits/8)], on the device of ``x``."""
    return x.new_empty([(numel * bits + 7) // 8], dtype=torch.uint8)


def empty_ranges(x, numel, groups, block_size):
    """Ranges beside ``numel`` values: float32 [groups, 2] (``block_size`` 0) or bfloat16 [ceil(numel/block_size), 2]."""
    if block_size:
        return x.new_empty([(numel + block_size - 1) // block_size, 2], dtype=torch.bfloat16)
    return x.new_empty([groups, 2], dtype=torch.float32)
