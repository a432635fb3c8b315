"""The wrappers of mmcv and mmseg around torch's MultiheadAttention: none of them uses the attention weights."""
from mmcv.cnn.bricks.transformer import MultiheadAttention
from mmseg.models.backbones.mit import EfficientMultiheadAttention
from mmseg.models.backbones.twins import GlobalSubsampledAttention

from ...nn import converts
from ...nn._module import MesaModule


class _DropsWeights(MesaModule):
    """Its forward is the class's own; its ``attn`` need not give weights."""
    kind = 'block'
    mesa_quantizers = ()

    def init_mesa(self, config, reuse=True):
        """See :meth:`MesaModule.init_mesa`."""
        super().init_mesa(config, reuse)
        self.attn.mesa_drops_weights = True


@converts(MultiheadAttention)
class MesaMMCVMultiheadAttention(_DropsWeights, MultiheadAttention):
    """``mmcv.cnn.bricks.transformer.MultiheadAttention``, of ViT, Mask2Former and others."""


@converts(EfficientMultiheadAttention)
class MesaEfficientMultiheadAttention(_DropsWeights, EfficientMultiheadAttention):
    """SegFormer's attention (arXiv 2105.15203)."""


@converts(GlobalSubsampledAttention)
class MesaGlobalSubsampledAttention(_DropsWeights, GlobalSubsampledAttention):
    """Twins' global attention (arXiv 2104.13840)."""
