"""Scaled-dot-product attention with an additive bias as a module."""
import torch.nn.functional as F
from torch import nn

from .. import functional as M
from ._module import MesaModule


class ScaledDotProductAttention(nn.Module):
    """``softmax(q k^T * scale + bias) v`` by torch's own kernels, as a module, so that conversion finds it.

    Args:
        scale (float, optional): of the scores, ``d ** -0.5`` by default.
        dropout (float): probability of a zero among the attention weights, in training.
    """

    def __init__(self, scale=None, dropout=0.0):
        super().__init__()
        self.scale = scale
        self.dropout = dropout

    def forward(self, q, k, v, bias=None):
        """``[B, heads, N, d]``, twice ``[B, heads, M, d]``, a bias broadcastable to ``[B, heads, N, M]``."""
        return F.scaled_dot_product_attention(q, k, v, bias, self.dropout if self.training else 0.0, scale=self.scale)


class MesaScaledDotProductAttention(MesaModule, ScaledDotProductAttention):
    """See :func:`mesa_seg.functional.scaled_dot_product_attention`."""
    kind = 'attention'
    mesa_quantizers = ('quantizer_q', 'quantizer_k', 'quantizer_v')

    @classmethod
    def refusal(cls, module):
        return f'dropout {module.dropout} among the attention weights' if module.dropout else None

    def forward(self, q, k, v, bias=None):
        if not self.compresses():
            return super().forward(q, k, v, bias)
        for name in self.mesa_quantizers:
            getattr(self, name).groups = q.shape[1]
        quantizers = tuple(getattr(self, name) for name in self.mesa_quantizers)
        return M.scaled_dot_product_attention(q, k, v, bias, self.scale, quantizers=quantizers)
