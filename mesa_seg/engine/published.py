"""Window attention as the published Mesa keeps it (arXiv 2111.11124), to compare with.

Each product keeps both of its operands, and the softmax its input and its output, all in codes of their own: three maps
of N x N probabilities or scores a head. Its code is at https://github.com/ziplab/Mesa.
"""
import torch
import torch.nn.functional as F
from mmseg.models.backbones.swin import WindowMSA
from torch.autograd.function import once_differentiable

from ..nn import MesaMatMul
from ..nn._module import MesaModule
from ..saved import Quantizer


class _Softmax(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, quantizer_x, quantizer_y):
        y = F.softmax(x, -1)
        kept_x, kept_y = quantizer_x(x, 1), quantizer_y(y, 1)
        ctx.rebuild, ctx.count = kept_y.rebuild, len(kept_x.tensors)
        ctx.save_for_backward(*kept_x.tensors, *kept_y.tensors)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        y = ctx.rebuild(*ctx.saved_tensors[ctx.count:]).to(grad.dtype)
        return torch.ops.aten._softmax_backward_data(grad, y, -1, grad.dtype), None, None


class PublishedSoftmax(MesaModule, torch.nn.Softmax):
    """Softmax over the last dimension that keeps its input and its output."""
    kind = 'softmax'
    mesa_quantizers = ('quantizer_x', 'quantizer_y')

    def forward(self, x):
        return _Softmax.apply(x, self.quantizer_x, self.quantizer_y) if self.compresses() else super().forward(x)


class PublishedWindowMSA(WindowMSA):
    """``WindowMSA`` whose two products are modules."""

    @classmethod
    def take_over(cls, module, config):
        """Change the class of a ``WindowMSA`` in place.

        Args:
            module (WindowMSA): attention within windows.
            config (QuantizerConfig): settings of what it keeps.
        """
        module.__class__ = cls
        softmax = PublishedSoftmax(dim=-1)
        for name, part in (('scores', MesaMatMul()), ('softmax', softmax), ('mix', MesaMatMul())):
            part.init_mesa(config, reuse=False)
            for quantizer in part.mesa_quantizers:
                setattr(part, quantizer, Quantizer(config, module.num_heads, reuse=False))
            setattr(module, name, part)
        module.train(module.training)

    def forward(self, x, mask=None):
        """As ``WindowMSA.forward``: ``x`` [windows * B, N, C], ``mask`` [windows, N, N] or None."""
        windows, tokens, channels = x.shape
        qkv = self.qkv(x).view(windows, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        scores = self.scores(query * self.scale, key.transpose(-2, -1))
        bias = self.relative_position_bias_table[self.relative_position_index]
        scores = scores + bias.permute(2, 0, 1)
        if mask is not None:
            shape = scores.shape
            scores = (scores.view(-1, len(mask), *shape[1:]) + mask[:, None]).view(shape)
        mixed = self.mix(self.attn_drop(self.softmax(scores)), value)
        return self.proj_drop(self.proj(mixed.transpose(1, 2).reshape(windows, tokens, channels)))
