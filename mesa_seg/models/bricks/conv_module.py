"""mmcv's ConvModule with BatchNorm and ReLU in one pass, and over a concatenation that is never built."""
from mmcv.cnn import ConvModule

from ... import functional as M
from ...functional.conv import resolve_padding
from ...nn import MesaConv2d, MesaReLU, converts
from ...nn._module import MesaModule
from ...nn.batch_norm import _MesaBatchNorm


@converts(ConvModule)
class MesaConvModule(MesaModule, ConvModule):
    """``mmcv.cnn.ConvModule``: where its parts are a convolution, BatchNorm and ReLU in this order, the last two are one
    operator; any other combination runs part by part."""
    kind = 'block'
    mesa_quantizers = ()

    def _norm_then_relu(self):
        return (self.order == ('conv', 'norm', 'act') and self.with_norm and self.with_activation and self.mesa_reuse
                and isinstance(self.norm, _MesaBatchNorm) and self.norm.compresses() and isinstance(self.activate, MesaReLU))

    def forward(self, x, activate=True, norm=True):
        if not (activate and norm and self.compresses() and not self.with_explicit_padding and self._norm_then_relu()):
            return super().forward(x, activate, norm)
        return self.norm.mesa_forward(self.conv(x), relu=True)

    def takes_parts(self):
        """bool: whether :meth:`forward_parts` can run now."""
        return (self.compresses() and not self.with_explicit_padding and isinstance(self.conv, MesaConv2d)
                and self.conv.compresses() and self.conv.groups == 1 and self._norm_then_relu())

    def forward_parts(self, xs, size, quantizers, align_corners):
        """The module over ``cat([resize(x, size) for x in xs], 1)``; see :func:`mesa_seg.functional.concat_convolution`."""
        conv = self.conv
        x = M.concat_convolution(xs, size, conv.weight, conv.bias, quantizers, align_corners=align_corners,
                                 stride=conv.stride, padding=resolve_padding(conv.padding, conv.kernel_size, conv.dilation),
                                 dilation=conv.dilation)
        return self.norm.mesa_forward(x, relu=True)
