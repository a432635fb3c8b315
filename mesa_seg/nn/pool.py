"""Pooling that keeps shapes alone."""
from torch import nn

from .. import functional as M
from ._module import MesaModule


class MesaAdaptiveAvgPool2d(MesaModule, nn.AdaptiveAvgPool2d):
    """``torch.nn.AdaptiveAvgPool2d``; see :func:`mesa_seg.functional.adaptive_avg_pool2d`."""
    kind = 'pool'
    mesa_quantizers = ()

    def forward(self, x):
        if not self.compresses() or x.dim() != 4:
            return super().forward(x)
        return M.adaptive_avg_pool2d(x, self.output_size)
