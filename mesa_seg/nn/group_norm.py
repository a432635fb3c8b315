"""GroupNorm and InstanceNorm that keep their normalised output."""
from torch import nn

from .. import functional as M
from ._module import MesaModule
from .convert import converts


@converts(nn.GroupNorm)
class MesaGroupNorm(MesaModule, nn.GroupNorm):
    """``torch.nn.GroupNorm``; see :func:`mesa_seg.functional.group_norm`."""
    kind = 'norm'

    def forward(self, x):
        if not self.compresses():
            return super().forward(x)
        return M.group_norm(x, self.num_groups, self.weight, self.bias, self.eps, self.quantizer)


class _MesaInstanceNorm(MesaModule):
    kind = 'norm'

    @classmethod
    def refusal(cls, module):
        return 'it tracks running statistics' if module.track_running_stats else None

    def forward(self, x):
        # One value a channel is an error of torch's to raise, an input without batch dimension torch's to handle.
        if not self.compresses() or x.dim() == self._get_no_batch_dim() or x[0, 0].numel() < 2:
            return super().forward(x)
        self._check_input_dim(x)
        return M.group_norm(x, x.shape[1], self.weight, self.bias, self.eps, self.quantizer)


@converts(nn.InstanceNorm1d)
class MesaInstanceNorm1d(_MesaInstanceNorm, nn.InstanceNorm1d):
    """``torch.nn.InstanceNorm1d``; see :func:`mesa_seg.functional.group_norm`."""


@converts(nn.InstanceNorm2d)
class MesaInstanceNorm2d(_MesaInstanceNorm, nn.InstanceNorm2d):
    """``torch.nn.InstanceNorm2d``; see :func:`mesa_seg.functional.group_norm`."""
