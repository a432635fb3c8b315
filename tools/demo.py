"""Draw a data set, train UPerNet + Mesa-Swin-T on it, and show what came out: ``python tools/demo.py``."""
import argparse
import os
import sys
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

try:
    from mesa_seg import compat
except ImportError as error:  # a package is missing: the message says which, and what to install
    sys.exit(f'error: {error}')


def parse(argv=None):
    parser = argparse.ArgumentParser(description='Train on drawn scenes for a few minutes and show the result')
    parser.add_argument('--config', default=str(ROOT / 'configs' / 'demo.py'), help='default configs/demo.py')
    parser.add_argument('--data', default='data/toy_ade20k', help='folder of the drawn data set; default %(default)s')
    parser.add_argument('--work-dir', default='work_dirs/demo', help='folder for all results; default %(default)s')
    parser.add_argument('--iterations', type=int, help='training iterations; default: those of the config')
    parser.add_argument('--images', type=int, default=20, help='validation images drawn; default %(default)s')
    return parser.parse_args(argv)


def draw_predictions(runner, path, count=4):
    """Write a picture with a row of image, label and prediction for each of some validation images.

    Args:
        runner (mmengine.runner.Runner): trained.
        path (str): PNG file to write.
        count (int): rows.
    """
    import numpy as np
    import torch
    from PIL import Image, ImageDraw

    dataset = runner.val_dataloader.dataset
    palette = np.zeros((256, 3), np.uint8)
    palette[:len(dataset.metainfo['palette'])] = dataset.metainfo['palette']
    model = runner.model.eval()
    rows = []
    for index in range(min(count, len(dataset))):
        data = dataset[index]
        with torch.no_grad():
            sample = model.test_step(dict(inputs=[data['inputs']], data_samples=[data['data_samples']]))[0]
        image = np.asarray(Image.open(sample.img_path).convert('RGB'))
        label, predicted = (field.data[0].cpu().numpy() for field in (sample.gt_sem_seg, sample.pred_sem_seg))
        rows.append(np.concatenate([image, palette[label], palette[predicted]], axis=1))
    height, width = rows[0].shape[:2]
    title = 18
    picture = Image.new('RGB', (width, title + height * len(rows)), 'white')
    for column, text in enumerate(('image', 'label (black: other)', 'prediction')):
        ImageDraw.Draw(picture).text((column * width // 3 + 4, 3), text, fill='black')
    for row, pixels in enumerate(rows):
        picture.paste(Image.fromarray(pixels), (0, title + row * height))
    picture.save(path)


def main(argv=None):
    started = time.perf_counter()
    for package in ('torch', 'mmcv', 'mmengine', 'mmseg'):  # their own deprecations are not this demo's news
        warnings.filterwarnings('ignore', module=package)
    compat.prepare()
    args = parse(argv)

    from mmengine.runner import Runner
    from mmseg.utils import register_all_modules

    from mesa_seg.data.toy import write_dataset
    from mesa_seg.engine import checks
    from mesa_seg.engine.config import load_config
    from mesa_seg.engine.errors import UserError, explained
    from mesa_seg.engine.hooks import MemoryReportHook, ProgressHook
    from mesa_seg.engine.hooks.memory_report import comparison

    checks.check_work_dir(args.work_dir)
    print(f'1. Drawing scenes in the layout of ADE20K into {args.data}')
    try:
        write_dataset(args.data, val=args.images, classes=13)
    except (ValueError, OSError) as error:
        raise UserError(f'{error}.') from error

    register_all_modules(init_default_scope=False)
    options = {'data_root': args.data, 'log_level': 'ERROR', 'work_dir': args.work_dir}
    if args.iterations:
        options.update(dict.fromkeys(('train_cfg.max_iters', 'train_cfg.val_interval', 'param_scheduler.1.end',
                                      'default_hooks.checkpoint.interval'), args.iterations))
        options.update(dict.fromkeys(('param_scheduler.0.end', 'param_scheduler.1.begin'), max(1, args.iterations // 12)))
    cfg = load_config(args.config, options)
    with explained(cfg, building=True):
        runner = Runner.from_cfg(cfg)
    hooks = {type(hook): hook for hook in runner.hooks}
    progress, memory = hooks[ProgressHook], hooks[MemoryReportHook]
    crop = 'x'.join(map(str, cfg.model.data_preprocessor.size))
    print(f'2. Training {os.path.relpath(args.config)} from scratch: {cfg.train_cfg.max_iters} iterations of '
          f'{cfg.train_dataloader.batch_size} crops of {crop}, then validating on {args.images} images')
    with explained(cfg):
        runner.train()

    picture = os.path.join(args.work_dir, 'predictions.png')
    draw_predictions(runner, picture)
    first, last = (sum(part) / len(part) for part in (progress.losses[:5], progress.losses[-5:]))
    print(f'   loss {first:.2f} at the start (mean of 5 iterations), {last:.2f} at the end; validation: pixel accuracy '
          f'{progress.metrics["aAcc"]:.1f} %, mIoU {progress.metrics["mIoU"]:.1f}')
    print('3. Memory kept for the backward pass in one iteration, with Mesa and in stock MMSegmentation (MiB)')
    print(comparison(memory.kept, memory.stock_kept))
    print('4. Where everything is')
    for what, where in (('drawn data set', args.data), ('image | label | prediction', picture),
                        ('checkpoint', os.path.join(args.work_dir, f'iter_{cfg.train_cfg.max_iters}.pth')),
                        ('config', args.config),
                        ('losses and metrics', os.path.join(runner.log_dir, 'vis_data', 'scalars.json'))):
        inside = os.path.abspath(where).startswith(os.getcwd() + os.sep)
        print(f'   {what:<27} {os.path.relpath(where) if inside else os.path.abspath(where)}')
    print(f'   Done in {time.perf_counter() - started:.0f} s. Next: python tools/train.py --help, and README.md on '
          'training on the real ADE20K.')


if __name__ == '__main__':
    from mesa_seg.engine.errors import run
    run(main)
