"""What conversion cannot see: quantising whatever large floating-point tensor autograd still keeps exact.

Functional softmax, plain matrix products and operators of others hand their tensors to autograd themselves.
:class:`QuantizeLeftovers` takes them at autograd's saved-tensor hooks.
"""
import weakref

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .. import ops
from .quantizer import QUANTIZED_DTYPES, QuantizerConfig
from .seed import next_seed

aten = torch.ops.aten
# Results that are statistics of a forward and feed exponentials or divisions of its backward: kept exact. The value says
# from which result on.
_STATISTICS = {
    aten.native_layer_norm: 1, aten.native_group_norm: 1, aten.native_batch_norm: 1, aten._native_batch_norm_legit: 1,
    aten._native_batch_norm_legit_no_training: 1, aten.cudnn_batch_norm: 1, aten.miopen_batch_norm: 1,
    aten._batch_norm_with_update: 1, aten._scaled_dot_product_flash_attention: 1,
    aten._scaled_dot_product_flash_attention_for_cpu: 1, aten._scaled_dot_product_efficient_attention: 1,
    aten._scaled_dot_product_cudnn_attention: 1, aten.logsumexp: 0, aten._log_softmax: 0, aten.nll_loss_forward: 0,
    aten.nll_loss2d_forward: 0, aten.var_mean: 0, aten.linalg_vector_norm: 0,
    torch.ops.mesa_seg.upsample_cross_entropy: 0, torch.ops.mesa_seg.quantize: 1, torch.ops.mesa_seg.gelu_quantize: 1,
    torch.ops.mesa_seg.layer_norm_quantize: 1, torch.ops.mesa_seg.batch_norm_quantize: 1,
}
# Functions whose second argument says where to read the first: it is as exact as an index.
_READS_PLACES = (F.grid_sample, torch.grid_sampler, torch.grid_sampler_2d, torch.grid_sampler_3d)
_entered = []  # the contexts that are


def leave_exact(x):
    """Have no :class:`QuantizeLeftovers` that is entered now quantise this tensor, or another view of its memory."""
    for context in _entered:
        context._exact.add(StorageWeakRef(x.untyped_storage()))


class _NotePlaces(TorchFunctionMode):
    """Notes tensors of coordinates before autograd saves them."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in _READS_PLACES:
            leave_exact(args[1] if len(args) > 1 else kwargs['grid'])
        return function(*args, **kwargs)


class _NoteStatistics(TorchDispatchMode):
    """Notes the storages of results that are statistics."""

    def __init__(self, exact):
        super().__init__()
        self.exact = exact

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        first = _STATISTICS.get(function.overloadpacket)
        if first is not None:
            for result in (out if isinstance(out, (tuple, list)) else (out, ))[first:]:
                if isinstance(result, torch.Tensor) and result.is_floating_point():
                    self.exact.add(StorageWeakRef(result.untyped_storage()))
        return out


class _Codes:
    """Codes of a run of memory, shared by all who saved it."""
    __slots__ = ('codes', 'ranges', 'numel', 'dtype', '__weakref__')

    def __init__(self, codes, ranges, numel, dtype):
        self.codes, self.ranges, self.numel, self.dtype = codes, ranges, numel, dtype


class _View:
    """One saved tensor: how it lies over its codes."""
    __slots__ = ('shared', 'size', 'stride', 'bits', 'block_size')

    def __init__(self, shared, size, stride, bits, block_size):
        self.shared, self.size, self.stride, self.bits, self.block_size = shared, size, stride, bits, block_size

    def restore(self):
        c = self.shared
        flat = ops.dequantize(c.codes, c.ranges, 1, 1, c.numel, self.bits, self.block_size, c.dtype)
        return flat.as_strided(self.size, self.stride)


def _is_dense(x):
    """Whether ``x`` covers a run of memory once, in any order of dimensions."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(x.size(), x.stride(), strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


class QuantizeLeftovers:
    """Context manager around a forward: large floating-point tensors that autograd keeps are kept as codes.

    A tensor is quantised once, whoever saves it and in whatever order of dimensions: it is known by its storage, place and
    version, not by its contents. Left alone are parameters and buffers of the model, anything else that requires a gradient
    and is a leaf, copies of parameters that autocast made, statistics of a forward (means, 1/sigma, log-sum-exp,
    log-softmax), indices, coordinates that ``grid_sample`` reads at, masks and codes, tensors below ``min_numel`` values,
    and views that skip or repeat memory.

    Ranges are those of blocks, so no state outlives the forward.

    Args:
        model (nn.Module): whose parameters and buffers are left alone.
        bits (int): 8, 4 or 2.
        block_size (int): values that share a range, a multiple of 8 from 16 to 1024.
        rounding (str): ``'stochastic'`` or ``'nearest'``.
        min_numel (int): smallest tensor that is quantised.

    Attributes:
        quantized (int): bytes of the tensors that were quantised, each once.
        codes (int): bytes of what is kept for them instead.
    """

    def __init__(self, model, bits=8, block_size=64, rounding='stochastic', min_numel=16384):
        self.config = QuantizerConfig(bits=bits, granularity='block', block_size=block_size, rounding=rounding)
        if not isinstance(min_numel, int) or min_numel < 1:
            raise ValueError(f'min_numel={min_numel!r}: expected a positive whole number of values')
        self.model = model
        self.min_numel = min_numel
        self.quantized = self.codes = 0
        self._contexts = None

    def __enter__(self):
        if self._contexts is not None:
            raise RuntimeError('QuantizeLeftovers is entered already: make another one for a nested forward')
        own = [*self.model.parameters(), *self.model.buffers()]
        self._exact = {StorageWeakRef(t.untyped_storage()) for t in own}
        self._shapes = {tuple(sorted(p.shape)): p.dtype for p in self.model.parameters() if p.dim() > 1}
        self._seen = {}
        self._contexts = (torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack), _NoteStatistics(self._exact),
                          _NotePlaces())
        for context in self._contexts:
            context.__enter__()
        _entered.append(self)
        return self

    def __exit__(self, *error):
        _entered.remove(self)
        for context in reversed(self._contexts):
            context.__exit__(*error)
        self._contexts = None
        self._exact, self._shapes, self._seen = set(), {}, {}

    def _is_leftover(self, x):
        if type(x) not in (torch.Tensor, FakeTensor) or x.layout is not torch.strided or x.dtype not in QUANTIZED_DTYPES:
            return False
        if x.numel() < self.min_numel or not _is_dense(x) or (x.is_leaf and x.requires_grad):
            return False
        # Whether autocast is on cannot be asked from inside an operation: a copy of a weight is known by shape and dtype.
        return self._shapes.get(tuple(sorted(x.shape)), x.dtype) is x.dtype

    def _pack(self, x):
        leftover = self._is_leftover(x)
        reference = StorageWeakRef(x.untyped_storage()) if leftover else None
        if not leftover or reference in self._exact:
            return x if x.grad_fn is None else x.detach()  # the result of an operation must not hold on to its node
        key = reference, x.storage_offset(), x.numel(), x.dtype, x._version
        shared = self._seen.get(key, lambda: None)()
        if shared is None:
            shared = self._quantize(x.detach())
            self._seen[key] = weakref.ref(shared)
        return _View(shared, x.size(), x.stride(), self.config.bits, self.config.block_size)

    def _quantize(self, x):
        numel = x.numel()
        flat = x.as_strided((1, 1, numel), (numel, numel, 1))
        stochastic = self.config.rounding == 'stochastic'
        codes, ranges = ops.quantize(flat, None, self.config.bits, self.config.block_size, next_seed() if stochastic else 0,
                                     stochastic)
        self.quantized += numel * x.element_size()
        self.codes += codes.nbytes + ranges.nbytes
        return _Codes(codes, ranges, numel, x.dtype)

    @staticmethod
    def _unpack(packed):
        return packed.restore() if isinstance(packed, _View) else packed
