"""UPerNet's head (arXiv 1807.10221) whose activations are kept compressed."""
from mmseg.models.decode_heads import UPerHead
from mmseg.registry import MODELS

from ..component import MesaComponent
from .fused_loss import FusedLossMixin


@MODELS.register_module()
class MesaUPerHead(MesaComponent, FusedLossMixin, UPerHead):
    """mmseg's ``UPerHead``: the same arguments and checkpoints, and ``mesa=dict(...)``."""
