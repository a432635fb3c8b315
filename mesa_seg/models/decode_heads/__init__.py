from .fcn_head import MesaFCNHead
from .uper_head import MesaUPerHead

__all__ = ['MesaFCNHead', 'MesaUPerHead']
