"""bfloat16 training without loss scaling, on any device."""
from contextlib import contextmanager

import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS


@OPTIM_WRAPPERS.register_module()
class AmpBFloat16OptimWrapper(OptimWrapper):
    """An ``OptimWrapper`` whose forward runs under bfloat16 autocast.

    mmengine's ``AmpOptimWrapper`` needs a GPU for its loss scaler; bfloat16 has float32's exponent and needs none.
    Parameters, gradients and optimiser state stay float32.

    Args:
        cache_enabled (bool): keep the cast weights for the length of the forward pass, as autocast does by default.
        **kwargs: see ``mmengine.optim.OptimWrapper`` (``optimizer``, ``accumulative_counts``, ``clip_grad``).
    """

    def __init__(self, cache_enabled=True, **kwargs):
        super().__init__(**kwargs)
        self.cache_enabled = cache_enabled

    @contextmanager
    def optim_context(self, model):
        """Autocast, and no gradient exchange between processes while gradients accumulate."""
        device = next(model.parameters()).device.type
        with super().optim_context(model), torch.autocast(device, torch.bfloat16, cache_enabled=self.cache_enabled):
            yield


def use_amp(cfg):
    """Make a config train in mixed precision: mmengine's own on a GPU, :class:`AmpBFloat16OptimWrapper` without one.

    Args:
        cfg (Config): changed in place; ``optim_wrapper.type`` is ``OptimWrapper``, or already a mixed-precision one.

    Raises:
        ValueError: another wrapper, which is not ours to replace.
    """
    wrapper = cfg.optim_wrapper
    kind = wrapper.get('type', 'OptimWrapper')
    if kind not in ('OptimWrapper', 'AmpOptimWrapper', 'AmpBFloat16OptimWrapper'):
        raise ValueError(f'--amp works with optim_wrapper.type OptimWrapper, the config has {kind}')
    if kind == 'AmpBFloat16OptimWrapper':
        return
    if torch.cuda.is_available():
        wrapper.type = 'AmpOptimWrapper'
        wrapper.setdefault('loss_scale', 'dynamic')
        return
    dtype = wrapper.pop('dtype', 'bfloat16')
    if dtype not in ('bfloat16', torch.bfloat16):
        raise ValueError(f'without a GPU mixed precision is bfloat16; the config has optim_wrapper.dtype={dtype!r}')
    wrapper.pop('loss_scale', None)
    wrapper.type = 'AmpBFloat16OptimWrapper'
