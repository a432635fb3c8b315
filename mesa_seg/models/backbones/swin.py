"""Swin Transformer (arXiv 2103.14030) whose activations are kept compressed."""
from mmseg.models.backbones import SwinTransformer
from mmseg.registry import MODELS

from ..component import MesaComponent


@MODELS.register_module(name=['MesaSwinTransformer', 'MesaSwin'])
class MesaSwinTransformer(MesaComponent, SwinTransformer):
    """mmseg's ``SwinTransformer``: the same arguments and checkpoints, and ``mesa=dict(...)``."""
