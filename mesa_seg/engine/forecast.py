"""What a model would keep for backward, without running it: only shapes are traced, in seconds and without memory."""
import copy
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ..saved import seed
from .memory import KeptForBackward
from .trial import Trial, build_model, generated_batch


def forecast_kept(model, crop, batch, amp=None, device='cpu', prepare=None):
    """Trace one forward pass and loss with tensors that have shapes and no values.

    On the CPU the bytes are those of a run. Torch's random generators are left as they were.

    Args:
        model (dict): ``model`` of a config.
        crop (int | tuple[int, int]): side of the images, or height and width, in pixels.
        batch (int): number of images.
        amp (torch.dtype | None): of autocast around the forward pass.
        device (str): device that the shapes are traced for.
        prepare (callable | None): called with the segmentor just built, to change it in place.

    Returns:
        KeptReport

    Raises:
        Exception: whatever the model raises where it looks at values, which a trace does not have.
    """
    with torch.random.fork_rng(devices=[]):
        module = build_model(model, crop)
        if prepare is not None:
            prepare(module)
        data = module.data_preprocessor(generated_batch(module, crop, batch), True)
        mode = FakeTensorMode(shape_env=ShapeEnv())

        def fake(tensor):
            traced = mode.from_tensor(tensor, static_shapes=True)
            if traced.device == torch.device(device):
                return traced
            with mode:
                moved = traced.detach().to(device).requires_grad_(traced.requires_grad)
            return torch.nn.Parameter(moved, traced.requires_grad) if isinstance(tensor, torch.nn.Parameter) else moved

        for part in module.modules():
            for tensors in (part._parameters, part._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        tensors[name] = fake(tensor)
        samples = copy.deepcopy(data['data_samples'])
        for sample in samples:
            sample.gt_sem_seg.data = fake(sample.gt_sem_seg.data)
        # a seed is a value, and any will do
        with mode, mock.patch.object(seed, '_draw', lambda generator=None: 0), KeptForBackward(module) as kept:
            with torch.autocast(torch.device(device).type, amp, enabled=amp is not None):
                losses = module(fake(data['inputs']), samples, mode='loss')
            # the sum that parse_losses makes, which would look at values
            terms = [term for name, value in losses.items() if 'loss' in name
                     for term in (value if isinstance(value, (list, tuple)) else [value])]
            loss = sum(term.mean() for term in terms)
        with mode:
            return kept.report(loss)


def measure_kept(model, crop, batch, amp=None, prepare=None, classes=None, run=False):
    """What a model keeps for backward: traced where that is possible, else found by one forward pass.

    Args:
        model (dict): ``model`` of a config.
        crop (int | tuple[int, int]): side of the images, or height and width, in pixels.
        batch (int): number of images.
        amp (torch.dtype | None): of autocast around the forward pass.
        prepare (callable | None): called with the segmentor just built, to change it in place.
        classes (int | None): see :func:`generated_batch`; a trace sees no classes.
        run (bool): run in any case.

    Returns:
        KeptReport
    """
    if not run:
        try:
            return forecast_kept(model, crop, batch, amp, prepare=prepare)
        except (RuntimeError, NotImplementedError):
            pass  # it looks at values, which a trace does not have
    trial = Trial(model, crop, batch, amp=amp, prepare=prepare, classes=classes)
    with KeptForBackward(trial.module) as kept:
        outputs = trial.forward()
    return kept.report(outputs)
