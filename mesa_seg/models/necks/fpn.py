"""The feature pyramid (arXiv 1612.03144) whose activations are kept compressed."""
from mmseg.models.necks import FPN
from mmseg.registry import MODELS

from ...nn import MesaConv2d
from ...nn.rebuilt_conv import MesaRebuiltConv2d
from ..component import MesaComponent


@MODELS.register_module()
class MesaFPN(MesaComponent, FPN):
    """mmseg's ``FPN``: the same arguments and checkpoints, and ``mesa=dict(...)``.

    The sums of laterals that the 3 x 3 convolutions read are not kept: the 1 x 1 lateral convolutions are repeated on the
    backbone's maps, which are kept for the laterals' own weights.
    """

    def __init__(self, *args, mesa=None, **kwargs):
        super().__init__(*args, mesa=mesa, **kwargs)
        for lateral in self.lateral_convs:
            if type(lateral.conv) is MesaConv2d:
                lateral.conv.__class__ = MesaRebuiltConv2d
