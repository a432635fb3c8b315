"""mmcv's ConvModule with BatchNorm and ReLU in one pass."""
from mmcv.cnn import ConvModule

from ...nn import MesaReLU, converts
from ...nn._module import MesaModule
from ...nn.batch_norm import _MesaBatchNorm


@converts(ConvModule)
class MesaConvModule(MesaModule, ConvModule):
    """``mmcv.cnn.ConvModule``: where its parts are a convolution, BatchNorm and ReLU in this order, the last two are one
    operator; any other combination runs part by part."""
    kind = 'block'
    mesa_quantizers = ()

    def forward(self, x, activate=True, norm=True):
        fuses = (activate and norm and self.compresses() and self.order == ('conv', 'norm', 'act')
                 and self.with_norm and self.with_activation and not self.with_explicit_padding
                 and isinstance(self.norm, _MesaBatchNorm) and self.norm.compresses()
                 and isinstance(self.activate, MesaReLU) and self.mesa_reuse)
        if not fuses:
            return super().forward(x, activate, norm)
        return self.norm.mesa_forward(self.conv(x), relu=True)
