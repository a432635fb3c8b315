"""mmseg's shifted-window attention over unpartitioned tokens."""
from mmseg.models.backbones.swin import ShiftWindowMSA

from ... import functional as M
from ...nn import converts
from ...nn._module import MesaModule
from ...saved.quantizer import QUANTIZED_DTYPES


@converts(ShiftWindowMSA)
class MesaShiftWindowMSA(MesaModule, ShiftWindowMSA):
    """``ShiftWindowMSA`` in one operator between the two Linears.

    Padding, cyclic shift, partition and mask are index arithmetic; q, k and v of the real tokens are kept, once.
    """
    kind = 'attention'

    @classmethod
    def refusal(cls, module):
        p = module.w_msa.attn_drop.p
        return f'dropout {p} among the attention weights' if p else None

    def mesa_groups(self):
        return 3 * self.w_msa.num_heads

    def forward(self, query, hw_shape):
        msa = self.w_msa
        if not self.compresses() or not self.mesa_reuse or query.dtype not in QUANTIZED_DTYPES:
            return super().forward(query, hw_shape)
        batch, length, channels = query.shape
        height, width = hw_shape
        if length != height * width:
            raise ValueError(f'query has {length} tokens, hw_shape {tuple(hw_shape)} means {height * width}')
        qkv = msa.qkv(query).view(batch, height, width, 3 * channels)
        tokens = self.window_size**2
        bias = msa.relative_position_bias_table[msa.relative_position_index.view(-1)]
        bias = bias.view(tokens, tokens, -1).permute(2, 0, 1).contiguous()
        x = M.window_attention(qkv, msa.qkv.bias, bias, msa.num_heads, self.window_size, self.shift_size, msa.scale,
                               self.quantizer)
        return self.drop(msa.proj_drop(msa.proj(x.view(batch, length, channels))))
