"""The block of our PVT whose checkpointing keeps a compressed input."""
from functools import partial

from ... import functional as M
from ...nn import converts
from ...nn._module import MesaModule
from ..backbones.pvt import Block


@converts(Block)
class MesaPVTBlock(MesaModule, Block):
    """``Block``; with ``with_cp=True`` it keeps its input's saved form alone."""
    kind = 'block'

    def forward(self, x, hw):
        if not (self.with_cp and self.compresses()):
            return super().forward(x, hw)
        return M.checkpoint(partial(self._forward, hw=hw), x, self.quantizer, tuple(self.parameters()))
