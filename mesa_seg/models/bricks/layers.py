"""mmcv's own layers that are no torch class: Swish, HSigmoid, Scale, LayerScale, and its MaxPool2d."""
from mmcv.cnn.bricks import wrappers
from mmcv.cnn.bricks.hsigmoid import HSigmoid
from mmcv.cnn.bricks.scale import LayerScale, Scale
from mmcv.cnn.bricks.swish import Swish

from ... import functional as M
from ...nn import MesaMaxPool2d, converts
from ...nn._module import MesaModule, channel_dim

converts(wrappers.MaxPool2d)(MesaMaxPool2d)


@converts(Swish)
class MesaSwish(MesaModule, Swish):
    """``mmcv.cnn.bricks.Swish``, which is SiLU."""
    kind = 'activation'

    def forward(self, x):
        if not self.compresses():
            return super().forward(x)
        return M.activation(x, 'silu', (), self.quantizer, channel_dim(x))


@converts(HSigmoid)
class MesaHSigmoid(MesaModule, HSigmoid):
    """``mmcv.cnn.bricks.HSigmoid``; keeps one bit a value."""
    kind = 'activation'
    mesa_quantizers = ()

    def forward(self, x):
        if not self.compresses():
            return super().forward(x)
        return M.activation((x + self.bias) / self.divisor, 'hardtanh', (self.min_value, self.max_value), None)


@converts(Scale)
class MesaScale(MesaModule, Scale):
    """``mmcv.cnn.bricks.Scale``; see :func:`mesa_seg.functional.scale`."""
    kind = 'activation'

    def forward(self, x):
        if not self.compresses():
            return super().forward(x)
        return M.scale(x, self.scale, self.quantizer, channel_dim(x))


@converts(LayerScale)
class MesaLayerScale(MesaModule, LayerScale):
    """``mmcv.cnn.bricks.LayerScale``; see :func:`mesa_seg.functional.scale`."""
    kind = 'activation'

    @classmethod
    def refusal(cls, module):
        return 'it works in place' if module.inplace else None

    def forward(self, x):
        if not self.compresses():
            return super().forward(x)
        dim = 1 if self.data_format == 'channels_first' else x.dim() - 1
        weight = self.weight.view([-1 if d == dim else 1 for d in range(x.dim())])
        return M.scale(x, weight, self.quantizer, dim)
