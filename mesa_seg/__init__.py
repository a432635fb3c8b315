"""Mesa-Seg: segmentation transformers that train in a fraction of their memory.

Importing it registers its backbones, heads, losses and hooks with mmseg.
"""
from . import (
    models,  # noqa: F401
    ops,
)
from .engine import hooks  # noqa: F401
from .nn import convert
from .version import __version__

__all__ = ['__version__', 'convert', 'ops']
