"""How an operator of ``torch.ops.mesa_seg`` comes to be: schema, fake kernel and reference from Python, kernels from
the compiled modules.

Each family's file in this folder states its schemas with :func:`operator`. The compiled modules ``_C`` (CPU) and
``_C_cuda`` add kernels for those names. A device whose module is not there, and an operator that the module at hand
has no kernel for, run the plain-PyTorch reference. ``MESA_SEG_BACKEND=reference`` in the environment asks for the
reference everywhere, and loads no compiled module.
"""
import importlib
import os
import warnings

import torch

_library = torch.library.Library('mesa_seg', 'DEF')
_references = {}

BUILD_HINT = ('build it with `pip install --no-build-isolation -e .` in the project folder (needs a C++ compiler and '
              'ninja)')


def operator(schema, *, reference, fake):
    """Define ``torch.ops.mesa_seg.<name>`` and return it.

    Args:
        schema (str): schema in torch's notation, without the namespace.
        reference (callable): the same operator in plain PyTorch, run on devices that have no compiled kernel.
        fake (callable): shapes and dtypes of the outputs, for ``torch.compile`` and ``opcheck``.
    """
    name = schema.partition('(')[0]
    _library.define(schema)
    torch.library.register_fake(f'mesa_seg::{name}', fake, lib=_library)
    _references[name] = reference
    return getattr(torch.ops.mesa_seg, name)


def _load(module):
    try:
        importlib.import_module(f'mesa_seg.{module}')
    except ImportError as error:
        return error
    return None


def _without_kernel(key):
    return [name for name in _references
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f'mesa_seg::{name}', key)]


def load_kernels():
    """Load the compiled modules; register the reference wherever they leave an operator without a kernel.

    A module that cannot be loaded gives one warning that says how to build it; a module that lacks operators (built
    from older sources) gives one warning that names them.

    Returns:
        dict[str, str]: ``'compiled'`` or ``'reference'`` for ``'CPU'`` and, on a CUDA build of torch, ``'CUDA'``.
    """
    backend = os.environ.get('MESA_SEG_BACKEND', 'auto')
    if backend not in ('auto', 'reference'):
        raise ValueError(f'MESA_SEG_BACKEND={backend!r}: expected auto or reference')
    found = {}
    for key, module, wanted in (('CPU', '_C', True), ('CUDA', '_C_cuda', torch.version.cuda is not None)):
        if not wanted:
            continue
        error = None if backend == 'reference' else _load(module)
        found[key] = 'reference' if error or backend == 'reference' else 'compiled'
        missing = _without_kernel(key)
        for name in missing:
            _library.impl(name, _references[name], key)
        if error:
            warnings.warn(f'mesa_seg: the compiled operators for {key} are not loaded ({error}); the plain-PyTorch '
                          f'reference runs instead, correct but slow. To have them, {BUILD_HINT}.', stacklevel=3)
        elif missing and backend == 'auto':
            warnings.warn(f'mesa_seg: the compiled module mesa_seg.{module} has no {key} kernel for '
                          f'{", ".join(missing)}; the plain-PyTorch reference runs instead for these, correct but '
                          f'slow. The module is older than the sources: {BUILD_HINT}.', stacklevel=3)
    return found
