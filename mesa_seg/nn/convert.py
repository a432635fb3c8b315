"""Converting any model in place: the modules that Mesa-Seg knows change class, all else stays."""
from dataclasses import dataclass, field

from torch import nn

from ..saved import Policy
from ._module import MesaModule
from .attention import MesaScaledDotProductAttention, ScaledDotProductAttention
from .batch_norm import MesaBatchNorm2d, MesaSyncBatchNorm
from .conv import MesaConv1d, MesaConv2d, MesaConvTranspose2d
from .dropout import MesaDropout, MesaDropout2d
from .gelu import MesaGELU
from .layer_norm import MesaLayerNorm
from .linear import MesaLinear
from .matmul import MatMul, MesaMatMul
from .pool import MesaAdaptiveAvgPool2d
from .relu import MesaReLU
from .root import MesaRoot, root_class
from .softmax import MesaSoftmax

_CLASSES = {
    nn.Linear: MesaLinear,
    nn.LayerNorm: MesaLayerNorm,
    nn.GELU: MesaGELU,
    nn.ReLU: MesaReLU,
    nn.Softmax: MesaSoftmax,
    nn.Conv1d: MesaConv1d,
    nn.Conv2d: MesaConv2d,
    nn.ConvTranspose2d: MesaConvTranspose2d,
    nn.BatchNorm2d: MesaBatchNorm2d,
    nn.SyncBatchNorm: MesaSyncBatchNorm,
    nn.Dropout: MesaDropout,
    nn.Dropout2d: MesaDropout2d,
    nn.AdaptiveAvgPool2d: MesaAdaptiveAvgPool2d,
    MatMul: MesaMatMul,
    ScaledDotProductAttention: MesaScaledDotProductAttention,
}

_MIXINS = {}  # by the full name of a class of a package that may not be there


def converts(*classes):
    """Class decorator: the decorated :class:`MesaModule` stands in for modules of exactly these classes."""

    def register(mesa_class):
        for cls in classes:
            _CLASSES[cls] = mesa_class
        return mesa_class

    return register


def converts_named(*names):
    """Class decorator for classes of packages that may not be installed: found by name when a model has one.

    Args:
        *names (str): full names of the classes, such as ``'mmpretrain.models.utils.norm.GRN'``.
    """

    def register(mixin):
        for name in names:
            _MIXINS[name] = mixin
        return mixin

    return register


def mesa_class_of(cls):
    """type | None: the class that stands in for modules of exactly the class ``cls``."""
    mixin = _MIXINS.get(f'{cls.__module__}.{cls.__qualname__}')
    if mixin is not None and cls not in _CLASSES:

        def __reduce_ex__(self, protocol):
            return _new_named, (cls, ), self.__dict__.copy()

        _CLASSES[cls] = type(f'Mesa{cls.__name__}', (mixin, cls), {
            '__module__': mixin.__module__, '__doc__': mixin.__doc__, '__reduce_ex__': __reduce_ex__})
    return _CLASSES.get(cls)


def _new_named(cls):
    made = mesa_class_of(cls)
    return made.__new__(made)


@dataclass
class Conversion:
    """What :func:`convert` did, by module name.

    Attributes:
        converted: the kind of each converted module.
        left: the reason for each module that holds activations and was left as it is.
    """
    converted: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self):
        kinds = {}
        for kind in self.converted.values():
            kinds[kind] = kinds.get(kind, 0) + 1
        lines = [f'Mesa: converted {len(self.converted)} modules'
                 + (f' ({", ".join(f"{n} {k}" for k, n in sorted(kinds.items()))})' if kinds else '')]
        lines += [f'  left as it is: {name}: {reason}' for name, reason in self.left.items()]
        return '\n'.join(lines)


# Layers of torch that keep shapes alone, and containers.
_KEEP_NOTHING = (nn.Identity, nn.Flatten, nn.Unflatten, nn.Unfold, nn.Fold, nn.Upsample, nn.PixelShuffle, nn.ZeroPad2d,
                 nn.Embedding, nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.ParameterList, nn.ParameterDict)


def _keeps_activations(module):
    """Whether it is one of torch's own layers, and none that keeps nothing."""
    return type(module).__module__.startswith('torch.nn.modules') and not any(module.children()) \
        and not isinstance(module, _KEEP_NOTHING)


def convert(model, mesa=None):
    """Swap the modules of a model in place for ones that keep saved forms.

    A module changes its class and gains quantizers. Its weights, buffers, settings, hooks, dtype, device, mode and the
    names of its parameters stay, and so does every entry of the state dict. A module of a class that is not known exactly,
    or that is used in a way that is not supported, is left as it is.

    Args:
        model (nn.Module): converted in place, with all it contains.
        mesa (dict | Policy, optional): see :class:`mesa_seg.saved.Policy`.

    Returns:
        Conversion: what was converted, and what was left and why. With ``enable=False`` nothing is.

    Raises:
        ValueError: for an unknown key or an impossible value in ``mesa``.
    """
    policy = Policy.from_config(mesa)
    done = Conversion()
    if not policy.enable:
        return done
    counts = {}
    for name, module in list(model.named_modules()):
        if isinstance(module, MesaModule):
            continue
        mesa_class = mesa_class_of(type(module))
        if mesa_class is None:
            known = next((c.__name__ for c in _CLASSES if isinstance(module, c)), None)
            if known:
                done.left[name] = f'{type(module).__name__} is a class of its own over {known}'
            elif _keeps_activations(module):
                done.left[name] = f'{type(module).__name__} is not one that Mesa-Seg knows'
            continue
        kind = mesa_class.kind
        index = counts.get(kind, 0)
        counts[kind] = index + 1
        config = policy.layer(kind, index, name)
        reason = 'switched off by a rule' if config is None else mesa_class.refusal(module)
        if reason is None and 'forward' in vars(module):
            reason = 'its forward was replaced'
        if reason is not None:
            done.left[name] = reason
            continue
        module.__class__ = mesa_class
        module.init_mesa(config, policy.reuse)
        done.converted[name] = kind
    if not isinstance(model, MesaModule):
        if not isinstance(model, MesaRoot):
            model.__class__ = root_class(type(model))
        model.mesa_enabled = True
    return done
