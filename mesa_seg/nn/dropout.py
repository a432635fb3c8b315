"""Dropout that keeps one bit a value."""
from torch import nn

from .. import functional as M
from ._module import MesaModule


class MesaDropout(MesaModule, nn.Dropout):
    """``torch.nn.Dropout``; see :func:`mesa_seg.functional.dropout`."""
    kind = 'dropout'
    mesa_quantizers = ()

    def forward(self, x):
        if not self.compresses():
            return super().forward(x)
        return M.dropout(x, self.p, self.inplace)


class MesaDropout2d(MesaModule, nn.Dropout2d):
    """``torch.nn.Dropout2d``; see :func:`mesa_seg.functional.channel_dropout`."""
    kind = 'dropout'
    mesa_quantizers = ()

    def forward(self, x):
        if not self.compresses():
            return super().forward(x)
        return M.channel_dropout(x, self.p, self.inplace)
