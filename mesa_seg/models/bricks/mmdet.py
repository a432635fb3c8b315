"""Losses of mmdet, which Mask2Former computes at each decoder layer. The package need not be installed."""
from ... import functional as M
from ...nn import converts_named
from ...nn._module import MesaModule


@converts_named('mmdet.models.losses.dice_loss.DiceLoss', 'mmdet.models.losses.cross_entropy_loss.CrossEntropyLoss')
class MesaRecomputedLoss(MesaModule):
    """A loss that keeps its predictions and labels alone, which losses of the same predictions share."""
    kind = 'block'
    mesa_quantizers = ()

    def forward(self, pred, target, weight=None, *args, **kwargs):
        stock = super().forward
        if not self.compresses():
            return stock(pred, target, weight, *args, **kwargs)
        return M.recompute(lambda *tensors: stock(*tensors, *args, **kwargs), (pred, target, weight))
