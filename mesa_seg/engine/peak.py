"""Highest memory use of a stretch of code above what was there when it began, from the allocator's own record."""
import gc

import torch
from torch.profiler import ProfilerActivity, profile

_MARK = 'mesa_seg::mark'


class PeakMemory:
    """Measure the code inside the ``with`` statement.

    On CUDA the caching allocator's counters are read. On the CPU torch's profiler records each allocation and release
    of torch's CPU allocator, and their running sum is followed; what was allocated before counts neither when it is
    used nor when it is released. The tensors that oneDNN reorders into come from that allocator too; what a BLAS
    library asks of the system by itself does not.

    Args:
        device (str | torch.device): ``'cpu'`` or a CUDA device.

    Attributes:
        peak_bytes (int): highest use, in bytes, above the start.
        marked_bytes (int | None): use when :meth:`mark` was called, above the start.
        end_bytes (int): use at the end, above the start.
    """

    def __init__(self, device='cpu'):
        self.device = torch.device(device)
        self.peak_bytes = self.end_bytes = 0
        self.marked_bytes = None

    def __enter__(self):
        gc.collect()
        if self.device.type == 'cuda':
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self._start = torch.cuda.memory_allocated(self.device)
        else:
            self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            self._profile.__enter__()
        return self

    def mark(self, *_):
        """Note the use at this point. Takes and ignores any arguments, so that it can serve as a callback."""
        if self.device.type == 'cuda':
            self.marked_bytes = torch.cuda.memory_allocated(self.device) - self._start
        else:
            with torch.profiler.record_function(_MARK):
                pass

    def __exit__(self, *error):
        if self.device.type == 'cuda':
            torch.cuda.synchronize(self.device)
            self.peak_bytes = torch.cuda.max_memory_allocated(self.device) - self._start
            self.end_bytes = torch.cuda.memory_allocated(self.device) - self._start
            return
        self._profile.__exit__(*error)
        events = self._profile.profiler.kineto_results.events()
        events = [event for event in events if event.name() in ('[memory]', _MARK)]
        used = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            if event.name() == _MARK:
                self.marked_bytes = used
            else:
                used += event.nbytes()
                self.peak_bytes = max(self.peak_bytes, used)
        self.end_bytes = used
        del self._profile
