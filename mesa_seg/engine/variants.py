"""Other ways to train the same model, to compare with."""
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from .trial import stock_twin


@dataclass(frozen=True)
class Variant:
    """A way to train.

    Attributes:
        summary (str): what it is, in a few words.
        make (callable): given the ``model`` dicts of the configs at hand, returns the ``model`` to build and a function
            that changes it in place once built (or None).
    """
    summary: str
    make: Callable


def _stock(models):
    return stock_twin(models[0]), None


def _stock_checkpointed(models):
    model = stock_twin(models[0])
    model['backbone']['with_cp'] = True
    return model, checkpoint_heads


def checkpoint_heads(segmentor):
    """Have every ConvModule of the neck and the heads recompute its forward pass in backward.

    BatchNorm inside then updates its running statistics twice a step: to measure with, not to train with.
    """
    from mmcv.cnn import ConvModule
    for name in ('neck', 'decode_head', 'auxiliary_head'):
        part = getattr(segmentor, name, None)
        for module in part.modules() if isinstance(part, nn.Module) else ():
            if isinstance(module, ConvModule):
                module.forward = partial(checkpoint, module.forward, use_reentrant=False)


def without_dropping(segmentor):
    """Switch off dropout and drop path, so that two models can be compared value by value."""
    for module in segmentor.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif hasattr(module, 'drop_prob'):
            module.drop_prob = 0.0


def _mesa_published(models):
    model = stock_twin(models[0])
    backbone = model['backbone']
    backbone.update(type='Mesa' + backbone['type'], mesa=dict(bits=8, granularity='head', reuse=False))
    return model, _publish_attention


def _publish_attention(segmentor):
    from mmseg.models.backbones.swin import WindowMSA

    from ..saved import QuantizerConfig
    from .published import PublishedWindowMSA
    for module in list(segmentor.backbone.modules()):
        if isinstance(module, WindowMSA):
            PublishedWindowMSA.take_over(module, QuantizerConfig(bits=8, granularity='head'))


VARIANTS = {
    'stock': Variant('the stock twin', _stock),
    'stock_checkpointed': Variant('the stock twin with with_cp=True and every ConvModule of the heads checkpointed',
                                  _stock_checkpointed),
    'mesa_published': Variant('Mesa as published: 8 bits in the backbone of the stock twin, where each op keeps its own '
                              'copy, attention its operands, scores and probabilities', _mesa_published),
}
