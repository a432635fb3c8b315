"""What the modules of this folder share."""
import torch

from ..saved import Policy, Quantizer


class MesaModule:
    """Mixed in front of a torch module: the same arguments, parameters and results, and a quantizer for what is kept.

    Attributes:
        kind (str): the tag by which rules pick it.
        mesa_quantizers (tuple[str]): names of its quantizers.
    """
    kind = None
    mesa_quantizers = ('quantizer', )

    def __init__(self, *args, mesa=None, **kwargs):
        super().__init__(*args, **kwargs)
        policy = Policy.from_config(mesa)
        config = policy.layer(self.kind, 0, '')
        if config is not None:
            self.init_mesa(config, policy.reuse)

    @classmethod
    def refusal(cls, module):
        """str | None: why ``module``, of the class this one stands in for, cannot be converted."""
        return None

    def mesa_groups(self):
        """int | None: number of groups of a quantizer, where it is not the channels divided by ``group_size``."""
        return None

    def init_mesa(self, config, reuse=True):
        """Make the quantizers. The module compresses from now on.

        Args:
            config (QuantizerConfig): settings.
            reuse (bool): see :class:`mesa_seg.saved.Quantizer`.
        """
        for name in self.mesa_quantizers:
            setattr(self, name, Quantizer(config, self.mesa_groups(), reuse))
        self.mesa_reuse = reuse

    def compresses(self):
        """bool: whether a forward now keeps saved forms: converted, in training, and recorded by autograd."""
        return self.training and torch.is_grad_enabled() and hasattr(self, 'mesa_reuse')


def channel_dim(x):
    """int: the dimension that holds the channels: 1 for maps ``[B, C, H, W]``, the last for tokens."""
    return 1 if x.dim() == 4 else -1
