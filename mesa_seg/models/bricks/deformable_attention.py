"""mmcv's deformable attention, of Mask2Former's pixel decoder and others."""
from functools import partial

import torch
from mmengine.utils.dl_utils import mmcv_full_available

from ... import functional as M
from ...nn import converts_named
from ...nn._module import MesaModule
from ...saved import attach, derive, lookup


def _attend(value, locations, weights, shapes, starts, step):
    """mmcv's operator where it is compiled and takes these tensors, else its composition of PyTorch's own."""
    from mmcv.ops import multi_scale_deform_attn as mmcv
    if value.is_cuda and value.dtype != torch.bfloat16 and mmcv_full_available():
        return mmcv.MultiScaleDeformableAttnFunction.apply(value, shapes, starts, locations, weights, step)
    return mmcv.multi_scale_deformable_attn_pytorch(value, shapes, locations, weights)


@converts_named('mmcv.ops.multi_scale_deform_attn.MultiScaleDeformableAttention')
class MesaMultiScaleDeformableAttention(MesaModule):
    """``mmcv.ops.MultiScaleDeformableAttention``; see :func:`mesa_seg.functional.deformable_attention`."""
    kind = 'attention'
    mesa_quantizers = ('quantizer_value', 'quantizer_weights')

    def mesa_groups(self):
        return self.num_heads

    def forward(self, query, key=None, value=None, identity=None, query_pos=None, key_padding_mask=None,
                reference_points=None, spatial_shapes=None, level_start_index=None, **kwargs):
        """As mmcv's."""
        if not self.compresses():
            return super().forward(query, key, value, identity, query_pos, key_padding_mask, reference_points,
                                   spatial_shapes, level_start_index, **kwargs)
        value = query if value is None else value
        identity = kwargs.get('residual', query) if identity is None else identity
        query = query if query_pos is None else query + query_pos
        if not self.batch_first:
            query, value = query.permute(1, 0, 2), value.permute(1, 0, 2)
        places = (*query.shape[:2], self.num_heads, self.num_levels, self.num_points)
        weights = self.attention_weights(query).view(*places[:3], -1)
        flat = M.softmax(weights, -1, self.quantizer_weights, 2)
        weights, saved = flat.view(places), lookup(flat)
        if saved is not None:
            attach(weights, derive(partial(torch.reshape, shape=places), [saved], weights.shape))
        locations = self._locations(self.sampling_offsets(query).view(*places, 2), reference_points, spatial_shapes)
        torch._assert_async(spatial_shapes.prod(1).sum() == value.shape[1],  # which does not wait for the device
                            f'spatial_shapes: expected maps of {value.shape[1]} places in all, as value has')
        value = self.value_proj(value)
        if key_padding_mask is not None:
            value = value.masked_fill(key_padding_mask[..., None], 0.0)
        attend = partial(_attend, shapes=spatial_shapes, starts=level_start_index, step=self.im2col_step)
        out = M.deformable_attention(value.unflatten(-1, (self.num_heads, -1)), locations, weights, attend,
                                     self.quantizer_value, self.quantizer_weights)
        out = self.output_proj(out)
        return self.dropout(out if self.batch_first else out.permute(1, 0, 2)) + identity

    def _locations(self, offsets, reference, shapes):
        """``[B, N, heads, levels, points, 2]`` from offsets of that shape and reference points or boxes."""
        centre = reference[:, :, None, :, None, :2]
        if reference.shape[-1] == 2:
            return centre + offsets / shapes.flip(-1)[:, None]
        if reference.shape[-1] != 4:
            raise ValueError(f'reference_points of shape {tuple(reference.shape)}: expected 2 (points) or 4 (boxes) last')
        return centre + offsets / self.num_points * reference[:, :, None, :, None, 2:] * 0.5
