"""Mistakes of a user end in one sentence, not in a traceback."""
import os
import re
import sys
import traceback
from contextlib import contextmanager
from urllib.error import URLError

from ..compat import how_to_install

TRACEBACK = 'MESA_SEG_TRACEBACK'


class UserError(Exception):
    """A mistake that its user can put right; the message is one sentence that says how."""


def _sentence(error, cfg):
    """The sentence for an error that mmengine or torch raises while a job runs; None for one we cannot explain."""
    text = str(error.args[0]) if error.args else str(error)
    if isinstance(error, (URLError, ConnectionError, TimeoutError)):
        address = getattr(error, 'url', None) or _pretrained(cfg.get('model')) or 'a file'
        reason = getattr(error, 'reason', None) or error
        return (f'{address} could not be downloaded ({reason}): go on without '
                'pretrained weights by --cfg-options model.backbone.init_cfg=None, or fetch the file elsewhere and name '
                'it by --cfg-options model.backbone.init_cfg.checkpoint=FILE.')
    unexpected = re.search(r"(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(\w+)'", text)
    if isinstance(error, TypeError) and unexpected and unexpected[1] == 'BaseModule' and re.search(r'mask2?former_head', text):
        # mmseg's stand-in for mmdet's heads
        return ('A head of the config is one of mmdet, and mmdet or a package that it needs is not installed: '
                f'`{how_to_install("mmdet")}` brings both.')
    if isinstance(error, TypeError) and unexpected:
        return f'The config sets a key that does not exist: {unexpected[1]} has no argument `{unexpected[2]}`.'
    if isinstance(error, ImportError) and text.startswith('Failed to import custom modules'):
        while str(error).startswith('Failed to import') and (error.__cause__ or error.__context__):  # mmengine's own
            error = error.__cause__ or error.__context__
        command = how_to_install(getattr(error, 'name', None))
        return f"The config's custom_imports fail: {error}" + (f'; `{command}` brings it.' if command else '.')
    absent = re.match(r'(\S+) is not in the (\S+) registry', text)
    if isinstance(error, KeyError) and absent:
        return f'The config names the type `{absent[1]}`, which does not exist in the registry {absent[2]}.'
    if isinstance(error, ValueError) and 'Expected more than 1 value per channel' in text:
        return ('One image a step is too few for a BatchNorm over a 1 x 1 map (the pooling of UPerNet and PSPNet): set '
                'train_dataloader.batch_size to 2 or more.')
    return None


def _pretrained(node):
    if isinstance(node, dict):
        found = node.get('init_cfg')
        if isinstance(found, dict) and '://' in str(found.get('checkpoint')):
            return found['checkpoint']
        return next(filter(None, map(_pretrained, node.values())), None)
    return None


@contextmanager
def explained(cfg=None, building=False):
    """Turn the errors that a user can cause into :class:`UserError`; let all others through.

    Args:
        cfg (dict, optional): the config in use, for the messages.
        building (bool): objects are being built from the config, so that a refusal of any constructor is the config's
            mistake: its message becomes the sentence.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        sentence = _sentence(error, cfg or {})
        if sentence is None and building and isinstance(error, (
                TypeError, ValueError, KeyError, AssertionError, ImportError, OSError)):
            text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
            sentence = f'The config cannot be built: {text or type(error).__name__}'
        if sentence is None:
            raise
        raise UserError(sentence) from error


def run(main):
    """Run a tool's ``main()``; on a :class:`UserError` or a missing package print its sentence and exit with 1.

    With the environment variable ``MESA_SEG_TRACEBACK=1`` the traceback is printed too.
    """
    try:
        main()
    except (UserError, ImportError) as error:
        if isinstance(error, ImportError) and not str(error).startswith('mesa_seg'):
            raise
        if os.environ.get(TRACEBACK, '0') not in ('', '0'):
            traceback.print_exc()
        rank = os.environ.get('RANK') or os.environ.get('SLURM_PROCID')
        print(f'error{f" (process {rank})" if rank else ""}:', *str(error).split(), file=sys.stderr)
        sys.exit(1)
    from .distributed import leave  # needs this module, and mmengine, which main() has found by now
    leave()
