"""A short account of a training run, for a terminal."""
import sys
import time

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class ProgressHook(Hook):
    """Print one line every few iterations, on stdout: loss, pixel accuracy, seconds an iteration, time left.

    Args:
        interval (int): iterations between lines; each line is the mean over them.

    Attributes:
        losses (list[float]): the loss of each iteration.
        metrics (dict[str, float]): the latest validation's.
    """
    priority = 'VERY_LOW'

    def __init__(self, interval=5):
        if interval < 1:
            raise ValueError(f'interval: expected at least 1, got {interval}')
        self.interval = interval
        self.losses, self.accuracies, self.metrics = [], [], {}
        self._last = None

    def before_train_epoch(self, runner):
        self._last = time.perf_counter()

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        for values, key in ((self.losses, 'loss'), (self.accuracies, 'decode.acc_seg')):
            values.append(float(torch.as_tensor(outputs.get(key, float('nan'))).detach().mean()))
        done = runner.iter + 1
        if not is_main_process() or done % self.interval and done != runner.max_iters:
            return
        count = (done - 1) % self.interval + 1
        now = time.perf_counter()
        seconds, self._last = (now - self._last) / count, now
        loss, accuracy = (sum(values[-count:]) / count for values in (self.losses, self.accuracies))
        print(f'  iteration {done:>4} of {runner.max_iters}   loss {loss:6.3f}   pixel accuracy {accuracy:5.1f} %   '
              f'{seconds:5.2f} s each, {seconds * (runner.max_iters - done):4.0f} s left')
        sys.stdout.flush()

    def after_val_epoch(self, runner, metrics=None):
        self.metrics = metrics or {}
