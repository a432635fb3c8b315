"""Operators beside ``torch.Tensor.copy_`` of the same tensor, interleaved call by call, and beside the plain-PyTorch reference.

Throughput is the bytes that an operator must read and write over its median time; for ``copy_`` (into a tensor that exists) both
sides count. Quantising and dequantising 8 bits, stochastic, by group, of 64 MiB of float32 should reach 0.60 of it.

Every operator returns a fresh tensor. On the CPU a fresh page costs more than filling it, and who pays depends on what was
freed before: so the C library is told to keep what it has (``--fresh-memory``: it is not), and ``clone``, which returns a fresh
tensor too, is in the table. The reference runs on an eighth of the rows, its time is multiplied by eight.
"""
import ctypes
import json
import statistics
import time
from pathlib import Path

import torch

from mesa_seg.engine.errors import UserError
from mesa_seg.engine.memory import MIB
from mesa_seg.engine.text_table import text_table
from mesa_seg.ops import KERNELS
from mesa_seg.ops._library import _references

DTYPES = dict(fp32=torch.float32, fp16=torch.float16, bf16=torch.bfloat16)
CHANNELS, GROUP = 96, 32  # of the views: Swin-T's first stage
REFERENCE_SHARE, REFERENCE_ROUNDS = 8, 2


def add_arguments(parser):
    parser.add_argument('--mib', type=int, default=64, help='size of the tensor (default: %(default)s)')
    parser.add_argument('--dtype', choices=tuple(DTYPES), default='fp32', help='of the tensor (default: %(default)s)')
    parser.add_argument('--view', choices=('tokens', 'maps', 'both'), default='both',
                        help=f'[rows, {CHANNELS // GROUP}, {GROUP}] of a token map with {CHANNELS} channels, or the same '
                        'channels as maps of 64 x 64, [images, groups, channels a group * 64 * 64] (default: %(default)s)')
    parser.add_argument('--rounds', type=int, default=15, help='timed calls of each, after two that warm up')
    parser.add_argument('--no-reference', action='store_true', help='leave the plain-PyTorch reference out')
    parser.add_argument('--fresh-memory', action='store_true', help='let the C library hand out fresh pages')
    parser.add_argument('--device', default='cpu', help="'cpu' or 'cuda' (default: %(default)s)")
    parser.add_argument('--json', type=Path, metavar='FILE', help='also write the results to this file')


def keep_freed_memory():
    """Make glibc's malloc hand freed memory out again, rather than give large pieces back to the kernel; else nothing."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_max = -1, -4
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, 2**31 - 1)


class Cases:
    """The calls over one tensor.

    Args:
        x (Tensor): [outer, groups, inner].
        tokens (bool): the view is that of a token map; else of maps.
    """

    def __init__(self, x, tokens):
        self.x, self.tokens, self.size = x, tokens, x.element_size()
        n, groups = x.numel(), x.shape[1]
        ops, self.listed = torch.ops.mesa_seg, []
        ranges = ops.group_range(x)
        codes8 = ops.quantize(x, ranges, 8, 0, 1, True)[0]
        codes4, ranges4 = ops.quantize(x, None, 4, 64, 1, True)
        shape, value = tuple(x.shape), self.size
        scale, shift = torch.rand(CHANNELS, device=x.device), torch.rand(CHANNELS, device=x.device)
        spatial = 1 if tokens else n // x.shape[0] // CHANNELS
        mask = x > 0
        packed = ops.pack_mask(mask)
        dtype = x.dtype
        self.add('quantize 8', 'quantize', (x, ranges, 8, 0, 1, True), value + 1)
        self.add('quantize 8, nearest', 'quantize', (x, ranges, 8, 0, 1, False), value + 1)
        self.add('quantize 4, blocks of 64', 'quantize', (x, None, 4, 64, 1, True), value + 9 / 16)
        self.add('quantize 2, blocks of 64', 'quantize', (x, None, 2, 64, 1, True), value + 5 / 16)
        self.add('dequantize 8', 'dequantize', (codes8, ranges, *shape, 8, 0, dtype), value + 1)
        self.add('dequantize 4, blocks of 64', 'dequantize', (codes4, ranges4, *shape, 4, 64, dtype), value + 9 / 16)
        self.add('dequantize_affine 8, ReLU', 'dequantize_affine',
                 (codes8, ranges, *shape, 8, 0, scale, shift, spatial, True, dtype), value + 1)
        self.add('group_range', 'group_range', (x,), value)
        self.add('relu_mask', 'relu_mask', (x,), 2 * value + 1 / 8)
        self.add('mask_multiply', 'mask_multiply', (x, packed, 1.0), 2 * value + 1 / 8)
        self.add('pack_mask', 'pack_mask', (mask,), 1 + 1 / 8)
        self.add('unpack_mask', 'unpack_mask', (packed, n), 1 + 1 / 8)
        self.add('gelu_quantize 8', 'gelu_quantize', (x, ranges, 8, 0, 1, True, False), 2 * value + 1)
        self.add('gelu_backward 8', 'gelu_backward', (x, codes8, ranges, 8, 0, False), 2 * value + 1)
        if tokens:
            rows = x.reshape(-1, CHANNELS)
            ranges = torch.tensor([[-4.0, 4.0]], device=x.device).repeat(groups, 1)
            arguments = (rows, scale, shift, 1e-5, ranges, groups, 8, 0, 1, True)
            self.add('layer_norm_quantize 8', 'layer_norm_quantize', arguments, 2 * value + 1)
            _, rstd, codes, _ = ops.layer_norm_quantize(*arguments)
            self.add('layer_norm_backward 8', 'layer_norm_backward',
                     (rows, codes, ranges, rstd, scale, groups, 8, 0), 2 * value + 1)

    def add(self, title, name, arguments, bytes_a_value):
        self.listed.append((title, name, arguments, bytes_a_value * self.x.numel()))


def _now(device):
    if device.startswith('cuda'):
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _timed(call, device):
    begin = _now(device)
    call()
    return _now(device) - begin


def _interleaved(calls, rounds, warm_up, device):
    """Median seconds of each of ``calls`` (title → callable)."""
    times = {title: [] for title in calls}
    for round_ in range(warm_up + rounds):
        for title, call in calls.items():
            seconds = _timed(call, device)
            if round_ >= warm_up:
                times[title].append(seconds)
    return {title: statistics.median(values) for title, values in times.items()}


def _call(function, arguments):
    return lambda: function(*arguments)


def _view(args, tokens, divisor=1):
    numel = args.mib * MIB // DTYPES[args.dtype].itemsize // divisor
    inner = GROUP if tokens else GROUP * 64 * 64
    shape = (max(1, numel // (CHANNELS // GROUP * inner)), CHANNELS // GROUP, inner)
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator).to(args.device, DTYPES[args.dtype])


def measure(args, tokens):
    """Run all operators over one view.

    Args:
        args (argparse.Namespace): options.
        tokens (bool): which view.

    Returns:
        list[dict]: ``op``, ``seconds``, ``bytes``, ``of_copy`` (throughput over that of ``copy_``) and ``of_reference`` (the
        reference's time over this one's; None where it was not asked for or there is none).
    """
    x = _view(args, tokens)
    copied, cases = torch.empty_like(x), Cases(x, tokens)
    calls = {'copy_': lambda: copied.copy_(x), 'clone': x.clone}
    bytes_ = dict.fromkeys(calls, 2 * x.numel() * x.element_size())
    for title, name, arguments, moved in cases.listed:
        calls[title] = _call(getattr(torch.ops.mesa_seg, name).default, arguments)
        bytes_[title] = moved
    seconds = _interleaved(calls, args.rounds, 2, args.device)
    reference = {}
    if not args.no_reference:
        small = _view(args, tokens, REFERENCE_SHARE)
        share = x.numel() / small.numel()
        calls = {title: _call(_references[name], arguments) for title, name, arguments, _ in Cases(small, tokens).listed}
        reference = {title: share * value
                     for title, value in _interleaved(calls, REFERENCE_ROUNDS, 0, args.device).items()}
    copy_speed = bytes_['copy_'] / seconds['copy_']
    return [dict(op=title, seconds=seconds[title], bytes=bytes_[title],
                 of_copy=bytes_[title] / seconds[title] / copy_speed,
                 of_reference=reference[title] / seconds[title] if title in reference else None) for title in seconds]


def table(results):
    """str: one view's results."""
    return text_table(['', 'ms', 'GB/s', 'of copy_', 'of reference'], [
        [r['op'], f'{r["seconds"] * 1e3:.2f}', f'{r["bytes"] / r["seconds"] / 1e9:.1f}', f'{r["of_copy"]:.2f}',
         '' if r['of_reference'] is None else f'{r["of_reference"]:.0f} x'] for r in results])


def run(args):
    key = 'CUDA' if args.device.startswith('cuda') else 'CPU'
    if key == 'CUDA' and not torch.cuda.is_available():
        raise UserError(f'--device {args.device}: torch finds no CUDA device here.')
    if KERNELS.get(key) != 'compiled':
        raise UserError(f'The compiled operators for {key} are not loaded, so there is nothing to measure: build them by '
                        '`make setup`.')
    for name in ('mib', 'rounds'):
        if getattr(args, name) < 1:
            raise UserError(f'--{name} {getattr(args, name)}: at least 1.')
    if not args.fresh_memory:
        keep_freed_memory()
    results = {}
    for view in ('tokens', 'maps') if args.view == 'both' else (args.view,):
        results[view] = measure(args, view == 'tokens')
        shape = tuple(_view(args, view == 'tokens').shape)
        print(f'{view} {list(shape)}, {args.dtype}, {args.device}, {torch.get_num_threads()} threads; median of '
              f'{args.rounds}, {"fresh" if args.fresh_memory else "reused"} memory\n')
        print(table(results[view]) + '\n')
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=1))
