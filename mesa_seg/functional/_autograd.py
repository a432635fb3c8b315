"""What the autograd functions of this folder share."""
import torch


def runs_eagerly(function):
    """Leave ``function`` as it is where ``torch.compile`` compiles the code around it.

    Saved forms are attributes of tensors, seeds and running ranges change outside of the graph: none of it can be traced.
    """
    return torch.compiler.disable(function, reason='mesa_seg keeps saved forms beside the graph')


def grad_needed(*tensors):
    """bool: whether autograd records an operation on these tensors (``None`` among them is passed over)."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _autocast_is_on(device):
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def autocast(x, *others):
    """Cast to the dtype that autocast gives matrix products and convolutions on ``x``'s device, as torch's own do."""
    tensors = (x, *others)
    device = x.device.type
    if not _autocast_is_on(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(t.to(dtype) if t is not None and t.is_floating_point() and t.dtype != torch.float64 else t
                 for t in tensors)


def autocast_float32(*tensors):
    """Cast to float32 where autocast is on: the operations that torch's autocast keeps in full precision."""
    if not _autocast_is_on(tensors[0].device.type):
        return tensors
    return tuple(t.float() if t is not None and t.is_floating_point() and t.dtype != torch.float64 else t
                 for t in tensors)


class autocast_state:
    """Autocast as it is now, to be entered again in a backward.

    Args:
        device (str): type of device, such as ``'cuda'``; the CPU's is noted, too.
    """

    def __init__(self, device):
        self.states = {d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d))
                       for d in {'cpu', device} if torch.amp.is_autocast_available(d)}

    def __enter__(self):
        self.contexts = [torch.autocast(device, dtype, enabled) for device, (enabled, dtype) in self.states.items()]
        for context in self.contexts:
            context.__enter__()

    def __exit__(self, *error):
        for context in reversed(self.contexts):
            context.__exit__(*error)
