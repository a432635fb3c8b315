"""What a forward pass keeps for its backward pass: exact bytes, each storage once, by part, kind of layer, and layer.

Autograd hands every tensor it keeps to the saved-tensor hooks in force. :class:`KeptForBackward` puts hooks there that
keep nothing themselves: they note the module that is running and watch, through weak references, whether what autograd
holds is still held when the forward pass is over.
"""
import functools
import re
import weakref
from collections import namedtuple
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ..saved import Quantizer

MIB = 2**20
_Frame = namedtuple('_Frame', 'name kind leaf in_loss in_attention')
_ATTENTION = re.compile('Attention|Attn|MSA')
# functions of mesa_seg.functional, run by modules that fuse several layers
_FUNCTIONS = {'_linear': 'Linear', '_layer_norm': 'LayerNorm', '_gelu': 'GELU', '_conv': 'Conv2d', '_relu': 'ReLU',
              '_batch_norm': 'BatchNorm2d'}


@dataclass(frozen=True)
class KeptTensor:
    """One storage kept for backward, described by the first op that saved it.

    Attributes:
        layer (str): dotted name of the innermost module that ran, ``''`` outside every module.
        layer_type (str): class name of that module.
        kind (str): what the bytes are for, as tables name it: ``'Linear'``, ``'attention'``, ``'loss'``, ...
        op (str): autograd's name of the op, such as ``'NativeLayerNorm'``; ``''`` where the graph does not reach it
            (the inputs that activation checkpointing keeps).
        in_loss (bool): a loss saved it, i.e. a loss module or the ``loss_by_feat`` of a head was running.
        nbytes (int): bytes of the whole storage.
        dtype (torch.dtype): of the tensor that was saved.
        shape (tuple[int]): of the tensor that was saved.
    """
    layer: str
    layer_type: str
    kind: str
    op: str
    in_loss: bool
    nbytes: int
    dtype: torch.dtype
    shape: tuple

    @property
    def part(self):
        """First component of the layer's name: ``'backbone'``, ``'decode_head'``, ..."""
        return self.layer.partition('.')[0] or 'model'


class KeptReport:
    """The outcome of :class:`KeptForBackward`.

    Attributes:
        tensors (tuple[KeptTensor]): one for each storage, in the order in which they were first saved.
    """

    def __init__(self, tensors):
        self.tensors = tuple(tensors)

    @property
    def total(self):
        """All bytes kept."""
        return sum(kept.nbytes for kept in self.tensors)

    @property
    def loss(self):
        """Bytes that only the loss keeps."""
        return sum(kept.nbytes for kept in self.tensors if kept.in_loss)

    @property
    def outside_loss(self):
        """Bytes kept by anything but the loss."""
        return self.total - self.loss

    def _by(self, key):
        sums = {}
        for kept in self.tensors:
            sums[key(kept)] = sums.get(key(kept), 0) + kept.nbytes
        return sums

    def by_part(self):
        """dict[str, int]: bytes for each direct child of the model, in order of use. A head's loss counts to it."""
        return self._by(lambda kept: kept.part)

    def by_kind(self):
        """dict[str, int]: bytes for each kind of layer, largest first."""
        return dict(sorted(self._by(lambda kept: kept.kind).items(), key=lambda item: -item[1]))

    def by_layer(self):
        """dict[str, int]: bytes for each module by its dotted name, in order of first use."""
        return self._by(lambda kept: kept.layer)


class _Packed:
    """What autograd holds in place of a saved tensor while the watch is on."""
    __slots__ = ('value', 'unpack', '__weakref__')

    def __init__(self, value, unpack=None):
        self.value = value
        self.unpack = unpack


def _tensors_in(value, depth=4):
    """Tensors inside what another pack hook returned: containers and attributes, nested ``depth`` deep at most."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, (tuple, list, set, frozenset)):
        for item in value:
            yield from _tensors_in(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(item, depth - 1)
    elif depth and not isinstance(value, (str, bytes, int, float, type, torch.dtype, torch.device)):
        names = list(getattr(value, '__dict__', ()))
        for cls in type(value).__mro__:
            slots = cls.__dict__.get('__slots__', ())
            names += [slots] if isinstance(slots, str) else list(slots)
        for name in names:
            if not name.startswith('__'):
                yield from _tensors_in(getattr(value, name, None), depth - 1)


def _storage(tensor):
    """Identity and bytes of a tensor's storage."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors and the like have none
        return id(tensor), tensor.numel() * tensor.element_size()
    return storage._cdata, storage.nbytes()


class KeptForBackward:
    """Watch a forward pass and report what it keeps for backward.

    Use as a context manager around the forward pass, the loss included; call :meth:`report` before backward runs.
    The model's values, its random numbers and what it keeps do not change. Hooks that run inside
    (``torch.utils.checkpoint``, ``save_on_cpu``, a compressing hook) are seen through: what they return is counted, on
    whatever device it is. Parameters and buffers of the model, and views of them, are left out. Only the caller's
    thread is watched.

    Args:
        model (nn.Module): its modules give the layers their names.
        root (str): prefix of those names, for a model that is itself a part, such as ``'backbone'``.

    Example:
        >>> with KeptForBackward(model) as kept:
        ...     loss = model(x).sum()
        >>> kept.report(loss).by_part()
    """

    def __init__(self, model, root=''):
        if not isinstance(model, nn.Module):
            raise TypeError(f'model: expected an nn.Module, got {type(model).__name__}')
        self.model = model
        self.names = {id(module): '.'.join(filter(None, (root, name))) for name, module in model.named_modules()}
        self._root = _Frame(root, type(model).__name__, False, False, False)
        self._saved = []  # (weak reference to _Packed, frame)
        self._walked = None
        self._exit = None

    def _enter_frame(self, module, in_loss=None):
        above = self._stack[-1]
        name = self.names.get(id(module), above.name)
        kind = type(module).__name__
        if in_loss is None:
            in_loss = kind.endswith('Loss') or name.rpartition('.')[2].startswith('loss')
        leaf = all(isinstance(child, Quantizer) for child in module.children())
        in_attention = above.in_attention or bool(_ATTENTION.search(kind))
        self._stack.append(_Frame(name, kind, leaf, above.in_loss or in_loss, in_attention))

    def _leave_frame(self):
        if len(self._stack) > 1:
            self._stack.pop()

    def _in_frame(self, module, method, in_loss):
        @functools.wraps(method)
        def wrapped(*args, **kwargs):
            self._enter_frame(module, in_loss)
            try:
                return method(*args, **kwargs)
            finally:
                self._leave_frame()

        return wrapped

    def _follow_methods(self):
        """Heads of mmseg are entered by ``loss``, not by ``forward``: follow those calls like a module's."""
        for module in self.model.modules():
            for name, in_loss in (('loss', False), ('loss_by_feat', True)):
                method = getattr(module, name, None)
                if module is self.model or isinstance(method, nn.Module) or not callable(method):
                    continue
                before = vars(module).get(name)
                setattr(module, name, self._in_frame(module, method, in_loss))
                if before is None:
                    self._exit.callback(delattr, module, name)
                else:
                    self._exit.callback(setattr, module, name, before)

    def _pack(self, value, unpack=None):
        if isinstance(value, torch.Tensor) and value.grad_fn is not None:
            value = value.detach()  # a result that its own node saves would hold on to that node for ever
        packed = _Packed(value, unpack)
        self._saved.append((weakref.ref(packed), self._stack[-1]))
        return packed

    def _unpack(self, packed):
        if self._walked is not None:
            self._walked.append(packed)
            return torch.empty(0)
        return packed.value if packed.unpack is None else packed.unpack(packed.value)

    def _see_through_inner_hooks(self):
        """Only the innermost saved-tensor hooks act; have those that are entered from now on report here too."""
        hooks = torch.autograd.graph.saved_tensors_hooks
        enter = hooks.__enter__

        def entered(context):
            pack, unpack = context.pack_hook, context.unpack_hook
            context.pack_hook = lambda tensor: self._pack(pack(tensor), unpack)
            context.unpack_hook = self._unpack
            try:
                return enter(context)
            finally:
                context.pack_hook, context.unpack_hook = pack, unpack

        hooks.__enter__ = entered
        self._exit.callback(setattr, hooks, '__enter__', enter)

    def __enter__(self):
        if self._exit is not None:
            raise RuntimeError('KeptForBackward watches one forward pass: make a new one for the next')
        self._exit = ExitStack()
        self._stack = [self._root]
        self._exit.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack))
        self._see_through_inner_hooks()
        enter = register_module_forward_pre_hook(lambda module, args: self._enter_frame(module))
        leave = register_module_forward_hook(lambda module, args, output: self._leave_frame(), always_call=True)
        self._exit.callback(enter.remove)
        self._exit.callback(leave.remove)
        self._follow_methods()
        return self

    def __exit__(self, *error):
        return self._exit.__exit__(*error)

    def report(self, outputs):
        """What is kept now.

        Args:
            outputs (Tensor | iterable[Tensor]): results of the forward pass, from which the graph is walked to
                learn the names of the ops. They (and what else the caller holds) keep the graph alive.

        Returns:
            KeptReport: with one entry for each storage still held.
        """
        ops = self._ops((outputs, ) if isinstance(outputs, torch.Tensor) else outputs)
        model = {_storage(tensor)[0] for group in (self.model.parameters(), self.model.buffers()) for tensor in group}
        kept, seen = [], set(model)
        alive = [(reference(), frame) for reference, frame in self._saved]
        for packed, frame in alive:
            if packed is None:
                continue
            for tensor in _tensors_in(packed.value):
                key, nbytes = _storage(tensor)
                if key in seen or not nbytes:
                    continue
                seen.add(key)
                op = ops.get(id(packed), '')
                kept.append(KeptTensor(frame.name, frame.kind, _kind(frame, op), op, frame.in_loss, nbytes,
                                       tensor.dtype, tuple(tensor.shape)))
        return KeptReport(kept)

    def _ops(self, outputs):
        """Op name for each packed value that the graph behind ``outputs`` holds, by id."""
        ops, attributes, visited = {}, {}, set()
        nodes = [tensor.grad_fn for tensor in outputs]
        self._walked = []
        try:
            while nodes:
                node = nodes.pop()
                if node is None or node in visited:
                    continue
                visited.add(node)
                if type(node) not in attributes:
                    attributes[type(node)] = [name for name in dir(node)
                                              if name.startswith('_saved_') or name == 'saved_tensors']
                for name in attributes[type(node)]:
                    try:
                        getattr(node, name)
                    except RuntimeError:  # edited in place since, or freed: it has been noted all the same
                        pass
                for packed in self._walked:
                    ops[id(packed)] = re.sub(r'Backward\d*$', '', node.name())
                self._walked.clear()
                nodes.extend(following for following, _ in node.next_functions)
        finally:
            self._walked = None
        return ops


def _kind(frame, op):
    """Name under which tables sum up: the layer's class where it is a plain layer, else the op's."""
    layer = frame.kind.removeprefix('Mesa')
    if frame.in_loss:
        return 'loss'
    if op == 'CheckpointFunction' or not op and not frame.leaf:  # an edit in place of a view hides the op of a plain layer
        return 'checkpoint'
    if frame.in_attention and not (frame.leaf and re.search('Linear|Conv|Norm', layer)):
        return 'attention'  # but not the projections around it
    if frame.leaf:
        return 'BatchNorm2d' if layer == 'SyncBatchNorm' else layer
    if op.startswith('ScaledDotProduct'):
        return 'attention'
    name = re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', op).lower()
    return _FUNCTIONS.get(name, name.lstrip('_'))
