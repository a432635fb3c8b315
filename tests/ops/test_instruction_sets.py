"""The kernels that choose an instruction set give the same to float32 rounding with each of those that this machine has."""
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mesa_seg.ops import KERNELS, upsample_argmax, upsample_cross_entropy
from mesa_seg.reference.upsample import bilinear_taps, merge_taps


def results():
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 37, 9, 11) * 5, torch.randint(0, 37, (2, 31, 40))
    found = list(upsample_cross_entropy(logits, labels, torch.rand(2, 31, 40), torch.rand(37), 3, False, True, True))
    rows, columns = merge_taps(*bilinear_taps(31, 9, True)), merge_taps(*bilinear_taps(40, 11, False))
    for maps, softmax in (([logits[0]], False), ([logits[0], logits[1]], True)):
        lists = [[part] * len(maps) for axis in (rows, columns) for part in axis]
        found.append(upsample_argmax(maps, *lists, softmax))
    return found


@pytest.mark.skipif(KERNELS['CPU'] != 'compiled', reason='mesa_seg._C is not built')
@pytest.mark.parametrize('level', ['0', '3'])
def test_lower_levels_agree(level, tmp_path):
    path = tmp_path / 'found.pt'
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, '-W', 'ignore', __file__, str(path)], check=True,
                   env={**os.environ, 'MESA_SEG_CPU_LEVEL': level, 'PYTHONPATH': str(root)})
    found, expected = torch.load(path), results()
    for one, other in zip(found[:3], expected[:3], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * other.abs().max().item())
    for one, other in zip(found[3:], expected[3:], strict=True):
        assert (one == other).float().mean() > 0.999


if __name__ == '__main__':
    torch.save(results(), sys.argv[1])
