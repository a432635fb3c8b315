from mesa_seg import ops
from mesa_seg.version import __version__

__all__ = ['__version__', 'ops']
