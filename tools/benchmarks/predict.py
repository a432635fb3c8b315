"""Prediction of one image after the other size, stock EncoderDecoder against MesaEncoderDecoder: peak memory and time.

By default the network is a stand-in that costs next to nothing (logits at a fraction of the image's size from one 1 x 1
convolution), so that what is measured is what happens to the logits. With --config it is that config's model. The
peak is that of torch's allocator above the weights and the image. Stock is left out where its logits alone, twice (as
resized to the padded and to the original size), would not fit into the memory that is free.
"""
import json
import statistics
import time
from pathlib import Path

import torch

from mesa_seg.engine.config import load_config
from mesa_seg.engine.errors import UserError
from mesa_seg.engine.memory import MIB
from mesa_seg.engine.peak import PeakMemory
from mesa_seg.engine.text_table import text_table


def add_arguments(parser):
    parser.add_argument('--sizes', type=int, nargs='+', default=[512, 1024, 2048, 4096],
                        help='sides of the square images (default: 512 1024 2048 4096)')
    parser.add_argument('--mode', choices=('whole', 'slide'), default='whole', help='(default: %(default)s)')
    parser.add_argument('--crop', type=int, default=512, help="of 'slide' (default: %(default)s)")
    parser.add_argument('--stride', type=int, default=341, help="of 'slide' (default: %(default)s)")
    parser.add_argument('--classes', type=int, default=150, help='of the stand-in (default: %(default)s)')
    parser.add_argument('--downscale', type=int, default=4,
                        help="of the stand-in's logits; 4 as UPerNet's (default: %(default)s)")
    parser.add_argument('--config', help='measure the model of this config instead of the stand-in')
    parser.add_argument('--repeats', type=int, default=3, help='timed runs of each, after one (default: %(default)s)')
    parser.add_argument('--device', default='cpu', help="'cpu' or 'cuda' (default: %(default)s)")
    parser.add_argument('--json', type=Path, metavar='FILE', help='also write the results to this file')


def _stand_in(classes, downscale):
    """Stock and Mesa model around a backbone that thins the image out."""
    from mmengine.config import ConfigDict
    from mmseg.registry import MODELS

    class Thin(torch.nn.Module):
        def forward(self, x):
            return [x[:, :, ::downscale, ::downscale]]

    MODELS.register_module(name='BenchmarkBackbone', module=Thin, force=True)
    head = dict(type='FCNHead', in_channels=3, channels=3, num_convs=0, concat_input=False, num_classes=classes,
                align_corners=False, init_cfg=None)
    models = {}
    for name, kind in (('stock', 'EncoderDecoder'), ('mesa', 'MesaEncoderDecoder')):
        torch.manual_seed(0)
        models[name] = MODELS.build(ConfigDict(type=kind, backbone=dict(type='BenchmarkBackbone'), decode_head=head,
                                               test_cfg=dict(mode='whole')))
    return models


def _from_config(path):
    from mesa_seg.engine.trial import build_model, stock_twin
    config = load_config(path)
    twin = stock_twin(config.model)
    models = dict(stock=build_model(dict(twin, type='EncoderDecoder'), 512),
                  mesa=build_model(dict(config.model, type='MesaEncoderDecoder'), 512))
    models['mesa'].load_state_dict(models['stock'].state_dict(), strict=False)
    return models


def _free_bytes(device):
    if device.startswith('cuda'):
        return torch.cuda.mem_get_info(device)[0]
    for line in Path('/proc/meminfo').read_text().splitlines():
        if line.startswith('MemAvailable'):
            return int(line.split()[1]) * 1024
    return 1 << 62


def _predict(model, image):
    """Labels of one image, as in the test loop, and the seconds it took."""
    from mmseg.structures import SegDataSample
    shape = tuple(image.shape[2:])
    sample = SegDataSample(metainfo=dict(img_shape=shape, pad_shape=shape, ori_shape=shape))
    if image.is_cuda:
        torch.cuda.synchronize(image.device)
    begin = time.perf_counter()
    with torch.no_grad():
        labels = model.predict(image, [sample])[0].pred_sem_seg.data
    if image.is_cuda:
        torch.cuda.synchronize(image.device)
    return labels, time.perf_counter() - begin


def measure(models, size, args):
    """Predict one image of ``size`` x ``size``.

    Args:
        models (dict[str, nn.Module]): ``stock`` and ``mesa``.
        size (int): side.
        args (argparse.Namespace): options.

    Returns:
        dict: ``size``; ``full_logits_bytes``, one full-size copy; for each model that ran ``peak_bytes`` and ``time_s``;
        ``same_labels``, the share of equal labels, where both ran.
    """
    image = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(size)).to(args.device)
    classes = models['stock'].out_channels
    result = dict(size=size, full_logits_bytes=classes * size * size * 4)
    names = [name for name in models if name != 'stock' or 2.2 * result['full_logits_bytes'] < _free_bytes(args.device)]
    times, labels = {name: [] for name in names}, {}
    for run in range(args.repeats + 1):
        for name in names:
            labels[name] = None
            labels[name], seconds = _predict(models[name], image)
            if run:
                times[name].append(seconds)
    for name in names:
        with PeakMemory(args.device) as peak:
            _predict(models[name], image)
        result[name] = dict(peak_bytes=peak.peak_bytes, time_s=statistics.median(times[name]))
    if len(names) == 2:
        result['same_labels'] = (labels['stock'] == labels['mesa']).float().mean().item()
    return result


def table(results):
    """str: one row a size."""
    def cells(result, name):
        if name not in result:
            return [f'(2 x {result["full_logits_bytes"] / MIB:.0f})', 'not run']
        return [f'{result[name]["peak_bytes"] / MIB:.0f}', f'{result[name]["time_s"]:.3f}']

    rows = []
    for result in results:
        ratio = '' if 'stock' not in result else f'{result["mesa"]["peak_bytes"] / result["stock"]["peak_bytes"]:.3f}'
        speed = '' if 'stock' not in result else f'{result["mesa"]["time_s"] / result["stock"]["time_s"]:.3f}'
        same = '' if 'same_labels' not in result else f'{result["same_labels"]:.5%}'
        rows.append([result['size'], *cells(result, 'stock'), *cells(result, 'mesa'), ratio, speed, same])
    return text_table(['side', 'stock peak, MiB', 'time, s', 'mesa peak, MiB', 'time, s', 'peak ratio', 'time ratio',
                       'same labels'], rows)


def run(args):
    from mmengine.config import ConfigDict
    if args.device.startswith('cuda') and not torch.cuda.is_available():
        raise UserError(f'--device {args.device}: torch finds no CUDA device here.')
    if min(*args.sizes, args.repeats, args.crop, args.stride, args.classes, args.downscale) < 1:
        raise UserError('sizes and counts are at least 1.')
    models = _from_config(args.config) if args.config else _stand_in(args.classes, args.downscale)
    test_cfg = dict(mode='whole')
    if args.mode == 'slide':
        test_cfg = dict(mode='slide', crop_size=(args.crop, args.crop), stride=(args.stride, args.stride))
    for model in models.values():
        model.test_cfg = ConfigDict(test_cfg)
        model.eval().to(args.device)
    results = [measure(models, size, args) for size in args.sizes]
    what = args.config or f'stand-in with {args.classes} classes, logits at 1/{args.downscale}'
    print(f'{what}; {args.mode}, {args.device}, {torch.get_num_threads()} threads; median of {args.repeats}\n')
    print(table(results))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=1))
