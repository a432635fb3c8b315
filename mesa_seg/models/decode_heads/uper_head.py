"""UPerNet's head (arXiv 1807.10221) whose activations are kept compressed."""
from mmseg.models.decode_heads import UPerHead
from mmseg.models.utils import resize
from mmseg.registry import MODELS
from torch import nn

from ...saved import Quantizer
from ..bricks import MesaConvModule
from ..component import MesaComponent
from .fused_loss import FusedLossMixin


@MODELS.register_module()
class MesaUPerHead(MesaComponent, FusedLossMixin, UPerHead):
    """mmseg's ``UPerHead``: the same arguments and checkpoints, and ``mesa=dict(...)``.

    The convolution over all levels takes them one at a time; the maps at full size are never concatenated.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        conv = getattr(self.fpn_bottleneck, 'conv', None)
        quantizer = getattr(conv, 'quantizer', None)
        self.level_quantizers = nn.ModuleList(
            Quantizer(quantizer.config, reuse=quantizer.reuse) for _ in self.in_channels) if quantizer else None

    def _forward_feature(self, inputs):
        if not (isinstance(self.fpn_bottleneck, MesaConvModule) and self.fpn_bottleneck.takes_parts()):
            return super()._forward_feature(inputs)
        inputs = self._transform_inputs(inputs)
        laterals = [conv(x) for conv, x in zip(self.lateral_convs, inputs[:-1], strict=True)]
        laterals.append(self.psp_forward(inputs))
        for i in range(len(laterals) - 1, 0, -1):
            laterals[i - 1] = laterals[i - 1] + resize(laterals[i], size=laterals[i - 1].shape[2:], mode='bilinear',
                                                       align_corners=self.align_corners)
        for i, conv in enumerate(self.fpn_convs):
            laterals[i] = conv(laterals[i])
        return self.fpn_bottleneck.forward_parts(laterals, laterals[0].shape[2:], self.level_quantizers, self.align_corners)
