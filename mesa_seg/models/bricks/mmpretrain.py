"""Building blocks of mmpretrain, whose ConvNeXt mmseg's configs use. The package need not be installed."""
from ... import functional as M
from ...nn import converts_named
from ...nn._module import MesaModule


@converts_named('mmpretrain.models.utils.norm.LayerNorm2d')
class MesaLayerNorm2d(MesaModule):
    """LayerNorm over the channels of a map; see :func:`mesa_seg.functional.layer_norm`."""
    kind = 'layernorm'

    def forward(self, x, data_format='channel_first'):
        if not self.compresses() or x.dim() != 4:
            return super().forward(x, data_format)
        first = data_format == 'channel_first'
        x = M.layer_norm(x.permute(0, 2, 3, 1) if first else x, self.weight, self.bias, self.eps, self.quantizer)
        return x.permute(0, 3, 1, 2).contiguous() if first else x


@converts_named('mmpretrain.models.utils.norm.GRN')
class MesaGRN(MesaModule):
    """See :func:`mesa_seg.functional.global_response_norm`."""
    kind = 'norm'

    def forward(self, x, data_format='channel_first'):
        if not self.compresses():
            return super().forward(x, data_format)
        channel_dim = 1 if data_format == 'channel_first' else 3
        return M.global_response_norm(x, self.gamma, self.beta, self.eps, self.quantizer, channel_dim)


@converts_named('mmpretrain.models.utils.layer_scale.LayerScale')
class MesaLayerScale(MesaModule):
    """See :func:`mesa_seg.functional.scale`."""
    kind = 'activation'

    @classmethod
    def refusal(cls, module):
        return 'it works in place' if module.inplace else None

    def forward(self, x):
        if not self.compresses():
            return super().forward(x)
        if self.data_format == 'channels_first':
            return M.scale(x, self.weight.view(-1, 1, 1), self.quantizer, x.dim() - 3)
        return M.scale(x, self.weight, self.quantizer)


@converts_named('mmpretrain.models.backbones.convnext.ConvNeXtBlock')
class MesaConvNeXtBlock(MesaModule):
    """ConvNeXt's block (arXiv 2201.03545): the factors of its layer scale, which are no module, keep a saved form, too."""
    kind = 'block'

    def forward(self, x):
        if not self.compresses() or self.with_cp or self.gamma is None:
            return super().forward(x)
        y, last = self.depthwise_conv(x), self.linear_pw_conv
        order = dict(data_format='channel_last' if last else 'channel_first')
        y = self.norm(y.permute(0, 2, 3, 1) if last else y, **order)
        y = self.act(self.pointwise_conv1(y))
        if self.grn is not None:
            y = self.grn(y, **order)
        y = self.pointwise_conv2(y)
        y = M.scale(y.permute(0, 3, 1, 2) if last else y, self.gamma.view(1, -1, 1, 1), self.quantizer, 1)
        return x + self.drop_path(y)
