from .swin import MesaSwinTransformer

__all__ = ['MesaSwinTransformer']
