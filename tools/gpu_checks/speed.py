"""Each kernel's time against its floor: the bytes that it must move at the speed of a copy on this GPU."""
import statistics

import torch

from mesa_seg.engine.text_table import text_table

from .cases import large_cases

# GB/s of the memory, as the makers state it.
BANDWIDTH = {'H200': 4800, 'H100': 3350, 'A100': 2039, 'RTX 4090': 1008, 'RTX 3090': 936, 'L40S': 864, 'RTX 5090': 1792,
             'B200': 8000, 'L4': 300, 'A10': 600, 'T4': 320}


def seconds_of(call, device, repeats=10):
    """Median time of a call, by CUDA events; the cache is swept before each."""
    sweep = torch.empty(64 * 2**20, dtype=torch.int32, device=device)
    for _ in range(2):
        call()
    times = []
    for _ in range(repeats):
        sweep.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def _bytes(value):
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(_bytes, value)) if isinstance(value, (list, tuple)) else 0


def floors(cards=('H200', 'RTX 4090'), mib=128):
    """Table of what each kernel must move, each byte once, and the time that takes on ``cards``. Needs no GPU."""
    rows = []
    for label, operator, args in large_cases('meta', mib):
        out = getattr(torch.ops.mesa_seg, operator)(*args)
        moved = _bytes(args) + _bytes(out)
        rows.append([label, f'{moved / 2**20:.0f}', *(f'{moved / BANDWIDTH[card] / 1e3:.0f}' for card in cards)])
    return text_table(['kernel', 'MiB', *(f'{card}, us' for card in cards)], rows)


def _copy_speed(device):
    """Bytes a second, read plus written."""
    source = torch.empty(64 * 2**20, device=device)
    target = torch.empty_like(source)
    return 2 * _bytes(source) / seconds_of(lambda: target.copy_(source), device)


def run(context):
    if context.device.type != 'cuda':
        context.skip('times of the kernels: they need a GPU')
        return
    name = torch.cuda.get_device_name(context.device)
    stated = next((gb for key, gb in BANDWIDTH.items() if key in name), None)
    copy = _copy_speed(context.device)
    context.progress(f'speed: a copy runs at {copy / 1e9:.0f} GB/s' + (f' of {stated} stated' if stated else ''))
    rows, results = [], []
    for label, operator, args in large_cases(context.device):
        if context.left < 0.4 * context.seconds:
            context.skip('times of the remaining kernels: time')
            break
        timed = context.attempt(label, _time, context, operator, args)
        if timed is None:
            continue
        seconds, moved = timed
        floor = moved / copy
        rows.append([label, f'{moved / 2**20:.0f}', f'{seconds * 1e6:.0f}', f'{moved / seconds / 1e9:.0f}',
                     f'{floor / seconds:.0%}'])
        results.append(dict(kernel=label, bytes=moved, seconds=seconds, of_copy=floor / seconds))
    context.progress(text_table(['kernel', 'MiB', 'us', 'GB/s', 'of a copy'], rows))
    context.results['speed'] = dict(copy_gb_s=copy / 1e9, kernels=results)


def _time(context, operator, args):
    out = context.call(operator, args)
    moved = _bytes(args) + _bytes(out)
    del out
    return seconds_of(lambda: context.call(operator, args), context.device), moved
