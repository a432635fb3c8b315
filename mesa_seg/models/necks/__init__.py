from .fpn import MesaFPN

__all__ = ['MesaFPN']
