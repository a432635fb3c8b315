"""torch's MultiheadAttention that keeps saved forms of its inputs and of q, k and v, and no probabilities."""
import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from .. import functional as M
from ._module import MesaModule
from .convert import converts
from .linear import MesaLinear


def _same(a, b):
    """Whether two tensors are one, or the same view of one as autograd sees it (mmcv transposes each input anew)."""
    if a is b:
        return True
    if a.shape != b.shape or a.stride() != b.stride() or a.storage_offset() != b.storage_offset() \
            or a.untyped_storage()._cdata != b.untyped_storage()._cdata or a.dtype != b.dtype:
        return False
    if a.grad_fn is None or b.grad_fn is None:
        return a.grad_fn is b.grad_fn and not a.requires_grad and not b.requires_grad
    return type(a.grad_fn) is type(b.grad_fn) and a.grad_fn.next_functions == b.grad_fn.next_functions


def _merge_masks(attn_mask, key_padding_mask, batch, heads, dtype):
    """One mask for ``scaled_dot_product_attention``, broadcastable to ``[B, heads, L, S]``, from torch's two, or ``None``.

    A bool result says who takes part, a floating-point one is added to the scores.
    """
    if attn_mask is not None and attn_mask.dim() == 3:
        attn_mask = attn_mask.view(batch, heads, *attn_mask.shape[1:])
    if key_padding_mask is not None:
        key_padding_mask = key_padding_mask[:, None, None]
    masks = [mask for mask in (attn_mask, key_padding_mask) if mask is not None]
    if not masks:
        return None
    if all(mask.dtype == torch.bool for mask in masks):
        return ~(masks[0] | masks[-1])
    merged = 0
    for mask in masks:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float('-inf'))
        merged = merged + mask.to(dtype)
    return merged


@converts(nn.MultiheadAttention)
class MesaMultiheadAttention(MesaModule, nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention``: projections as :func:`mesa_seg.functional.linear`, attention as
    :func:`mesa_seg.functional.scaled_dot_product_attention`.

    Called with ``need_weights=True``, as is torch's default, it is the stock module, which keeps the probabilities: its
    caller might use them. Callers that are known not to (mmcv's wrappers) set ``mesa_drops_weights`` and get ``None`` for
    them.
    """
    kind = 'attention'
    mesa_quantizers = ('quantizer_query', 'quantizer_key', 'quantizer_value', 'quantizer_q', 'quantizer_k', 'quantizer_v',
                       'quantizer_out')
    mesa_drops_weights = False

    @classmethod
    def refusal(cls, module):
        if module.dropout:
            return f'dropout {module.dropout} among the attention weights'
        if module.bias_k is not None or module.add_zero_attn:
            return 'it adds keys of its own'
        return None

    def init_mesa(self, config, reuse=True):
        """See :meth:`MesaModule.init_mesa`; q, k and v have a group a head."""
        super().init_mesa(config, reuse)
        for name in ('quantizer_q', 'quantizer_k', 'quantizer_v'):
            getattr(self, name).groups = self.num_heads

    def _project(self, query, key, value):
        """q, k and v; one Linear for those that read the same tensor, which is then kept once."""
        channels = self.embed_dim
        bias = self.in_proj_bias
        if not self._qkv_same_embed_dim:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            biases = (None, ) * 3 if bias is None else bias.chunk(3)
            quantizers = (self.quantizer_query, self.quantizer_key, self.quantizer_value)
            return tuple(M.linear(*parts) for parts in zip((query, key, value), weights, biases, quantizers, strict=True))

        def part(x, first, last, quantizer):
            rows = slice(first * channels, last * channels)
            whole = last - first == 3
            weight = self.in_proj_weight if whole else self.in_proj_weight[rows]
            return M.linear(x, weight, bias if bias is None or whole else bias[rows], quantizer).chunk(last - first, -1)

        if _same(query, key) and _same(key, value):
            return part(query, 0, 3, self.quantizer_query)
        if _same(key, value):
            return (*part(query, 0, 1, self.quantizer_query), *part(key, 1, 3, self.quantizer_key))
        if _same(query, key):
            return (*part(query, 0, 2, self.quantizer_query), *part(value, 2, 3, self.quantizer_value))
        return (*part(query, 0, 1, self.quantizer_query), *part(key, 1, 2, self.quantizer_key),
                *part(value, 2, 3, self.quantizer_value))

    def forward(self, query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None,
                average_attn_weights=True, is_causal=False):
        """As ``torch.nn.MultiheadAttention``."""
        if not self.compresses() or query.dim() != 3 or (need_weights and not self.mesa_drops_weights):
            return super().forward(query, key, value, key_padding_mask=key_padding_mask, need_weights=need_weights,
                                   attn_mask=attn_mask, average_attn_weights=average_attn_weights, is_causal=is_causal)
        if is_causal and attn_mask is None:
            raise ValueError('is_causal=True: expected attn_mask, too, as torch does')
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)) for x in self._project(query, key, value))
        order = (0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3)
        q, k, v = (x.permute(order) for x in (q, k, v))
        mask = _merge_masks(attn_mask, key_padding_mask, q.shape[0], self.num_heads, q.dtype)
        out = M.scaled_dot_product_attention(q, k, v, mask,
                                             quantizers=(self.quantizer_q, self.quantizer_k, self.quantizer_v))
        out = out.permute((0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)).flatten(2)
        return M.linear(out, self.out_proj.weight, self.out_proj.bias, self.quantizer_out), None


converts(NonDynamicallyQuantizableLinear)(MesaLinear)  # its output projection, whose weights it uses itself
