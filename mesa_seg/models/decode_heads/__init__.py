from .fcn_head import MesaFCNHead
from .fpn_head import MesaFPNHead
from .uper_head import MesaUPerHead

__all__ = ['MesaFCNHead', 'MesaFPNHead', 'MesaUPerHead']
