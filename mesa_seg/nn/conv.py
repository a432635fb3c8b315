"""Convolutions that keep the saved form of their input."""
from torch import nn

from .. import functional as M
from ..functional.conv import resolve_padding
from ._module import MesaModule


class _MesaConv(MesaModule):
    kind = 'conv'

    @classmethod
    def refusal(cls, module):
        if module.padding_mode != 'zeros':
            return f'padding_mode {module.padding_mode!r}'
        if resolve_padding(module.padding, module.kernel_size, module.dilation) is None:
            return "padding='same' that differs on the two sides"
        return None

    def forward(self, x):
        if not self.compresses() or x.dim() != self.weight.dim():
            return super().forward(x)
        padding = resolve_padding(self.padding, self.kernel_size, self.dilation)
        return M.convolution(x, self.weight, self.bias, self.quantizer, stride=self.stride, padding=padding,
                             dilation=self.dilation, groups=self.groups)


class MesaConv1d(_MesaConv, nn.Conv1d):
    """``torch.nn.Conv1d``; see :func:`mesa_seg.functional.convolution`."""


class MesaConv2d(_MesaConv, nn.Conv2d):
    """``torch.nn.Conv2d``; see :func:`mesa_seg.functional.convolution`."""


class MesaConvTranspose2d(MesaModule, nn.ConvTranspose2d):
    """``torch.nn.ConvTranspose2d``; see :func:`mesa_seg.functional.convolution`."""
    kind = 'conv'

    def forward(self, x, output_size=None):
        if not self.compresses() or x.dim() != 4:
            return super().forward(x, output_size)
        extra = self._output_padding(x, output_size, self.stride, self.padding, self.kernel_size, 2, self.dilation)
        return M.convolution(x, self.weight, self.bias, self.quantizer, stride=self.stride, padding=self.padding,
                             dilation=self.dilation, groups=self.groups, transposed=True, output_padding=extra)
