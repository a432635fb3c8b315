"""BatchNorm that keeps its normalised output."""
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .. import functional as M
from ._module import MesaModule


class _MesaBatchNorm(MesaModule):
    kind = 'bn'

    def mesa_process_group(self):
        return None

    def mesa_forward(self, x, relu):
        """Training-mode BatchNorm, with ReLU behind it where asked."""
        self._check_input_dim(x)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked) if self.num_batches_tracked is not None else 0.0
        return M.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, momentum, self.eps,
                            self.quantizer, relu=relu, process_group=self.mesa_process_group())

    def forward(self, x):
        if not self.compresses():
            return super().forward(x)
        return self.mesa_forward(x, False)


class MesaBatchNorm2d(_MesaBatchNorm, nn.BatchNorm2d):
    """``torch.nn.BatchNorm2d``; see :func:`mesa_seg.functional.batch_norm`."""


class MesaSyncBatchNorm(_MesaBatchNorm, _BatchNorm):
    """``torch.nn.SyncBatchNorm``, on the CPU (gloo), too; plain BatchNorm in one process.

    Not a subclass of torch's: mmengine replaces those in one process, and DDP refuses them on the CPU.
    """
    process_group = None

    def __init__(self, *args, process_group=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.process_group = process_group

    _check_non_zero_input_channels = nn.SyncBatchNorm._check_non_zero_input_channels

    def mesa_process_group(self):
        if not (dist.is_available() and dist.is_initialized()):
            return None
        return self.process_group or dist.group.WORLD

    def forward(self, x):
        if self.training and not self.compresses() and self.mesa_process_group() is not None:
            return nn.SyncBatchNorm.forward(self, x)
        return super().forward(x)

    def _check_input_dim(self, x):
        if x.dim() < 2:
            raise ValueError(f'SyncBatchNorm: input of {x.dim()} dimensions: expected at least 2')
