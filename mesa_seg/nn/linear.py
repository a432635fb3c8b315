"""Linear that keeps the saved form of its input."""
from torch import nn

from .. import functional as M
from ._module import MesaModule


class MesaLinear(MesaModule, nn.Linear):
    """``torch.nn.Linear``; see :func:`mesa_seg.functional.linear`."""
    kind = 'fc'

    def forward(self, x):
        if not self.compresses():
            return super().forward(x)
        return M.linear(x, self.weight, self.bias, self.quantizer)
