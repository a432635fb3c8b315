"""Max pooling that keeps one byte an output value."""
from torch import nn
from torch.nn.modules.utils import _pair

from .. import functional as M
from ._module import MesaModule
from .convert import converts


@converts(nn.MaxPool2d)
class MesaMaxPool2d(MesaModule, nn.MaxPool2d):
    """``torch.nn.MaxPool2d``; see :func:`mesa_seg.functional.max_pool2d`."""
    kind = 'pool'
    mesa_quantizers = ()

    @classmethod
    def refusal(cls, module):
        if module.return_indices:
            return 'it returns indices'
        height, width = _pair(module.kernel_size)
        return f'windows of {height} x {width} values' if height * width > 256 else None

    def forward(self, x):
        if not self.compresses() or x.dim() != 4:
            return super().forward(x)
        kernel, stride, padding, dilation = map(_pair, (self.kernel_size, self.stride, self.padding, self.dilation))
        return M.max_pool2d(x, kernel, stride, padding, dilation, self.ceil_mode)
