"""GELU that keeps its input."""
from torch import nn

from .. import functional as M
from ._module import MesaModule, channel_dim


class MesaGELU(MesaModule, nn.GELU):
    """``torch.nn.GELU``; see :func:`mesa_seg.functional.gelu`."""
    kind = 'gelu'

    def forward(self, x):
        if not self.compresses():
            return super().forward(x)
        return M.gelu(x, self.approximate, self.quantizer, channel_dim(x))
