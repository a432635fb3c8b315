"""Checks before a job starts: what a user can get wrong is found here, and said in a sentence."""
import inspect
import os
import tempfile

from mmseg.registry import DATASETS

from .errors import UserError

# Where a data set is to be had, by dataset type.
PAGES = {'ADE20KDataset': 'http://sceneparsing.csail.mit.edu (the SceneParsing benchmark, one zip file)'}
TOY = 'python tools/make_toy_dataset.py'


def check_work_dir(folder):
    """Make the work directory and write a file in it.

    Raises:
        UserError: it cannot be made or written.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f'The work directory {os.path.abspath(folder)} cannot be written ({error.strerror}): name '
                        'another by --work-dir.') from error


def check_checkpoint(path, option):
    """Check that a checkpoint file exists; addresses (``http://``, ``s3://``, ...) are left to mmengine.

    Raises:
        UserError: no such file.
    """
    if path and '://' not in path and not os.path.isfile(os.path.expanduser(path)):
        folder = os.path.dirname(os.path.abspath(path))
        there = sorted(name for name in os.listdir(folder) if name.endswith('.pth')) if os.path.isdir(folder) else []
        has = f'its folder holds {", ".join(there[-5:])}' if there else 'its folder holds no .pth file'
        raise UserError(f'There is no checkpoint {os.path.abspath(path)} ({option}): {has}. tools/train.py writes '
                        'checkpoints into its --work-dir.')


def check_pretrained(model):
    """Check that each ``init_cfg`` of a model config names a file that exists, or an address."""
    if isinstance(model, dict):
        init = model.get('init_cfg')
        if isinstance(init, dict) and init.get('type') == 'Pretrained':
            path = init.get('checkpoint')
            if path and '://' not in path and not os.path.isfile(os.path.expanduser(path)):
                raise UserError(f'There is no pretrained checkpoint {os.path.abspath(path)} (init_cfg): name another, or '
                                'go on without by --cfg-options model.backbone.init_cfg=None.')
        for value in model.values():
            check_pretrained(value)


def _datasets(node):
    """The data set configs in a dataset config, wrappers (concatenation, repetition) opened."""
    if isinstance(node, (list, tuple)):
        for item in node:
            yield from _datasets(item)
    elif isinstance(node, dict) and 'data_prefix' in node:
        yield node
    elif isinstance(node, dict):
        yield from _datasets([node[key] for key in ('dataset', 'datasets') if key in node])


def _default(dataset, name, otherwise):
    if name in dataset:
        return dataset[name]
    cls = DATASETS.get(dataset['type'])
    parameter = inspect.signature(cls.__init__).parameters.get(name) if cls else None
    return otherwise if parameter is None else parameter.default


def check_data(dataloader):
    """Check that the folders of a dataloader config exist, hold images, and a label map for each image.

    Raises:
        UserError: names the folder looked for, the page to download from and the command that draws a toy data set.
    """
    for dataset in _datasets((dataloader or {}).get('dataset')):
        root = dataset.get('data_root') or ''
        kind = dataset['type']
        get = f'Download it from {PAGES[kind]}, unpack it there' if kind in PAGES else 'Put the data there'
        toy = f', or draw a toy data set of the same layout: {TOY} {root}' if kind in PAGES else ''
        elsewhere = 'its place is set by data_root, e.g. --cfg-options data_root=FOLDER'
        stems = {}
        for what, key, suffix_key, suffix in (('images', 'img_path', 'img_suffix', '.jpg'),
                                              ('label maps', 'seg_map_path', 'seg_map_suffix', '.png')):
            prefix = dataset['data_prefix'].get(key)
            if prefix is None:
                continue
            folder = os.path.abspath(os.path.join(root, prefix))
            if not os.path.isdir(folder):
                raise UserError(f'The data set {kind} is not there: no folder {folder} ({what}). {get}{toy}; '
                                f'{elsewhere}.')
            suffix = _default(dataset, suffix_key, suffix)
            found = {os.path.join(os.path.relpath(where, folder), name[:-len(suffix)])
                     for where, _, names in os.walk(folder) for name in names if name.endswith(suffix)}
            if not found:
                raise UserError(f'The data set {kind} is not there: the folder {folder} holds no *{suffix} file '
                                f'({what}). {get}{toy}; {elsewhere}.')
            stems[what] = folder, suffix, found
        if len(stems) == 2 and not dataset.get('ann_file'):
            (images, image_suffix, image_stems), (labels, label_suffix, label_stems) = stems.values()
            unlabelled = sorted(image_stems - label_stems)
            if unlabelled:
                name = os.path.normpath(unlabelled[0])
                raise UserError(f'{len(unlabelled)} of the {len(image_stems)} images in {images} have no label map in '
                                f'{labels}: {name}{image_suffix} wants {name}{label_suffix}.')


def check_batch(cfg, processes):
    """Check that UPerNet's (PSPNet's) BatchNorm over a 1 x 1 pooled map sees more than one value a channel.

    Args:
        cfg (Config): the whole config.
        processes (int): how many processes train.

    Raises:
        UserError: one image a step, or one a process where the norm does not reach over processes.
    """
    heads = [head for key in ('decode_head', 'auxiliary_head') for head in _as_list(cfg.model.get(key))]
    batch = (cfg.get('train_dataloader') or {}).get('batch_size')
    for head in heads:
        norm = (head.get('norm_cfg') or {}).get('type', '')
        pools = head.get('pool_scales', (1, ) if head['type'].endswith(('UPerHead', 'PSPHead')) else ())
        if batch != 1 or 'BN' not in norm or 1 not in pools:
            continue
        if processes == 1 or norm != 'SyncBN':
            raise UserError(f'{head["type"]} pools to a 1 x 1 map, over which {norm} has one value a channel with '
                            'train_dataloader.batch_size=1 and cannot train: set it to 2 or more.')


def _as_list(value):
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]
