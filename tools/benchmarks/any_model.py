"""Models of mmseg as they come, and converted by one line: bytes kept for backward, and by default nothing is run.

Shapes are traced, which takes seconds a model; a model whose shapes depend on values (Mask2Former) runs one forward.
``--steps`` also times steps of each. Models whose package is not installed are named and left out.
"""
import json
import statistics
import time
from pathlib import Path

import torch

from mesa_seg.engine.config import load_config
from mesa_seg.engine.errors import UserError, explained
from mesa_seg.engine.forecast import measure_kept
from mesa_seg.engine.memory import MIB
from mesa_seg.engine.text_table import text_table
from mesa_seg.engine.trial import Trial

# Name in the table: config that comes with mmseg.
MODELS = {
    'SegFormer MiT-B0': 'segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py',
    'Twins-PCPVT-S + FPN': 'twins/twins_pcpvt-s_fpn_fpnhead_8xb4-80k_ade20k-512x512.py',
    'Twins-SVT-S + UPerNet': 'twins/twins_svt-s_uperhead_8xb2-160k_ade20k-512x512.py',
    'DeepLabV3+ R50': 'deeplabv3plus/deeplabv3plus_r50-d8_4xb4-80k_ade20k-512x512.py',
    'ConvNeXt-T + UPerNet': 'convnext/convnext-tiny_upernet_8xb2-amp-160k_ade20k-512x512.py',
    'ViT-B/16 + UPerNet': 'vit/vit_vit-b16_mln_upernet_8xb2-160k_ade20k-512x512.py',
    'Swin-T + UPerNet': 'swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py',
    'Mask2Former Swin-T': 'mask2former/mask2former_swin-t_8xb2-160k_ade20k-512x512.py',
}
WAYS = {'stock': None, 'converted': dict(), 'with leftovers': dict(leftovers=True)}


def add_arguments(parser):
    parser.add_argument('configs', nargs='*', metavar='CONFIG', help='config files, instead of the ones that mmseg comes with')
    parser.add_argument('--crop', type=int, default=256, help='side of the images in pixels (default: %(default)s)')
    parser.add_argument('--batch', type=int, default=2, help='images a step (default: %(default)s)')
    parser.add_argument('--bits', type=int, choices=(8, 4, 2), default=8,
                        help='4 and 2 take the range of each block of 64 values (default: %(default)s)')
    parser.add_argument('--only', metavar='TEXT', help='models with this text in their names')
    parser.add_argument('--classes', type=int, default=10, metavar='N',
                        help='classes in an image, of each of which Mask2Former makes a mask (default: %(default)s, as in '
                        "ADE20K's on average)")
    parser.add_argument('--run', action='store_true', help='run one forward pass instead of tracing shapes')
    parser.add_argument('--steps', type=int, default=0, help='timed steps of each way, interleaved (default: none)')
    parser.add_argument('--seconds', type=float, default=20,
                        help='with --steps: more of them, until all ways together took this long (default: %(default)s)')
    parser.add_argument('--left', action='store_true', help='also list what conversion left as it is, and why')
    parser.add_argument('--by-op', action='store_true', help='also list what is kept by kind of layer')
    parser.add_argument('--json', type=Path, metavar='FILE', help='also write the results to this file')


def _configs(args):
    """dict: name to path of the configs to show."""
    if args.configs:
        chosen = {Path(path).stem: path for path in args.configs}
    else:
        import mmseg
        folder = Path(mmseg.__file__).parent / '.mim/configs'
        if not folder.is_dir():
            raise UserError(f'This mmseg comes without its configs ({folder}): name config files.')
        chosen = {name: folder / path for name, path in MODELS.items()}
    chosen = {name: path for name, path in chosen.items() if not args.only or args.only.lower() in name.lower()}
    if not chosen:
        raise UserError(f'--only {args.only}: no such model; there are {", ".join(MODELS)}.')
    return chosen


def _prepare(way, mesa, conversions):
    if way is None:
        return None

    def prepare(model):
        from mesa_seg.models.any_model import compress
        conversions.append(compress(model, mesa, **way))

    return prepare


def _times(model, args, prepares):
    """Median seconds of a step of each way, the ways interleaved."""
    trials = [Trial(model, args.crop, args.batch, prepare=prepare, classes=args.classes) for prepare in prepares]
    times = [[] for _ in trials]
    for trial in trials:
        trial.step()
    while len(times[0]) < args.steps or sum(map(sum, times)) < args.seconds:
        for trial, seconds in zip(trials, times, strict=True):
            start = time.perf_counter()
            trial.step()
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in times]


def _measure(name, path, args):
    model = load_config(path).model
    mesa = dict(bits=args.bits, **({} if args.bits == 8 else dict(granularity='block')))
    conversions = []
    prepares = [_prepare(way, mesa, conversions) for way in WAYS.values()]
    torch.manual_seed(0)
    reports = [measure_kept(model, args.crop, args.batch, prepare=prepare, classes=args.classes, run=args.run)
               for prepare in prepares]
    done = conversions[0]
    result = dict(model=name, config=str(path), saved_bytes=dict(zip(WAYS, (r.total for r in reports), strict=True)),
                  outside_loss=dict(zip(WAYS, (r.outside_loss for r in reports), strict=True)),
                  converted=len(done.converted), left=done.left)
    if args.by_op:
        result['by_op'] = {way: report.by_kind() for way, report in zip(WAYS, reports, strict=True)}
    if args.steps:
        result['step_s'] = dict(zip(WAYS, _times(model, args, prepares), strict=True))
    return result


def _row(result, args):
    stock, *others = result['saved_bytes'].values()
    row = [result['model'], f'{stock / MIB:.1f}']
    for size in others:
        row += [f'{size / MIB:.1f}', f'{size / stock:.1%}']
    if args.steps:
        first, *rest = result['step_s'].values()
        row += [f'{first:.2f}', *(f'{seconds / first:.2f}' for seconds in rest)]
    return row


def _details(result, args):
    if args.by_op:
        by_op = result['by_op']
        names = dict.fromkeys(name for sizes in by_op.values() for name in sizes)
        rows = [[name, *(f'{sizes.get(name, 0) / MIB:.1f}' for sizes in by_op.values())] for name in names]
        print('\n' + text_table([result['model'], *(f'{way}, MiB' for way in by_op)], rows))
    if args.left and result['left']:
        print(f'\n{result["model"]}: {result["converted"]} modules converted; left as they are:')
        reasons = {}
        for name, reason in result['left'].items():
            reasons.setdefault(reason, []).append(name)
        for reason, names in reasons.items():
            print(f'  {reason}: {names[0]}' + (f' and {len(names) - 1} more' if len(names) > 1 else ''))


def run(args):
    """Print the table.

    Args:
        args (argparse.Namespace): see :func:`add_arguments`.
    """
    for name, value, least in (('--classes', args.classes, 1), ('--steps', args.steps, 0)):
        if value < least:
            raise UserError(f'{name} {value}: expected {least} or more.')
    results, missing = [], {}
    for name, path in _configs(args).items():
        try:
            with explained():
                results.append(_measure(name, path, args))
                if args.steps:  # which takes a while
                    print(f'{name}: measured', flush=True)
        except UserError as error:
            missing[name] = error
        except (ImportError, KeyError, AttributeError, TypeError) as error:  # the others are measured all the same
            missing[name] = f'{type(error).__name__}: {(str(error).strip() or "no reason given").splitlines()[0]}'
    header = ['model', 'stock, MiB', 'converted, MiB', 'ratio', 'and leftovers, MiB', 'ratio']
    if args.steps:
        header += ['stock step, s', 'converted, x', 'and leftovers, x']
    print(f'kept for backward, {args.batch} images of {args.crop}, {args.bits} bits, float32 (each storage once, parameters '
          'and buffers left out)\n')
    print(text_table(header, [_row(result, args) for result in results]))
    for name, reason in missing.items():
        print(f'{name} is left out. {reason}')
    for result in results:
        _details(result, args)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
