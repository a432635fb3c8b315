"""ReLU that keeps one bit a value."""
from torch import nn

from .. import functional as M
from ._module import MesaModule


class MesaReLU(MesaModule, nn.ReLU):
    """``torch.nn.ReLU``; see :func:`mesa_seg.functional.relu`."""
    kind = 'relu'
    mesa_quantizers = ()

    def forward(self, x):
        if not self.compresses():
            return super().forward(x)
        return M.relu(x, self.inplace, self.mesa_reuse)
