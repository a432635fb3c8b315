"""Report at the first training iteration what is kept for backward."""
import traceback

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS

from ..forecast import forecast_kept
from ..memory import MIB, KeptForBackward
from ..text_table import text_table
from ..trial import stock_twin


@HOOKS.register_module()
class MemoryReportHook(Hook):
    """Print and log, at the first training iteration, the bytes kept for backward, by part and by kind of layer.

    The iteration itself is not changed. What the stock model would keep is traced from shapes, in seconds and without
    memory of its own. Only the main process reports.

    Args:
        stock (bool): also report what the config's model would keep without Mesa. Default: True.
        layers (bool): also list every layer. Default: False.

    Attributes:
        kept (KeptReport | None): what was kept, once the first iteration is over.
        stock_kept (KeptReport | None): what the stock model would keep.
    """
    priority = 'VERY_LOW'

    def __init__(self, stock=True, layers=False):
        self.stock, self.layers = stock, layers
        self.kept = self.stock_kept = None
        self._watch = None

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        """Watch the forward pass that follows, up to the update of the parameters."""
        if self.kept is not None or self._watch is not None or not is_main_process():
            return
        wrapper = runner.optim_wrapper
        if not hasattr(wrapper, 'update_params') or 'update_params' in vars(wrapper):
            runner.logger.warning('MemoryReportHook: reports nothing, as it cannot follow an optimiser wrapper of type '
                                  f'{type(wrapper).__name__}')
            self._watch = False
            return
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        images = data_batch['inputs'] if isinstance(data_batch, dict) else None
        self._watch = KeptForBackward(model)

        def update_params(loss, *args, **kwargs):
            del wrapper.update_params
            watch, self._watch = self._watch, False
            watch.__exit__(None, None, None)
            self.kept = watch.report(loss)
            self._report(runner, images)
            return wrapper.update_params(loss, *args, **kwargs)

        wrapper.update_params = update_params
        self._watch.__enter__()

    def _report(self, runner, images):
        if self.stock:
            try:
                self.stock_kept = self._forecast(runner, images)
            except Exception as error:  # a report must not end a training
                runner.logger.warning('MemoryReportHook: cannot tell what stock would keep '
                                      f'({type(error).__name__}: {error})')
                runner.logger.debug(traceback.format_exc())
        runner.logger.info('Kept for backward in the first iteration (each storage once, parameters and buffers left '
                           'out):\n' + comparison(self.kept, self.stock_kept))
        if self.layers:
            rows = [[name or '(model)', f'{size / MIB:.2f}'] for name, size in self.kept.by_layer().items()]
            runner.logger.info('By layer:\n' + text_table(['layer', 'MiB'], rows))

    @staticmethod
    def _forecast(runner, images):
        model = runner.cfg.get('model')
        if not isinstance(model, dict):
            raise TypeError('the runner was given a model, not a config of one')
        if isinstance(images, torch.Tensor):
            batch, shape = len(images), images.shape[-2:]
        else:
            batch, shape = len(images), [max(image.shape[axis] for image in images) for axis in (-2, -1)]
        size = (model.get('data_preprocessor') or {}).get('size')
        amp = None
        if runner.optim_wrapper.__class__.__name__.startswith('Amp'):
            amp = getattr(runner.optim_wrapper, 'cast_dtype', None) or (
                torch.bfloat16 if next(runner.model.parameters()).device.type == 'cpu' else torch.float16)
        return forecast_kept(stock_twin(model), tuple(size or shape), batch, amp)


def comparison(kept, stock=None):
    """A table of bytes kept by part, by loss, and by kind of layer.

    Args:
        kept (KeptReport): of the model at hand.
        stock (KeptReport | None): of its stock twin, to stand beside it with the ratio of the two.

    Returns:
        str
    """
    def row(name, of):
        here = of(kept)
        if stock is None:
            return [name, f'{here / MIB:.1f}']
        there = of(stock)
        return [name, f'{here / MIB:.1f}', f'{there / MIB:.1f}', f'{here / there:.1%}' if there else '-']

    def rows(method, indent=''):
        names = dict.fromkeys([*(getattr(stock, method)() if stock else ()), *getattr(kept, method)()])
        return [row(indent + name, lambda report, name=name: getattr(report, method)().get(name, 0)) for name in names]

    header = ['', 'MiB'] if stock is None else ['', 'this model, MiB', 'stock, MiB', 'ratio']
    return text_table(header, [
        *rows('by_part'), None,
        row('sum', lambda report: report.total), row('outside the loss', lambda report: report.outside_loss), None,
        *rows('by_kind')])
