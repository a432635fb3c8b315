"""The loss of a head, interleaved run by run: stock's resize, CrossEntropyLoss and accuracy against the fused operator.

For each case: time of forward and backward (medians), what is kept for backward, and the peak. The target is a fused time of
at most 0.20 of stock's.
"""
import argparse
import json
import re
import statistics
import time
import warnings
from pathlib import Path

import torch

from mesa_seg.engine.errors import UserError
from mesa_seg.engine.memory import MIB
from mesa_seg.engine.peak import PeakMemory
from mesa_seg.engine.text_table import text_table

DTYPES = dict(fp32=torch.float32, fp16=torch.float16, bf16=torch.bfloat16)


def add_arguments(parser):
    parser.add_argument('cases', nargs='*', type=_case, metavar='BxCxhxw:HxW',
                        default=[_case('2x150x64x64:256x256'), _case('2x150x128x128:512x512')],
                        help='sizes of logits and labels (default: 2x150x64x64:256x256 2x150x128x128:512x512)')
    parser.add_argument('--repeats', type=int, default=7, help='timed runs of each, after one that warms up')
    parser.add_argument('--dtype', choices=tuple(DTYPES), default='fp32', help='of the logits (default: %(default)s)')
    parser.add_argument('--ignored', type=float, default=0.1, help='share of ignored pixels (default: %(default)s)')
    parser.add_argument('--device', default='cpu', help="'cpu' or 'cuda' (default: %(default)s)")
    parser.add_argument('--json', type=Path, metavar='FILE', help='also write the results to this file')


def _case(text):
    numbers = re.fullmatch(r'(\d+)x(\d+)x(\d+)x(\d+):(\d+)x(\d+)', text)
    if numbers is None:
        raise argparse.ArgumentTypeError(f'expected BxCxhxw:HxW, such as 2x150x64x64:256x256, got {text!r}')
    return tuple(int(number) for number in numbers.groups())


def _losses():
    """name → function of logits and labels that returns the loss."""
    from mmseg.models.losses import CrossEntropyLoss, accuracy
    from mmseg.models.utils import resize

    from mesa_seg.models.losses.cross_entropy_loss import cross_entropy_with_accuracy
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        module = CrossEntropyLoss()

    def stock(logits, labels):
        full = resize(logits, labels.shape[1:], mode='bilinear', align_corners=False)
        accuracy(full, labels, ignore_index=255)
        return module(full, labels, ignore_index=255)

    def mesa(logits, labels):
        return cross_entropy_with_accuracy(module, logits, labels, align_corners=False, ignore_index=255)[0]

    return dict(stock=stock, mesa=mesa)


def _now(device):
    if device.startswith('cuda'):
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _step(loss, logits, labels, device):
    logits = logits.detach().requires_grad_()
    begin = _now(device)
    value = loss(logits, labels)
    middle = _now(device)
    value.backward()
    return middle - begin, _now(device) - middle, logits.grad


def _memory(loss, logits, labels, device):
    """Bytes kept for backward and peak of forward and backward above the inputs."""
    logits, kept = logits.detach().requires_grad_(), {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with PeakMemory(device) as peak:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            value = loss(logits, labels)
        value.backward()
    return sum(kept.values()), peak.peak_bytes


def measure(case, args):
    """Run one case.

    Args:
        case (tuple[int]): B, C, h, w, H, W.
        args (argparse.Namespace): options.

    Returns:
        dict: ``case``, ``gradient_difference`` (largest, relative to the largest gradient), and for each of ``stock`` and
        ``mesa``: ``forward_s``, ``backward_s``, ``step_s``, ``kept_bytes``, ``peak_bytes``.
    """
    batch, classes, height, width, rows, columns = case
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, classes, height, width, generator=generator).mul_(3).to(args.device, DTYPES[args.dtype])
    labels = torch.randint(0, classes, (batch, rows, columns), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < args.ignored] = 255
    labels = labels.to(args.device)
    losses = _losses()
    times, gradients = {name: [] for name in losses}, {}
    for run in range(args.repeats + 1):
        for name, loss in losses.items():
            forward, backward, gradients[name] = _step(loss, logits, labels, args.device)
            if run:
                times[name].append((forward, backward, forward + backward))
    stock, mesa = gradients['stock'].double(), gradients['mesa'].double()
    result = dict(case=case, gradient_difference=((stock - mesa).abs().max() / stock.abs().max()).item())
    for name, loss in losses.items():
        kept, peak = _memory(loss, logits, labels, args.device)
        medians = [statistics.median(values) for values in zip(*times[name], strict=True)]
        result[name] = dict(forward_s=medians[0], backward_s=medians[1], step_s=medians[2], kept_bytes=kept,
                            peak_bytes=peak)
    return result


def table(result):
    """str: one case's results beside each other."""
    def row(title, key, unit, digits):
        stock, mesa = (result[name][key] / unit for name in ('stock', 'mesa'))
        return [title, f'{stock:.{digits}f}', f'{mesa:.{digits}f}', f'{mesa / stock:.3f}']

    return text_table(['', 'stock', 'mesa', 'ratio'], [
        row('forward, s', 'forward_s', 1, 4), row('backward, s', 'backward_s', 1, 4), row('both, s', 'step_s', 1, 4),
        row('kept for backward, MiB', 'kept_bytes', MIB, 1), row('peak, MiB', 'peak_bytes', MIB, 1)])


def run(args):
    if args.device.startswith('cuda') and not torch.cuda.is_available():
        raise UserError(f'--device {args.device}: torch finds no CUDA device here.')
    if args.repeats < 1:
        raise UserError(f'--repeats {args.repeats}: at least 1.')
    results = []
    for case in args.cases:
        results.append(measure(case, args))
        batch, classes, height, width, rows, columns = case
        print(f'{batch} x {classes} x {height} x {width} to {rows} x {columns}, {args.dtype}, {args.device}, '
              f'{torch.get_num_threads()} threads; median of {args.repeats}\n')
        print(table(results[-1]))
        print(f'largest difference of the gradients: {results[-1]["gradient_difference"]:.1e} of the largest\n')
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=1))
