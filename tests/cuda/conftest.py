"""Runs a test of CUDA operators twice: through the emulator, and on a GPU where there is one.

With MESA_EMU_SANITIZE=1 and the address sanitiser preloaded (``make test-cuda`` does both) the emulated kernels end the
run at the first access outside a tensor.
"""
import os

import pytest
import torch

from tests.emu import emulated


class Device:
    """Where the operators under test run. ``ops``: their namespace; ``put``: a tensor to that device, layout kept."""

    def __init__(self, name, ops):
        self.name, self.ops = name, ops

    def put(self, x):
        if self.name == 'emulated' or not isinstance(x, torch.Tensor):
            return x
        # Tensor.to() would make some layouts contiguous: copy the whole storage, then take the same view of it.
        whole = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
        return whole.cuda().as_strided(x.shape, x.stride(), x.storage_offset())

    def call(self, operator, *args):
        out = getattr(self.ops, operator)(*map(self.put, args))
        return tuple(t.cpu() for t in out) if isinstance(out, tuple) else out if out is None else out.cpu()

    def orders(self, monkeypatch, count=3):
        """Yields once for each thread order to try: the emulator's seeds; a GPU has its own order, once."""
        for seed in range(count if self.name == 'emulated' else 1):
            monkeypatch.setenv('MESA_EMU_SEED', str(seed * 7919))
            yield seed

    def limit_grid(self, monkeypatch, blocks):
        monkeypatch.setenv('MESA_EMU_MAX_GRID', str(blocks))


@pytest.fixture(scope='session', params=['emulated', pytest.param('gpu', marks=pytest.mark.cuda)])
def device(request):
    if request.param == 'emulated':
        if emulated.compiler() is None:
            pytest.skip('no C++ compiler for the emulator')
        return Device('emulated', emulated.load(sanitize=os.environ.get('MESA_EMU_SANITIZE') == '1'))
    if not torch.cuda.is_available():
        pytest.skip('no CUDA device')
    from mesa_seg.ops import KERNELS
    if KERNELS.get('CUDA') != 'compiled':
        pytest.skip('mesa_seg._C_cuda is not built')
    return Device('gpu', torch.ops.mesa_seg)
