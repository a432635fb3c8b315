"""Twins' attention inside windows."""
from functools import partial

import torch
import torch.nn.functional as F
from mmseg.models.backbones.twins import LocallyGroupedSelfAttention

from ... import functional as M
from ...nn import converts
from ...nn._module import MesaModule
from ...saved import attach, derive
from ...saved.quantizer import QUANTIZED_DTYPES


def _windows(qkv, part, heads, side):
    """``[windows, heads, side**2, d]``: q, k or v (``part`` 0, 1 or 2) of ``qkv``, ``[B, H, W, 3 * C]``, zeros as padding."""
    batch, height, width, channels = qkv.shape
    x = F.pad(qkv, (0, 0, 0, -width % side, 0, -height % side))
    x = x.view(batch, x.shape[1] // side, side, x.shape[2] // side, side, 3, heads, channels // 3 // heads)
    return x[..., part, :, :].permute(0, 1, 3, 5, 2, 4, 6).reshape(-1, heads, side**2, channels // 3 // heads)


@converts(LocallyGroupedSelfAttention)
class MesaLocallyGroupedSelfAttention(MesaModule, LocallyGroupedSelfAttention):
    """``LocallyGroupedSelfAttention`` (arXiv 2104.13840); keeps q, k and v of the real tokens, once."""
    kind = 'attention'

    @classmethod
    def refusal(cls, module):
        p = module.attn_drop.p
        return f'dropout {p} among the attention weights' if p else None

    def mesa_groups(self):
        return 3 * self.num_heads

    def forward(self, x, hw_shape):
        """As mmseg's: tokens ``[B, H * W, C]``, ``hw_shape`` is ``(H, W)``."""
        if not self.compresses() or not self.mesa_reuse or x.dtype not in QUANTIZED_DTYPES:
            return super().forward(x, hw_shape)
        batch, length, channels = x.shape
        (height, width), side, heads = hw_shape, self.window_size, self.num_heads
        qkv = self.qkv(x).view(batch, height, width, 3 * channels)
        if height % side and width % side:
            out = self._real_tokens(qkv)
        else:  # mmseg masks nothing then, not even the tokens that pad
            no_bias = qkv.new_zeros(heads, side**2, side**2, dtype=torch.float32)
            out = M.window_attention(qkv, self.qkv.bias, no_bias, heads, side, 0, self.scale, self.quantizer)
        return self.proj_drop(self.proj(out.reshape(batch, length, channels)))

    def _real_tokens(self, qkv):
        """``[B, H, W, C]``: attention in which the tokens that pad have no part."""
        (batch, height, width, channels), side = qkv.shape, self.window_size
        rows, columns = -(-height // side), -(-width // side)
        saved, parts = self.quantizer.keep(qkv, -1), []
        for part in range(3):
            function = partial(_windows, part=part, heads=self.num_heads, side=side)
            x = function(qkv)
            parts.append(attach(x, derive(function, [saved], x.shape)))
        real = F.pad(qkv.new_ones(height, width, dtype=torch.bool), (0, -width % side, 0, -height % side))
        real = real.view(rows, side, columns, side).transpose(1, 2).reshape(-1, 1, 1, side**2).repeat(batch, 1, 1, 1)
        out = M.scaled_dot_product_attention(*parts, real, self.scale, quantizers=(self.quantizer, ) * 3)
        out = out.view(batch, rows, columns, self.num_heads, side, side, -1).permute(0, 1, 4, 2, 5, 3, 6)
        return out.reshape(batch, rows * side, columns * side, channels // 3)[:, :height, :width]
