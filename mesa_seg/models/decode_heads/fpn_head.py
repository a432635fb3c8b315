"""The head of Semantic FPN (arXiv 1901.02446) whose activations are kept compressed."""
from mmseg.models.decode_heads import FPNHead
from mmseg.registry import MODELS

from ..component import MesaComponent
from .fused_loss import FusedLossMixin


@MODELS.register_module()
class MesaFPNHead(FusedLossMixin, MesaComponent, FPNHead):
    """mmseg's ``FPNHead``: the same arguments and checkpoints, and ``mesa=dict(...)``; its loss needs no full-size logits."""
