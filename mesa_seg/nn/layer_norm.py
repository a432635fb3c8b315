"""LayerNorm that keeps its normalised output."""
from torch import nn

from .. import functional as M
from ._module import MesaModule


class MesaLayerNorm(MesaModule, nn.LayerNorm):
    """``torch.nn.LayerNorm`` over the last dimension; see :func:`mesa_seg.functional.layer_norm`."""
    kind = 'layernorm'

    @classmethod
    def refusal(cls, module):
        if len(module.normalized_shape) != 1:
            return f'normalises over {len(module.normalized_shape)} dimensions; only the last one alone is supported'
        return None

    def forward(self, x):
        if not self.compresses():
            return super().forward(x)
        return M.layer_norm(x, self.weight, self.bias, self.eps, self.quantizer)
