"""What the parts of the check share: where to run, the time that is left, and what was found."""
import time
import traceback

import torch


class Context:
    """
    Args:
        device (str): where the operators under test run: ``'cuda'``; ``'cpu'`` only to try the script itself.
        ops: namespace of the operators there, ``torch.ops.mesa_seg`` on CUDA.
        seconds (float): time for everything.

    Attributes:
        problems (list[str]): what is wrong, one sentence each.
        skipped (list[str]): what was not done, and why.
        results (dict): what goes into the JSON file.
    """

    def __init__(self, device='cuda', ops=None, seconds=480.0, progress=print):
        self.device, self.seconds, self.progress = torch.device(device), seconds, progress
        self.ops = torch.ops.mesa_seg if ops is None else ops
        self.begin = time.monotonic()
        self.problems, self.skipped, self.results = [], [], {}

    @property
    def left(self):
        """float: seconds left."""
        return self.seconds - (time.monotonic() - self.begin)

    def wrong(self, text):
        self.problems.append(text)
        self.progress(f'  WRONG: {text}')

    def skip(self, text):
        self.skipped.append(text)
        self.progress(f'  not done: {text}')

    def attempt(self, name, call, *args):
        """``call(*args)``, with an exception taken as a problem; its result, or None."""
        try:
            return call(*args)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, the other checks go on
            last = traceback.extract_tb(error.__traceback__)[-1]
            first = (str(error) or type(error).__name__).strip().splitlines()[0]
            self.wrong(f'{name}: {type(error).__name__}: {first} ({last.filename.rsplit("/", 1)[-1]}:{last.lineno})')
            return None

    def put(self, value):
        """Tensors of a nest of lists to the device, keeping their layout."""
        if isinstance(value, torch.Tensor):
            if self.device.type == 'cpu':
                return value.clone(memory_format=torch.preserve_format)
            whole = value.as_strided((value.untyped_storage().nbytes() // value.element_size(),), (1,), 0)
            return whole.to(self.device).as_strided(value.shape, value.stride(), value.storage_offset())
        return [self.put(item) for item in value] if isinstance(value, list) else value

    def call(self, operator, args):
        """The operator on the device: a tuple of tensors there."""
        out = getattr(self.ops, operator)(*args)
        return out if isinstance(out, tuple) else () if out is None else (out,)

    def synchronize(self):
        if self.device.type == 'cuda':
            torch.cuda.synchronize(self.device)
