"""One line in a config that compresses the activations of any model."""
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS


@HOOKS.register_module()
class MesaConversionHook(Hook):
    """Convert the runner's model before it trains, whatever model it is.

    ``custom_hooks = [dict(type='MesaConversionHook')]`` in a config (with ``custom_imports = dict(imports=['mesa_seg'])``) is
    all it takes. The model is converted in place before its weights are initialised and before a checkpoint loads; no
    parameter, buffer of the state dict or name changes, so that optimiser settings and checkpoints stay those of the
    stock model, and a model that is wrapped already (DDP) is converted inside its wrapper.

    Args:
        mesa (dict, optional): see :class:`mesa_seg.saved.Policy`.
        fused_loss (bool): decode heads compute their loss without full-size logits where they can. Default: True.
        leftovers (bool | dict): also quantise large tensors that conversion cannot see; a dict gives the arguments of
            :class:`mesa_seg.saved.leftovers.QuantizeLeftovers`. Default: False.

    Attributes:
        conversion (Conversion | None): what was converted and what was left, once a run has begun.
    """
    priority = 'HIGHEST'

    def __init__(self, mesa=None, fused_loss=True, leftovers=False):
        from ...saved import Policy
        Policy.from_config(mesa)  # an error in the settings is one of the config, and shows at once
        self.settings = dict(mesa=mesa, fused_loss=fused_loss, leftovers=leftovers)
        self.conversion = None

    def before_run(self, runner):
        """Convert the model, once."""
        if self.conversion is not None:
            return
        from ...models.any_model import compress
        model = runner.model
        while is_model_wrapper(model):
            model = model.module
        self.conversion = compress(model, **self.settings)
        runner.logger.info(str(self.conversion))
