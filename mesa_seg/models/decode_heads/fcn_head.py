"""The fully convolutional head (arXiv 1411.4038) whose activations are kept compressed."""
from mmseg.models.decode_heads import FCNHead
from mmseg.registry import MODELS

from ..component import MesaComponent
from .fused_loss import FusedLossMixin


@MODELS.register_module()
class MesaFCNHead(MesaComponent, FusedLossMixin, FCNHead):
    """mmseg's ``FCNHead``: the same arguments and checkpoints, and ``mesa=dict(...)``."""
