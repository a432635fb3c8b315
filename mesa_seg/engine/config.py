"""Reading a config file, with ``--cfg-options`` that either take effect or say why they cannot."""
import difflib
import inspect
import os

from mmengine.config import Config, ConfigDict
from mmengine.runner import Runner

from .errors import UserError, explained

# Read by the runner or the tools beside the runner's own arguments.
_ALSO_READ = {'model_wrapper_cfg', 'sync_bn', 'find_unused_parameters', 'compile', 'custom_imports', 'runner_type',
              'tta_model', 'tta_pipeline'}
# Dicts without a `type`, whose keys no constructor checks: the keys that anybody reads, by the dict's own key.
_KEYS_READ = {
    'env_cfg': {'cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'},
    'mp_cfg': {'mp_start_method', 'opencv_num_threads'},
    'test_cfg': {'mode', 'stride', 'crop_size', 'keep_logits', 'type', 'fp16'},
    'data_prefix': {'img_path', 'seg_map_path', 'img_path2', 'depth_map_path'},
    'paramwise_cfg': {'custom_keys', 'lr_mult', 'decay_mult', 'bias_lr_mult', 'bias_decay_mult', 'norm_decay_mult',
                      'flat_decay_mult', 'dwconv_decay_mult', 'dcn_offset_lr_mult', 'bypass_duplicate', 'num_layers',
                      'decay_rate', 'decay_type', 'layer_decay_rate'},
    'auto_scale_lr': {'enable', 'base_batch_size'},
}


def read_keys():
    """Top-level config keys that anybody reads after the file is evaluated.

    Returns:
        set[str]: arguments of mmengine's ``Runner`` and what the tools read beside them.
    """
    return set(inspect.signature(Runner.__init__).parameters) - {'self', 'cfg'} | _ALSO_READ


def _suggest(name, known):
    close = difflib.get_close_matches(name, known, n=1)
    return f'; did you mean `{close[0]}`?' if close else '.'


def _plain(value):
    return value.to_dict() if isinstance(value, ConfigDict) else value


def _uses(cfg, value):
    """Key paths, under the keys that are read, where a value equal to ``value`` stands."""
    found = []

    def walk(node, path):
        if _plain(node) == value and type(_plain(node)) is type(value):
            found.append('.'.join(path))
        elif isinstance(node, (dict, Config)):
            for key in node:
                walk(node[key], (*path, key))
        elif isinstance(node, (list, tuple)):
            for index, item in enumerate(node):
                walk(item, (*path, str(index)))

    for key in sorted(read_keys() & set(cfg)):
        walk(cfg[key], (key, ))
    return found


def _check_nested(cfg, option):
    """Raise for a key path of which the first new key lands where nobody reads it."""
    node, path = cfg, option.split('.')
    for depth, key in enumerate(path):
        if isinstance(node, (list, tuple)):
            if not key.isdigit() or int(key) >= len(node):
                raise UserError(f'--cfg-options {option}: `{".".join(path[:depth])}` is a list of {len(node)} entries; '
                                f'`{key}` is not one of 0..{len(node) - 1}.')
            node = node[int(key)]
        elif isinstance(node, (dict, Config)):
            if key in node:
                node = node[key]
                continue
            parent = path[depth - 1] if depth else ''
            if 'type' not in node and parent in _KEYS_READ and key not in _KEYS_READ[parent]:
                raise UserError(f'--cfg-options {option}: the key does not exist: nobody reads `{key}` in '
                                f'`{".".join(path[:depth])}`{_suggest(key, _KEYS_READ[parent])}')
            return
        else:
            raise UserError(f'--cfg-options {option}: `{".".join(path[:depth])}` is {node!r}, which has no keys.')


def apply_options(cfg, options, tell=None):
    """Merge ``--cfg-options`` into a config.

    A variable of the config file (``data_root``, ``crop_size``, ``mesa``: read by nobody once the file is evaluated) is
    followed to every place that was made from it: a dict, string, list or tuple equal to it under a key that is read.

    Args:
        cfg (Config): changed in place.
        options (dict[str, Any]): key path (``'model.backbone.depths'``) → value.
        tell (callable, optional): called with a sentence for each variable that was followed.

    Raises:
        UserError: a key that nobody reads, with the nearest one that somebody does.
    """
    known = read_keys()
    for option, value in options.items():
        top, _, rest = option.partition('.')
        targets = [option]
        if top not in known:
            if top not in cfg:
                raise UserError(f'--cfg-options {option}: the key does not exist: nobody reads `{top}`'
                                f'{_suggest(top, known | set(cfg))}')
            variable = _plain(cfg[top])
            followed = _uses(cfg, variable) if isinstance(variable, (dict, str, list, tuple)) and variable else []
            if not followed:
                raise UserError(f'--cfg-options {option}: `{top}` is only a variable of the config file, nobody reads '
                                'it once the file is evaluated: set the key that was made from it.')
            targets += [f'{path}.{rest}' if rest else path for path in followed]
            if tell is not None:
                tell(f'--cfg-options {option}={value!r} also sets {", ".join(targets[1:])}')
        for target in targets:
            _check_nested(cfg, target)
        # Not one merge for all: a key may be set twice, by its variable and by its own name, and the later one counts.
        for target in targets:
            cfg.merge_from_dict({target: value})


def load_config(path, options=None, tell=None):
    """Read a config file.

    Args:
        path (str): a config file, Python (or JSON, YAML) in mmengine's notation.
        options (dict[str, Any], optional): overrides, see :func:`apply_options`.
        tell (callable, optional): see :func:`apply_options`.

    Returns:
        Config: with ``custom_imports`` done.

    Raises:
        UserError: no such file, a file that does not evaluate, or an option that nobody reads.
    """
    if not os.path.isfile(path):
        raise UserError(f"There is no config file {os.path.abspath(path)}; the project's own are in configs/.")
    with explained(building=True):
        try:
            cfg = Config.fromfile(path)
        except SyntaxError as error:
            raise UserError(f'The config file {path} is not valid Python: {error}.') from error
        except (NameError, AttributeError) as error:
            raise UserError(f'The config file {path} does not evaluate: {error}.') from error
    apply_options(cfg, options or {}, tell)
    return cfg
