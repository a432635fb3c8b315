"""A product of two activations as a module."""
import torch
from torch import nn

from .. import functional as M
from ._module import MesaModule


class MatMul(nn.Module):
    """``torch.matmul`` as a module, so that conversion finds it."""

    def forward(self, a, b):
        return torch.matmul(a, b)


class MesaMatMul(MesaModule, MatMul):
    """See :func:`mesa_seg.functional.matmul`."""
    kind = 'matmul'
    mesa_quantizers = ('quantizer_a', 'quantizer_b')

    def forward(self, a, b):
        if not self.compresses():
            return super().forward(a, b)
        return M.matmul(a, b, self.quantizer_a, self.quantizer_b)
