"""Make a checkpoint of a run small and fit to share: ``python tools/publish_checkpoint.py IN.pth OUT.pth``.

Keeps the weights, under the names that stock MMSegmentation gives them, and the classes; leaves out the optimiser's state
(two thirds of the file), the config with its paths, and logs. The result loads with ``weights_only=True``, into a Mesa
model and into its stock twin. The first eight digits of its SHA-256 are put into its name.
"""
import argparse
import hashlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

try:
    from mesa_seg import compat
except ImportError as error:  # a package is missing: the message says which, and what to install
    sys.exit(f'error: {error}')

_META = ('dataset_meta', 'epoch', 'iter', 'mmseg_version', 'mmengine_version', 'mesa_seg_version', 'time')


def _plain(value):
    """Containers, numbers and text only; what is neither becomes text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or type(value) in (bool, int, float, str) else str(value)


def publish(source, target):
    """Write the published form of a checkpoint.

    Args:
        source (str): checkpoint of ``tools/train.py``.
        target (str): file to write; ``-<digits>`` is put before its ending.

    Returns:
        str: the file written.

    Raises:
        UserError: no such checkpoint, or one without weights.
    """
    import torch

    from mesa_seg.engine.checks import check_checkpoint, check_work_dir
    from mesa_seg.engine.errors import UserError
    check_checkpoint(source, 'the checkpoint to publish')
    check_work_dir(os.path.dirname(os.path.abspath(target)))
    checkpoint = torch.load(source, map_location='cpu', weights_only=False)
    if not isinstance(checkpoint, dict) or 'state_dict' not in checkpoint:
        raise UserError(f'{source} has no weights (state_dict): it is not a checkpoint of tools/train.py.')
    # Running ranges are no weights. Today's checkpoints hold none; older or foreign ones may.
    weights = {name: value.contiguous().clone() for name, value in checkpoint['state_dict'].items()
               if 'quantizer' not in name.split('.')}
    meta = {key: _plain(value) for key, value in checkpoint.get('meta', {}).items() if key in _META}
    stem, ending = os.path.splitext(target)
    torch.save(dict(meta=meta, state_dict=weights), target)
    with open(target, 'rb') as file:
        digest = hashlib.file_digest(file, 'sha256') if hasattr(hashlib, 'file_digest') else hashlib.sha256(file.read())
    final = f'{stem}-{digest.hexdigest()[:8]}{ending}'
    os.replace(target, final)
    return final


def main(argv=None):
    parser = argparse.ArgumentParser(description='Strip a checkpoint to what others need')
    parser.add_argument('source', metavar='IN.pth', help='checkpoint of tools/train.py')
    parser.add_argument('target', metavar='OUT.pth', help='file to write; digits of its hash are added to the name')
    args = parser.parse_args(argv)
    compat.prepare()
    final = publish(args.source, args.target)
    print(f'{final}: {os.path.getsize(final) / 2**20:.1f} MiB (was {os.path.getsize(args.source) / 2**20:.1f})')


if __name__ == '__main__':
    from mesa_seg.engine.errors import run
    run(main)
