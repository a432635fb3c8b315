"""One training step of a config on generated input: what benchmarks and memory reports run.

No checkpoint is downloaded, no data set is read and one process is enough, so any config of mmseg can be tried.
"""
import contextlib
import copy
import io
import logging
from functools import partial

import torch
from torch import nn


def _edit(node, edit):
    """Apply ``edit(dict)`` to every dict in a nest of plain dicts and lists, outermost first."""
    if isinstance(node, dict):
        edit(node)
        for value in node.values():
            _edit(value, edit)
    elif isinstance(node, (list, tuple)):
        for value in node:
            _edit(value, edit)


def _register():
    """Have mmseg's components and ours in the registry, whatever the config's ``custom_imports``."""
    from mmseg.utils import register_all_modules

    import mesa_seg  # noqa: F401
    register_all_modules()


def stock_twin(model):
    """The same model without Mesa: each Mesa class gives way to the class that it stands for.

    Args:
        model (dict): ``model`` of a config.

    Returns:
        dict: a new ``model``; types ``MesaX`` become ``X``, and every ``mesa`` setting is gone.
    """
    _register()
    from mmseg.registry import MODELS
    twin = _plain(model)

    def edit(node):
        node.pop('mesa', None)
        name = node.get('type')
        cls = MODELS.get(name) if isinstance(name, str) and 'Mesa' in name else name
        if isinstance(cls, type) and cls.__name__.startswith('Mesa') and cls.__module__.startswith('mesa_seg'):
            node['type'] = cls.__name__.removeprefix('Mesa')

    _edit(twin, edit)
    return twin


def override_mesa(model, **settings):
    """A copy of ``model`` whose Mesa components take ``settings`` on top of their own.

    Args:
        model (dict): ``model`` of a config.
        **settings: keys of ``mesa`` and their values, such as ``bits=4, granularity='block', block_size=64``.

    Returns:
        dict: a new ``model``; the same where nothing in it has a ``mesa`` setting.
    """
    model = _plain(model)

    def edit(node):
        if isinstance(node.get('mesa'), dict):
            node['mesa'].update(settings)

    _edit(model, edit)
    return model


def conversion_by_hook(config, **settings):
    """What the config's ``MesaConversionHook`` does to a model before training, as no hook runs in a trial.

    Args:
        config (Config): may have ``custom_hooks``.
        **settings: keys of ``mesa`` and their values, on top of the hook's own.

    Returns:
        callable | None: changes a model in place and returns the conversion; None where the config has no such hook.
    """
    for hook in config.get('custom_hooks') or ():
        if isinstance(hook, dict) and hook.get('type') == 'MesaConversionHook':
            _register()
            from ..models.any_model import compress
            arguments = _plain(hook)
            arguments = {key: arguments[key] for key in ('fused_loss', 'leftovers') if key in arguments}
            return partial(compress, mesa=dict(_plain(hook.get('mesa') or {}), **settings), **arguments)
    return None


def _plain(model):
    """A deep copy in plain dicts and lists (``ConfigDict`` turns missing attributes into errors of its own)."""
    if isinstance(model, dict):
        return {key: _plain(value) for key, value in model.items()}
    if isinstance(model, list):
        return [_plain(value) for value in model]
    if isinstance(model, tuple):
        return tuple(_plain(value) for value in model)
    return copy.copy(model)


def _height_width(crop):
    sides = (crop, crop) if isinstance(crop, int) else tuple(crop)
    if len(sides) != 2 or min(sides) < 1:
        raise ValueError(f'crop: expected a side length or (height, width) in pixels, got {crop!r}')
    return sides


def build_model(model, crop, seed=0):
    """Build a segmentor for one process, with random weights.

    Args:
        model (dict): ``model`` of a config.
        crop (int | tuple[int, int]): side of the training images, or height and width, in pixels.
        seed (int): of torch's generator; the same for two configs of one architecture gives the same weights.

    Returns:
        nn.Module: in training mode, on the CPU. SyncBN is built as BN, and checkpoints named by ``init_cfg`` or
        ``pretrained`` are not loaded.
    """
    _register()
    from mmengine.config import ConfigDict
    from mmseg.registry import MODELS
    model = _plain(model)

    def edit(node):
        if node.get('type') in ('SyncBN', 'MMSyncBN'):
            node['type'] = 'BN'
        if isinstance(node.get('init_cfg'), dict) and node['init_cfg'].get('type') == 'Pretrained':
            node['init_cfg'] = None
        if node.get('pretrained') is not None:
            node['pretrained'] = None

    _edit(model, edit)
    if isinstance(model.get('data_preprocessor'), dict):
        model['data_preprocessor'].update(size=_height_width(crop), size_divisor=None)
    torch.manual_seed(seed)
    logging.disable(logging.WARNING)  # mmengine logs two lines for each weight, and prints
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            module = MODELS.build(ConfigDict(model))  # a runner gives attributes, too, which some heads read
            module._dump_init_info = lambda: None  # into the log file of a run that is under way
            module.init_weights()
            del module._dump_init_info
    finally:
        logging.disable(logging.NOTSET)
    return module.train()


def generated_batch(model, crop, batch, seed=0, classes=None):
    """Images and label maps of noise, as the data loader would hand them over.

    Args:
        model (nn.Module): a segmentor; its decode head gives the number of classes.
        crop (int | tuple[int, int]): side of the images, or height and width, in pixels.
        batch (int): number of images.
        seed (int): of a generator of its own.
        classes (int | None): how many different classes an image shows at most, the same for all; all of the model's by
            default. Cross-entropy does not care; heads that make a mask of each class do.

    Returns:
        dict: ``inputs`` (list of uint8 [3, height, width]) and ``data_samples``; one label in 16 is 255 (ignored).
    """
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample
    if classes is not None and classes < 1:
        raise ValueError(f'classes: expected 1 or more, or None for all, got {classes!r}')
    head = model.decode_head[-1] if isinstance(model.decode_head, nn.ModuleList) else model.decode_head
    height, width = _height_width(crop)
    generator = torch.Generator().manual_seed(seed)
    inputs, samples = [], []
    for _ in range(batch):
        inputs.append(torch.randint(0, 256, (3, height, width), generator=generator, dtype=torch.uint8))
        # labels in squares of 8 pixels, as neighbouring pixels of real label maps agree
        squares = -(-height // 8), -(-width // 8)
        label = torch.randint(0, min(classes or head.num_classes, head.num_classes), squares, generator=generator)
        label[torch.rand(squares, generator=generator) < 1 / 16] = 255
        label = label.repeat_interleave(8, 0).repeat_interleave(8, 1)[:height, :width]
        sample = SegDataSample(gt_sem_seg=PixelData(data=label[None].contiguous()))
        sample.set_metainfo(dict.fromkeys(('img_shape', 'ori_shape', 'pad_shape'), (height, width)))
        samples.append(sample)
    return dict(inputs=inputs, data_samples=samples)


class Trial:
    """A model, one batch of generated input and an optimiser: everything a training step needs.

    Args:
        model (dict): ``model`` of a config.
        crop (int | tuple[int, int]): side of the images, or height and width, in pixels.
        batch (int): images a step.
        part (str): ``'model'``, or ``'backbone'`` for the backbone alone under a fixed random gradient of its outputs.
        amp (torch.dtype | None): of autocast around the forward pass.
        device (str): where to run.
        seed (int): of weights, input, and the random numbers of each step.
        optim_wrapper (dict | None): the config's, for its optimiser; AdamW where it is None.
        prepare (callable | None): called with the segmentor just built, to change it in place.
        classes (int | None): see :func:`generated_batch`.
    """

    def __init__(self, model, crop, batch, part='model', amp=None, device='cpu', seed=0, optim_wrapper=None,
                 prepare=None, classes=None):
        if part not in ('model', 'backbone'):
            raise ValueError(f"part: expected 'model' or 'backbone', got {part!r}")
        self.segmentor = build_model(model, crop, seed)
        if prepare is not None:
            prepare(self.segmentor)
        self.segmentor.to(device)
        self.part, self.amp, self.device, self.seed = part, amp, torch.device(device), seed
        self.batch = generated_batch(self.segmentor, crop, batch, seed, classes)
        self.module = self.segmentor if part == 'model' else self.segmentor.backbone
        self.root = '' if part == 'model' else 'backbone'
        self._optim_wrapper = optim_wrapper
        self._optimizer = None
        self._out_grads = None

    @property
    def optimizer(self):
        """torch.optim.Optimizer: made on first use."""
        if self._optimizer is None:
            if self._optim_wrapper is None:
                self._optimizer = torch.optim.AdamW(self.module.parameters(), lr=6e-5, weight_decay=0.01)
            else:
                from mmengine.optim import build_optim_wrapper
                settings = _plain(self._optim_wrapper)
                settings['type'] = 'OptimWrapper'
                for key in ('dtype', 'loss_scale'):
                    settings.pop(key, None)
                self._optimizer = build_optim_wrapper(self.module, settings).optimizer
        return self._optimizer

    def forward(self):
        """Forward pass from raw input to loss, with random numbers that are the same each time.

        Returns:
            list[Tensor]: the loss, or the outputs of the backbone.
        """
        torch.manual_seed(self.seed)
        with torch.autocast(self.device.type, self.amp, enabled=self.amp is not None):
            data = self.segmentor.data_preprocessor(self.batch, True)
            if self.part == 'backbone':
                outputs = self.module(data['inputs'])
                return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
            loss, _ = self.segmentor.parse_losses(self.segmentor(**data, mode='loss'))
        return [loss]

    def backward(self, outputs):
        """Run backward from what :meth:`forward` returned.

        Returns:
            float: the loss; for a backbone, the mean of its outputs weighted by their gradients.
        """
        if self.part == 'model':
            outputs[0].backward()
            return outputs[0].item()
        if self._out_grads is None:
            generator = torch.Generator().manual_seed(self.seed)
            self._out_grads = [torch.randn(out.shape, generator=generator).to(out) / out.numel() for out in outputs]
        torch.autograd.backward(outputs, self._out_grads)
        return sum((out.detach() * grad).sum().item() for out, grad in zip(outputs, self._out_grads, strict=True))

    def step(self, after_forward=None):
        """One training step; gradients exist before and after.

        Args:
            after_forward (callable | None): called with the outputs between forward and backward.

        Returns:
            float: see :meth:`backward`.
        """
        outputs = self.forward()
        if after_forward is not None:
            after_forward(outputs)
        loss = self.backward(outputs)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        return loss

    def gradients(self):
        """Weight gradients of one forward and backward pass.

        Returns:
            tuple[dict[str, Tensor], float]: gradients by parameter name, and the loss.
        """
        self.module.zero_grad(set_to_none=True)
        loss = self.backward(self.forward())
        grads = {name: weight.grad for name, weight in self.module.named_parameters() if weight.grad is not None}
        self.module.zero_grad(set_to_none=True)
        return grads, loss
