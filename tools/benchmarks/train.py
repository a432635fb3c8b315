"""Training steps of configs on generated input, interleaved step by step: bytes kept for backward, peak memory, time.

The first config is the one that the ratios refer to. All start from its weights, with the same input and seed.
"""
import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from mesa_seg.engine import variants
from mesa_seg.engine.config import load_config
from mesa_seg.engine.errors import UserError
from mesa_seg.engine.memory import MIB, KeptForBackward
from mesa_seg.engine.peak import PeakMemory
from mesa_seg.engine.text_table import text_table
from mesa_seg.engine.trial import Trial, conversion_by_hook, override_mesa

AMP = {'bf16': torch.bfloat16, 'fp16': torch.float16}


def add_arguments(parser):
    parser.add_argument('configs', nargs='+', metavar='CONFIG', help='config files, the one to compare with first')
    parser.add_argument('--crop', type=_positive, default=256,
                        help='side of the images in pixels (default: %(default)s)')
    parser.add_argument('--batch', type=_positive, default=2, help='images a step (default: %(default)s)')
    parser.add_argument('--steps', type=_not_negative, default=5,
                        help='timed steps of each config, after one that warms up; 0 measures memory alone (default: '
                        '%(default)s)')
    parser.add_argument('--part', choices=('model', 'backbone'), default='model',
                        help='what to run (default: %(default)s)')
    parser.add_argument('--bits', type=int, choices=(8, 4, 2),
                        help="of Mesa configs: 8 keeps the config's granularity, 4 and 2 take the range of each block "
                        'of 64 values (default: as the configs say)')
    parser.add_argument('--amp', choices=tuple(AMP), help='autocast to this type')
    parser.add_argument('--device', default='cpu', help="'cpu' or 'cuda' (default: %(default)s)")
    parser.add_argument('--with', dest='variants', action='append', default=[], choices=tuple(variants.VARIANTS),
                        metavar='NAME', help='a further row: '
                        + '; '.join(f'{name}: {variant.summary}' for name, variant in variants.VARIANTS.items()))
    parser.add_argument('--by-op', action='store_true', help='also list what is kept by kind of layer')
    parser.add_argument('--grad-error', action='store_true',
                        help="also measure how far the weight gradients are from the first config's, relative in norm, "
                        'mean over 3 seeds (drop path and dropout off)')
    parser.add_argument('--profile', action='store_true', help='also list where the time of a step goes, by op')
    parser.add_argument('--seed', type=int, default=0, help='of weights, input and each step (default: %(default)s)')
    parser.add_argument('--json', type=Path, metavar='FILE', help='also write the results to this file')


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f'expected a positive number, got {text}')
    return value


def _not_negative(text):
    return 0 if text == '0' else _positive(text)


def _rows(args):
    """(label, model, optim_wrapper, prepare) for each row of the table."""
    configs = [load_config(path) for path in args.configs]
    mesa = {} if args.bits is None else dict(bits=args.bits)
    if args.bits in (4, 2):
        mesa.update(granularity='block', block_size=64)
    rows = [(str(path), override_mesa(config.model, **mesa), config.get('optim_wrapper'),
             conversion_by_hook(config, **mesa)) for path, config in zip(args.configs, configs, strict=True)]
    for name in args.variants:
        model, prepare = variants.VARIANTS[name].make([config.model for config in configs])
        rows.append((name, model, configs[0].get('optim_wrapper'), prepare))
    return rows


def _trials(rows, args, seed, deterministic=False):
    trials = []
    for _, model, optim_wrapper, prepare in rows:
        trial = Trial(model, args.crop, args.batch, part=args.part, amp=AMP.get(args.amp), device=args.device,
                      seed=seed, optim_wrapper=optim_wrapper, prepare=prepare)
        if trials:
            _copy_weights(trials[0].segmentor, trial.segmentor)
        if deterministic:
            variants.without_dropping(trial.segmentor)
        trials.append(trial)
    return trials


def _copy_weights(source, target):
    """Give ``target`` the weights of ``source`` where they have the same names and shapes (all of them, for twins)."""
    own = target.state_dict()
    shared = {name: value for name, value in source.state_dict().items()
              if name in own and own[name].shape == value.shape and own[name].dtype == value.dtype}
    target.load_state_dict(shared, strict=False)


def _grad_errors(rows, args):
    """For each row, mean over 3 seeds of |gradient - first row's| / |first row's| over all weights."""
    errors = [[] for _ in rows]
    for seed in range(args.seed, args.seed + 3):
        reference = None
        for trial, found in zip(_trials(rows, args, seed, deterministic=True), errors, strict=True):
            grads, _ = trial.gradients()
            if reference is None:
                reference = grads
            missing = set(reference) ^ set(grads)
            if missing:
                found.append(float('nan'))
                continue
            off = sum(_square(grads[name] - value) for name, value in reference.items())
            found.append((off / sum(_square(value) for value in reference.values()))**0.5)
    return [statistics.mean(found) for found in errors]


def _square(tensor):
    return tensor.double().square().sum().item()


def _profiled(trial):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU] + (
            [torch.profiler.ProfilerActivity.CUDA] if trial.device.type == 'cuda' else [])) as profile:
        trial.step()
    return profile.key_averages()


def measure(rows, args, progress=print):
    """Run the steps.

    Args:
        rows (list): see :func:`_rows`.
        args (argparse.Namespace): options.
        progress (callable): told what goes on.

    Returns:
        list[dict]: one for each row, as ``--json`` writes them.
    """
    trials = _trials(rows, args, args.seed)
    results = []
    for (label, *_), trial in zip(rows, trials, strict=True):
        loss = trial.step()
        progress(f'{label}: warm')
        with KeptForBackward(trial.module, root=trial.root) as watch:
            outputs = trial.forward()
        kept = watch.report(outputs)
        del outputs
        with PeakMemory(trial.device) as peak:
            trial.step(peak.mark)
        results.append(dict(
            config=label, saved_bytes=kept.total, saved_by_part=kept.by_part(), peak_bytes=peak.peak_bytes, step_s=None,
            loss=loss, saved_bytes_outside_loss=kept.outside_loss, saved_by_kind=kept.by_kind(),
            after_forward_bytes=peak.marked_bytes, times_s=[]))
        progress(f'{label}: memory measured')
    for step in range(args.steps):
        for trial, result in zip(trials, results, strict=True):
            begin = _now(trial.device)
            trial.step()
            result['times_s'].append(_now(trial.device) - begin)
        times = ', '.join(f'{result["times_s"][-1]:.2f} s' for result in results)
        progress(f'step {step + 1} of {args.steps}: {times}')
    for result in results:
        result['step_s'] = statistics.median(result['times_s']) if args.steps else None
    if args.profile:
        for (label, *_), trial in zip(rows, trials, strict=True):
            sort = 'self_cuda_time_total' if trial.device.type == 'cuda' else 'self_cpu_time_total'
            progress(f'{label}: time of one step by op\n'
                     + _profiled(trial).table(sort_by=sort, row_limit=30, max_name_column_width=60))
    if args.grad_error:
        del trials
        for result, error in zip(results, _grad_errors(rows, args), strict=True):
            result['grad_error'] = error
    return results


def _now(device):
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
    return time.perf_counter()


def table(results):
    """str: the results beside each other, with ratios to the first."""
    def sizes(name, values):
        cells = [f'{value / MIB:.1f}' for value in values]
        if values[0]:
            cells[1:] = [f'{cell} ({value / values[0]:.1%})' for cell, value in zip(cells[1:], values[1:], strict=True)]
        return [name, *cells]

    def each(key):
        return [result[key] for result in results]

    rows = [sizes('kept for backward, MiB', each('saved_bytes'))]
    for part in dict.fromkeys(part for parts in each('saved_by_part') for part in parts):
        rows.append(sizes(f'  {part}', [parts.get(part, 0) for parts in each('saved_by_part')]))
    rows += [sizes('  outside the loss', each('saved_bytes_outside_loss')),
             sizes('held after forward, MiB', each('after_forward_bytes')),
             sizes('peak of the step, MiB', each('peak_bytes'))]
    times = each('step_s')
    if times[0] is not None:
        rows.append(['time of a step, s', f'{times[0]:.3f}',
                     *(f'{time:.3f} ({time / times[0]:.2f} x)' for time in times[1:])])
    rows.append(['loss at the first step', *(f'{loss:.6f}' for loss in each('loss'))])
    if 'grad_error' in results[0]:
        rows.append(['weight-gradient error', *(f'{error:.2%}' for error in each('grad_error'))])
    return text_table(['', *_short(each('config'))], rows)


def kinds_table(results):
    """str: what is kept by kind of layer."""
    kinds = dict.fromkeys(kind for result in results for kind in result['saved_by_kind'])
    return text_table(['kept by kind of layer, MiB', *_short([result['config'] for result in results])], [
        [kind, *(f'{result["saved_by_kind"].get(kind, 0) / MIB:.2f}' for result in results)] for kind in kinds])


def _short(labels):
    names = [Path(label).stem if label.endswith('.py') else label for label in labels]
    return names if len(set(names)) == len(names) else labels


def run(args):
    if args.device.startswith('cuda') and not torch.cuda.is_available():
        raise UserError(f'--device {args.device}: torch finds no CUDA device here.')
    results = measure(_rows(args), args, progress=lambda text: print(text, flush=True))
    print(f'\n{args.part}, {args.batch} x {args.crop} x {args.crop}, {args.amp or "float32"}, {args.device}, '
          f'{torch.get_num_threads()} threads; '
          + (f'median of {args.steps} steps; ' if args.steps else '') + 'ratios to the first column\n')
    print(table(results))
    if args.by_op:
        print('\n' + kinds_table(results))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=1))
