"""The BatchNorm that mmengine's runner puts in place of SyncBatchNorm in a single process."""
from mmengine.model.utils import _BatchNormXd

from ...nn import converts
from ...nn.batch_norm import _MesaBatchNorm


@converts(_BatchNormXd)
class MesaBatchNormXd(_MesaBatchNorm, _BatchNormXd):
    """``mmengine.model.utils._BatchNormXd``; see :func:`mesa_seg.functional.batch_norm`."""
