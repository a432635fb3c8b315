"""Whole training steps, stock beside Mesa: loss, peak memory, time; and the largest batch within 24 GiB."""
import gc
import statistics
import time
from pathlib import Path

import torch

from mesa_seg.engine import variants
from mesa_seg.engine.config import load_config
from mesa_seg.engine.memory import MIB, KeptForBackward
from mesa_seg.engine.peak import PeakMemory
from mesa_seg.engine.text_table import text_table
from mesa_seg.engine.trial import Trial, override_mesa

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
MODELS = {'UPerNet Swin-T': 'upernet_mesa_swin_t_ade20k.py', 'Semantic FPN PVT-T': 'fpn_mesa_pvt_t_ade20k.py'}
BF16 = torch.bfloat16
BLOCKS = dict(bits=4, granularity='block', block_size=64)
# name -> (variant of mesa_seg.engine.variants or None, settings of Mesa, autocast)
WAYS = {
    'stock': ('stock', None, None),
    'checkpointed': ('stock_checkpointed', None, None),
    'Mesa 8 bit': (None, {}, None),
    'Mesa 4 bit': (None, BLOCKS, None),
    'stock, bf16': ('stock', None, BF16),
    'Mesa 8 bit, bf16': (None, {}, BF16),
}


def build(config, way, crop, batch, device):
    """A Trial of one way to train."""
    variant, settings, amp = WAYS[way]
    if variant is None:
        model, prepare = override_mesa(config.model, **settings), None
    else:
        model, prepare = variants.VARIANTS[variant].make([config.model])
    return Trial(model, crop, batch, amp=amp, device=device, optim_wrapper=config.get('optim_wrapper'), prepare=prepare)


def measure(context, config, way, crop, batch, steps, weights):
    """One way to train: dict of loss, saved_bytes, peak_bytes and step_s.

    ``weights`` is what the first way began with, and is filled by it.
    """
    trial = build(config, way, crop, batch, str(context.device))
    own = trial.segmentor.state_dict()
    if weights:
        trial.segmentor.load_state_dict({k: v for k, v in weights.items() if k in own}, strict=False)
    else:
        weights.update((k, v.cpu().clone()) for k, v in own.items())
    loss = trial.step()
    with KeptForBackward(trial.module, root=trial.root) as watch:
        outputs = trial.forward()
    kept = watch.report(outputs).total
    del outputs
    with PeakMemory(trial.device) as peak:
        trial.step()
    times = []
    for _ in range(steps):
        context.synchronize()
        begin = time.perf_counter()
        trial.step()
        context.synchronize()
        times.append(time.perf_counter() - begin)
    return dict(loss=loss, saved_bytes=kept, peak_bytes=peak.peak_bytes, step_s=statistics.median(times))


def _free(context):
    gc.collect()
    if context.device.type == 'cuda':
        torch.cuda.empty_cache()


def run(context, crop=512, batches=(2, 16), models=None, ways=None, steps=5):
    """Times every way to train each model, then finds the largest batches."""
    context.results['training'] = []
    for model, file in (models or MODELS).items():
        config = load_config(CONFIGS / file)
        for batch in batches:
            _compare_ways(context, model, config, crop, batch, ways or list(WAYS), steps)
    if context.device.type == 'cuda':
        _largest(context, crop, models or MODELS)


def _compare_ways(context, model, config, crop, batch, ways, steps):
    title = f'{model}, {crop} x {crop}, batch {batch}'
    found, weights = {}, {}
    for way in ways:
        if context.left < 0.12 * context.seconds:
            context.skip(f'{title}, {way}: time')
            continue
        try:
            result = context.attempt(f'{title}, {way}', measure, context, config, way, crop, batch, steps,
                                     weights)
        except torch.OutOfMemoryError:
            context.skip(f'{title}, {way}: out of memory')
            result = None
        _free(context)
        if result is None:
            continue
        found[way] = result
        context.results['training'].append(dict(model=model, crop=crop, batch=batch, way=way, **result))
    if not found:
        return
    first = next(iter(found.values()))
    rows = [[way, f'{r["loss"]:.5f}', f'{r["saved_bytes"] / MIB:.0f}', f'{r["peak_bytes"] / MIB:.0f}',
             f'{r["peak_bytes"] / first["peak_bytes"]:.1%}', f'{r["step_s"] * 1e3:.1f}',
             f'{r["step_s"] / first["step_s"]:.2f}'] for way, r in found.items()]
    context.progress(f'training: {title}\n' + text_table(
        ['way', 'loss', 'kept, MiB', 'peak, MiB', 'of first', 'ms', 'of first'], rows))
    if 'stock' in found:
        for way, result in found.items():
            tolerance = 1e-4 if 'bf16' not in way else 2e-2
            if not abs(result['loss'] - found['stock']['loss']) <= tolerance * abs(found['stock']['loss']):
                context.wrong(f'{title}, {way}: loss {result["loss"]:.6f}, stock has {found["stock"]["loss"]:.6f}')


def _largest(context, crop, models, gib=24):
    """The largest batch that trains within so much memory, by doubling and then halving the difference."""
    total = torch.cuda.get_device_properties(context.device).total_memory
    if total > gib * 2**30:
        torch.cuda.set_per_process_memory_fraction(gib * 2**30 / total, context.device)
    context.results['largest_batch'] = []
    rows = []
    for model, file in models.items():
        config = load_config(CONFIGS / file)
        for way in WAYS:
            if context.left < 15:
                context.skip(f'largest batch of {model}, {way}: time')
                continue
            largest = context.attempt(f'largest batch of {model}, {way}', _search, context, config, way, crop)
            rows.append([f'{model}, {way}', largest])
            context.results['largest_batch'].append(dict(model=model, way=way, crop=crop, gib=gib, batch=largest))
    torch.cuda.set_per_process_memory_fraction(1.0, context.device)
    if rows:
        context.progress(f'largest batch within {gib} GiB at {crop} x {crop}\n' + text_table(['way', 'images'], rows))


def _search(context, config, way, crop):
    def fits(batch):
        try:
            trial = build(config, way, crop, batch, str(context.device))
            trial.step()
            trial.step()
            return True
        except torch.OutOfMemoryError:
            return False
        finally:
            trial = None
            _free(context)

    low, high = 0, 8
    while fits(high) and high < 1024 and context.left > 10:
        low, high = high, 2 * high
    while high - low > max(1, low // 16) and context.left > 10:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
