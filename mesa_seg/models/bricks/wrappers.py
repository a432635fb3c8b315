"""OpenMMLab's own names of torch layers, which only add support for old torch and other backends."""
from mmcv.cnn.bricks import wrappers
from mmcv.cnn.bricks.drop import Dropout
from mmengine.utils.dl_utils.parrots_wrapper import SyncBatchNorm

from ...nn import MesaConv2d, MesaConvTranspose2d, MesaDropout, MesaLinear, MesaSyncBatchNorm, converts

for _mmcv_class, _mesa_class in ((wrappers.Linear, MesaLinear), (wrappers.Conv2d, MesaConv2d),
                                 (wrappers.ConvTranspose2d, MesaConvTranspose2d), (Dropout, MesaDropout),
                                 (SyncBatchNorm, MesaSyncBatchNorm)):
    converts(_mmcv_class)(_mesa_class)
