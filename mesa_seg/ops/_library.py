"""How an operator of ``torch.ops.mesa_seg`` comes to be: schema, fake kernel and reference from Python, kernels from the
compiled modules.

Each family's file in this folder states its schemas with :func:`operator`. The compiled modules ``_C`` (CPU) and
``_C_cuda`` add kernels for those names. A device whose module is not there runs the plain-PyTorch reference.
"""
import importlib
import warnings

import torch

_library = torch.library.Library('mesa_seg', 'DEF')
_references = {}

BUILD_HINT = 'build it with `pip install --no-build-isolation -e .` in the project folder (needs a C++ compiler and ninja)'


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


def load_kernels():
    """Load the compiled modules; register the reference for a device that has none, with one warning.

    Returns:
        dict[str, str]: ``'compiled'`` or ``'reference'`` for each of ``'CPU'`` and, on a CUDA build of torch, ``'CUDA'``.
    """
    found = {}
    for key, module, wanted in (('CPU', '_C', True), ('CUDA', '_C_cuda', torch.version.cuda is not None)):
        if not wanted:
            continue
        error = _load(module)
        found[key] = 'reference' if error else 'compiled'
        if error:
            warnings.warn(f'mesa_seg: the compiled operators for {key} are not loaded ({error}); the plain-PyTorch '
                          f'reference runs instead, correct but slow. To have them, {BUILD_HINT}.', stacklevel=3)
            for name, reference in _references.items():
                _library.impl(name, reference, key)
    return found
