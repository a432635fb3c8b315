"""What MMSegmentation's two families of releases need in order to run on today's torch and Python.

OpenMMLab's own packages (``mmengine``, ``mmcv`` or ``mmcv-lite``, ``mmsegmentation``) and the maintained forks
(``onedl-mmengine``, ``onedl-mmcv``, ``onedl-mmsegmentation``) install under the same import names. :func:`prepare`
finds out which family is there and adds what it lacks, and nothing where nothing is lacking: the forks get no change at
all. It must run before the first ``import mmseg``, and does when ``mesa_seg`` is imported.
"""
import importlib.util
import os
import pkgutil
import sys
import types
from importlib import metadata
from importlib.machinery import ModuleSpec

import torch

IMPORT_NAMES = ('mmengine', 'mmcv', 'mmseg')
# For each family and import name, the distributions that provide it, the recommended one last.
DISTRIBUTIONS = {
    'openmmlab': {'mmengine': ('mmengine-lite', 'mmengine'),
                  'mmcv': ('mmcv', 'mmcv-lite'),
                  'mmseg': ('mmsegmentation', )},
    'onedl': {'mmengine': ('onedl-mmengine', ),
              'mmcv': ('onedl-mmcv', ),
              'mmseg': ('onedl-mmsegmentation', )},
}
INSTALL = {
    'openmmlab': 'pip install mmengine==0.10.7 mmcv-lite==2.1.0 mmsegmentation==1.2.2 ftfy regex "setuptools<81"',
    'onedl': 'pip install onedl-mmengine onedl-mmcv onedl-mmsegmentation',
}

# Packages that some of mmseg's configs import, by family: what pip knows them as.
OPTIONAL = {'mmdet': {'openmmlab': 'mmdet', 'onedl': 'onedl-mmdetection'},
            'mmpretrain': {'openmmlab': 'mmpretrain', 'onedl': 'onedl-mmpretrain'}}


def how_to_install(package):
    """The command that installs an optional package, with all it needs, for the family that is there.

    Args:
        package (str): import name.

    Returns:
        str | None: ``'pip install ...'``; ``None`` for a package that is none of :data:`OPTIONAL`.
    """
    names = OPTIONAL.get(package)
    return names and f'pip install {names.get(find_family(), package)}'


def installed(family):
    """Distributions of one family that are installed.

    Args:
        family (str): ``'openmmlab'`` or ``'onedl'``.

    Returns:
        dict[str, str]: distribution name → version, in the order mmengine, mmcv, mmseg.
    """
    found = {}
    for names in DISTRIBUTIONS[family].values():
        for name in names:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
    return found


def find_family():
    """Name the family of MMSegmentation packages that is installed.

    Returns:
        str: ``'openmmlab'``, ``'onedl'``, or ``'unknown'`` where all three packages can be imported but were not
        installed by pip (a source tree on the path).

    Raises:
        ImportError: packages of both families are installed, or a package is missing. The message says what to do.
    """
    both = {family: installed(family) for family in DISTRIBUTIONS}
    if all(both.values()):
        listed = ' and '.join(f'{family} ({", ".join(found)})' for family, found in both.items())
        every = ' '.join(name for found in both.values() for name in found)
        raise ImportError(
            f'mesa_seg: packages of two families with the same import names are installed: {listed}. They overwrite '
            f"each other's files. Uninstall both (pip uninstall -y {every}), then install one: "
            f'`{INSTALL["openmmlab"]}` or `{INSTALL["onedl"]}`.')
    missing = [name for name in IMPORT_NAMES if importlib.util.find_spec(name) is None]
    family = next((family for family, found in both.items() if found), 'unknown')
    if missing and family == 'unknown':
        raise ImportError(
            f'mesa_seg needs MMSegmentation, and {", ".join(missing)} cannot be imported. Install OpenMMLab\'s own '
            f'packages (`{INSTALL["openmmlab"]}`) or the maintained forks (`{INSTALL["onedl"]}`), one of the two.')
    if missing:
        wanted = ' '.join(DISTRIBUTIONS[family][name][-1] for name in missing)
        raise ImportError(f'mesa_seg needs {", ".join(missing)} beside {", ".join(both[family])}: '
                          f'`pip install {wanted}`, or all at versions known to fit: `{INSTALL[family]}`.')
    return family


def _restore_find_loader():
    """mmengine 0.10.7 and mmcv 2.1.0 call ``pkgutil.find_loader``, which Python 3.14 removed."""
    if hasattr(pkgutil, 'find_loader'):
        return False

    def find_loader(fullname):
        spec = importlib.util.find_spec(fullname)
        return spec and spec.loader

    pkgutil.find_loader = find_loader
    return True


def _stub_mmcv_ext():
    """``mmseg`` 1.2.2 imports ``mmcv.ops`` always, for which ``mmcv-lite`` has no compiled ``mmcv._ext``.

    The stub lets the import through; an operator of it raises when called. Its spec has no loader, so that mmengine's
    own check for the full mmcv still says no.
    """
    name = 'mmcv._ext'
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        return False
    stub = types.ModuleType(name, 'Stands in for the compiled operators of the full mmcv.')
    stub.__spec__ = ModuleSpec(name, loader=None)

    def __getattr__(operator):
        if operator.startswith('__'):
            raise AttributeError(f'module {name!r} has no attribute {operator!r}')

        def missing(*args, **kwargs):
            raise NotImplementedError(f'mmcv operator {operator!r} is compiled code of the full mmcv package; '
                                      'mmcv-lite is installed, which has none')

        return missing

    stub.__getattr__ = __getattr__
    sys.modules[name] = stub
    return True


def _load_whole_checkpoints():
    """torch >= 2.6 loads weights only unless told otherwise; mmengine 0.10.7's checkpoints also hold its own objects.

    A checkpoint file can run code when it is loaded so: resume from files you trust only.
    """
    from mmengine.runner import checkpoint
    local = checkpoint.load_from_local
    names = local.__code__.co_names + tuple(str(constant) for constant in local.__code__.co_consts)
    torch_version = tuple(int(part) for part in torch.__version__.split('+')[0].split('.')[:2])
    if torch_version < (2, 6) or 'load' not in names or 'weights_only' in ''.join(names):
        return False

    def load_from_local(filename, map_location):
        filename = os.path.expanduser(filename)
        if not os.path.isfile(filename):
            raise FileNotFoundError(f'{filename} can not be found.')
        return torch.load(filename, map_location=map_location, weights_only=False)

    checkpoint.load_from_local = load_from_local
    checkpoint.CheckpointLoader.register_scheme(prefixes='', loader=load_from_local, force=True)
    return True


_prepared = None


def prepare():
    """Check the installed family and add what it lacks. Cheap when called again.

    Returns:
        dict: ``family`` (str) and ``shims`` (list[str], the names of those that were needed:
        ``'pkgutil.find_loader'``, ``'mmcv._ext'``, ``'torch.load'``).

    Raises:
        ImportError: see :func:`find_family`.
    """
    global _prepared
    if _prepared is None:
        family = find_family()
        shims = []
        if family != 'onedl':
            for name, act in (('pkgutil.find_loader', _restore_find_loader), ('mmcv._ext', _stub_mmcv_ext),
                              ('torch.load', _load_whole_checkpoints)):
                if act():
                    shims.append(name)
        _prepared = dict(family=family, shims=shims)
    return _prepared
