"""Softmax that keeps its output."""
from torch import nn

from .. import functional as M
from ._module import MesaModule


class MesaSoftmax(MesaModule, nn.Softmax):
    """``torch.nn.Softmax``; see :func:`mesa_seg.functional.softmax`."""
    kind = 'softmax'

    @classmethod
    def refusal(cls, module):
        return 'its dimension is not set' if module.dim is None else None

    def forward(self, x):
        if not self.compresses():
            return super().forward(x)
        return M.softmax(x, self.dim, self.quantizer)
