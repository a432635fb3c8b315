"""Activation modules besides GELU and ReLU that keep saved forms or bits."""
from torch import nn

from .. import functional as M
from ._module import MesaModule, channel_dim
from .convert import converts


class _MesaActivation(MesaModule):
    """Takes the name of its function and, from the module's attributes, its arguments."""
    kind = 'activation'
    function = None
    arguments = ()

    def forward(self, x):
        if not self.compresses():
            return super().forward(x)
        arguments = tuple(getattr(self, name) for name in self.arguments)
        quantizer = getattr(self, 'quantizer', None)
        return M.activation(x, self.function, arguments, quantizer, channel_dim(x), getattr(self, 'inplace', False))


class _MesaMask(_MesaActivation):
    mesa_quantizers = ()


@converts(nn.SiLU)
class MesaSiLU(_MesaActivation, nn.SiLU):
    """``torch.nn.SiLU``; see :func:`mesa_seg.functional.activation`."""
    function = 'silu'


@converts(nn.Hardswish)
class MesaHardswish(_MesaActivation, nn.Hardswish):
    """``torch.nn.Hardswish``; see :func:`mesa_seg.functional.activation`."""
    function = 'hardswish'


@converts(nn.Mish)
class MesaMish(_MesaActivation, nn.Mish):
    """``torch.nn.Mish``; see :func:`mesa_seg.functional.activation`."""
    function = 'mish'


@converts(nn.Softplus)
class MesaSoftplus(_MesaActivation, nn.Softplus):
    """``torch.nn.Softplus``; see :func:`mesa_seg.functional.activation`."""
    function = 'softplus'
    arguments = ('beta', 'threshold')


@converts(nn.ELU)
class MesaELU(_MesaActivation, nn.ELU):
    """``torch.nn.ELU``; see :func:`mesa_seg.functional.activation`."""
    function = 'elu'
    arguments = ('alpha', )


@converts(nn.Sigmoid)
class MesaSigmoid(_MesaActivation, nn.Sigmoid):
    """``torch.nn.Sigmoid``; see :func:`mesa_seg.functional.activation`."""
    function = 'sigmoid'


@converts(nn.Tanh)
class MesaTanh(_MesaActivation, nn.Tanh):
    """``torch.nn.Tanh``; see :func:`mesa_seg.functional.activation`."""
    function = 'tanh'


@converts(nn.LeakyReLU)
class MesaLeakyReLU(_MesaMask, nn.LeakyReLU):
    """``torch.nn.LeakyReLU``; see :func:`mesa_seg.functional.activation`."""
    function = 'leaky_relu'
    arguments = ('negative_slope', )


@converts(nn.Hardtanh)
class MesaHardtanh(_MesaMask, nn.Hardtanh):
    """``torch.nn.Hardtanh``; see :func:`mesa_seg.functional.activation`."""
    function = 'hardtanh'
    arguments = ('min_val', 'max_val')


@converts(nn.ReLU6)
class MesaReLU6(_MesaMask, nn.ReLU6):
    """``torch.nn.ReLU6``; see :func:`mesa_seg.functional.activation`."""
    function = 'hardtanh'
    arguments = ('min_val', 'max_val')


@converts(nn.Hardsigmoid)
class MesaHardsigmoid(_MesaMask, nn.Hardsigmoid):
    """``torch.nn.Hardsigmoid``; see :func:`mesa_seg.functional.activation`."""
    function = 'hardsigmoid'


@converts(nn.PReLU)
class MesaPReLU(MesaModule, nn.PReLU):
    """``torch.nn.PReLU``; see :func:`mesa_seg.functional.prelu`."""
    kind = 'activation'

    def forward(self, x):
        if not self.compresses():
            return super().forward(x)
        return M.prelu(x, self.weight, self.quantizer)
