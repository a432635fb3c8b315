"""Tell what each layer of a config's model keeps for backward, and what stock keeps there, and draw both.

Nothing is run: shapes are traced, which needs neither the memory nor the time of a step (``--run`` does run one forward, and
so does a model whose shapes depend on values). A config without Mesa is shown as ``MesaConversionHook`` would convert it.
"""
import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402

from mesa_seg import compat  # noqa: E402

compat.prepare()

from mesa_seg.engine.config import load_config  # noqa: E402
from mesa_seg.engine.errors import run  # noqa: E402
from mesa_seg.engine.forecast import measure_kept  # noqa: E402
from mesa_seg.engine.memory import MIB  # noqa: E402
from mesa_seg.engine.text_table import text_table  # noqa: E402
from mesa_seg.engine.trial import build_model, conversion_by_hook, stock_twin  # noqa: E402

SHOWN = 0.005 * MIB  # what is less is left out
AMP = {'bf16': torch.bfloat16, 'fp16': torch.float16}


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file')
    parser.add_argument('--crop', type=int, help="side of the images in pixels (default: the config's)")
    parser.add_argument('--batch', type=int, help="images a step (default: the config's for one device)")
    parser.add_argument('--amp', choices=tuple(AMP), help='autocast to this type')
    parser.add_argument('--classes', type=int, default=10, metavar='N',
                        help='classes in an image, of each of which Mask2Former makes a mask (default: %(default)s)')
    parser.add_argument('--run', action='store_true', help='run one forward pass instead of tracing shapes')
    parser.add_argument('--depth', type=int, help='sum up layers below this many names (default: every layer)')
    parser.add_argument('--picture', type=Path, metavar='FILE', default=Path('work_dirs/memory_report.png'),
                        help='where to draw, .png, .pdf or .svg (default: %(default)s)')
    return parser.parse_args(argv)


def held_as(tensors):
    """str: in words, how a layer's tensors are kept: ``'codes'`` and ``'masks'`` are the compressed ones."""
    sums = {}
    for kept in tensors:
        if kept.dtype is torch.uint8:
            form = 'codes'
        elif kept.dtype.is_floating_point:
            form = 'exact'
        else:
            form = str(kept.dtype).removeprefix('torch.')
        sums[form] = sums.get(form, 0) + kept.nbytes
    return ', '.join(f'{form} {size / MIB:.2f}' for form, size in sorted(sums.items(), key=lambda item: -item[1])
                     if size >= SHOWN)


def why_exact(tensors):
    """str: why a layer's tensors of no small size are exact, where conversion had no part in it."""
    exact = {kept.layer_type for kept in tensors if kept.dtype.is_floating_point and kept.nbytes >= SHOWN}
    own = sorted(name for name in exact if not name.startswith('Mesa'))
    return f'code of {", ".join(own)} itself, no module (leftovers=True sees it)' if own and own == sorted(exact) else ''


def layer_table(kept, stock, reasons, depth=None):
    """Rows of layers: bytes here and in stock, how they are held, and why what is exact was left so.

    Args:
        kept, stock (KeptReport): of the model and of its stock twin.
        reasons (dict[str, str]): why conversion left a module alone, by its name.
        depth (int | None): how many components of a layer's name to tell apart.

    Returns:
        str
    """
    def name(tensor):
        return '.'.join(tensor.layer.split('.')[:depth]) or '(model)'

    layers = {}
    for side, report in enumerate((stock, kept)):
        for tensor in report.tensors:
            layers.setdefault(name(tensor), ([], []))[side].append(tensor)
    order = list(dict.fromkeys(name(tensor) for tensor in stock.tensors))
    for layer in layers:
        if layer not in order:  # a module that does the work of those inside it stands before them
            inside = (place for place, other in enumerate(order) if other.startswith(layer + '.'))
            order.insert(next(inside, len(order)), layer)
    rows = []
    for layer in order:
        there, here = (sum(tensor.nbytes for tensor in side) for side in layers[layer])
        reason = reasons.get(layer, '') or why_exact(layers[layer][1])
        if max(here, there) < SHOWN and not reason:
            continue
        types = dict.fromkeys(tensor.layer_type.removeprefix('Mesa') for side in layers[layer] for tensor in side)
        rows.append([layer, ', '.join(types) if len(types) < 3 else f'{len(types)} types', f'{there / MIB:.2f}',
                     f'{here / MIB:.2f}', held_as(layers[layer][1]), reason])
    rows += [None, ['sum', '', f'{stock.total / MIB:.2f}', f'{kept.total / MIB:.2f}', held_as(kept.tensors), '']]
    return text_table(['layer', 'type', 'stock, MiB', 'kept, MiB', 'held as, MiB', 'left exact because'], rows)


def stage(tensor):
    """str: where a kept tensor stands in the picture, such as ``'backbone.stages.2'`` or ``'decode_head'``."""
    parts = tensor.layer.split('.')
    if tensor.part != 'backbone':
        return tensor.part
    numbered = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    return 'backbone.' + '.'.join(parts[1:numbered + 1] if numbered else parts[1:2])


def draw(kept, stock, path, title):
    """Draw two stacked bars for each stage, stock and this model, coloured by kind of layer.

    Args:
        kept, stock (KeptReport): of the model and of its stock twin.
        path (Path): file to write.
        title (str): above the picture.
    """
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot
    totals = dict(stock.by_kind())
    for kind, size in kept.by_kind().items():
        totals[kind] = totals.get(kind, 0) + size
    kinds = [kind for kind, size in sorted(totals.items(), key=lambda item: -item[1]) if size > 0.003 * stock.total]
    stages = list(dict.fromkeys(stage(tensor) for tensor in stock.tensors + kept.tensors))
    sizes = {}
    for side, report in enumerate((stock, kept)):
        for tensor in report.tensors:
            key = side, stage(tensor), tensor.kind if tensor.kind in kinds else 'other'
            sizes[key] = sizes.get(key, 0) + tensor.nbytes / MIB
    shown = 0.003 * stock.total / MIB
    stages = [name for name in stages if sum(size for key, size in sizes.items() if key[1] == name) > shown]
    figure, axes = pyplot.subplots(figsize=(max(7, 1.1 * len(stages) + 3), 5), layout='constrained')
    colours = pyplot.get_cmap('tab20').colors
    for side, (shift, hatch) in enumerate(((-0.21, None), (0.21, '//'))):
        base = [0.0] * len(stages)
        for place, kind in enumerate([*kinds, 'other']):
            heights = [sizes.get((side, name, kind), 0) for name in stages]
            axes.bar([i + shift for i in range(len(stages))], heights, 0.38, base, color=colours[place % len(colours)],
                     hatch=hatch, edgecolor='white', linewidth=0.4, label=None if side else kind)
            base = [a + b for a, b in zip(base, heights, strict=True)]
        for i, height in enumerate(base):
            text = f'{height:.0f}' if height >= 10 else f'{height:.1f}'
            axes.text(i + shift, height, text, ha='center', va='bottom', fontsize=8)
    axes.set_xticks(range(len(stages)), [name.replace('backbone.', 'backbone\n') for name in stages], fontsize=8)
    axes.set_ylabel('kept for backward, MiB')
    axes.set_title(f'{title}\nleft of each pair: stock, {stock.total / MIB:.1f} MiB; right, hatched: this config, '
                   f'{kept.total / MIB:.1f} MiB ({kept.total / stock.total:.1%})', fontsize=10)
    axes.spines[['top', 'right']].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main(argv=None):
    args = parse_args(argv)
    config = load_config(args.config)
    crop = args.crop or config.get('crop_size') or (config.model.get('data_preprocessor') or {}).get('size') or 512
    crop = crop if isinstance(crop, int) else tuple(crop)
    batch = args.batch or (config.get('train_dataloader') or {}).get('batch_size') or 2
    twin, convert = stock_twin(config.model), conversion_by_hook(config)
    settings = dict(amp=AMP.get(args.amp), classes=args.classes, run=args.run)
    stock = measure_kept(twin, crop, batch, **settings)
    if convert is None and twin == config.model.to_dict():
        from mesa_seg.models.any_model import compress as convert
        print('This config has no Mesa: it is shown as `custom_hooks = [dict(type="MesaConversionHook")]` converts it.\n')
    kept = measure_kept(config.model, crop, batch, prepare=convert, **settings)
    print(f'{args.config}: kept for backward, {batch} images of {crop}, {args.amp or "float32"} (each storage once, '
          'parameters and buffers left out)\n')
    print(layer_table(kept, stock, left_alone(config.model, crop, convert), args.depth))
    from mesa_seg.engine.hooks.memory_report import comparison
    print('\n' + comparison(kept, stock))
    draw(kept, stock, args.picture, Path(args.config).stem)
    print(f'\npicture: {args.picture}')


def left_alone(model, crop, convert=None):
    """Reasons for which conversion left modules as they are.

    Args:
        model (dict): ``model`` of a config.
        crop (int | tuple[int, int]): side of the images, or height and width.
        convert (callable | None): converts the whole model, and returns what it did.

    Returns:
        dict[str, str]: module name → reason.
    """
    segmentor = build_model(model, crop)
    reasons = {} if convert is None else dict(convert(segmentor).left)
    for name, module in segmentor.named_modules():
        conversion = getattr(module, 'mesa_conversion', None)
        if conversion is not None:
            reasons.update({'.'.join(filter(None, (name, left))): reason for left, reason in conversion.left.items()})
    return reasons


if __name__ == '__main__':
    run(main)
