"""mmseg's Swin block whose checkpointing keeps a compressed input."""
from functools import partial

from mmseg.models.backbones.swin import SwinBlock

from ... import functional as M
from ...nn import converts
from ...nn._module import MesaModule


@converts(SwinBlock)
class MesaSwinBlock(MesaModule, SwinBlock):
    """``SwinBlock``; with ``with_cp=True`` it keeps its input's saved form alone."""
    kind = 'block'

    def forward(self, x, hw_shape):
        if not (self.with_cp and self.compresses()):
            return super().forward(x, hw_shape)
        return M.checkpoint(partial(self._without_checkpoint, hw_shape=hw_shape), x, self.quantizer,
                            tuple(self.parameters()))

    def _without_checkpoint(self, x, hw_shape):
        self.with_cp = False
        try:
            return super().forward(x, hw_shape)
        finally:
            self.with_cp = True
