import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from mesa_seg import convert


def pair(cls, **settings):
    stock = nn.BatchNorm2d(32, **settings)
    nn.init.uniform_(stock.weight) if stock.affine else None
    mesa = cls(32, **settings)
    mesa.load_state_dict(stock.state_dict())
    convert(mesa)
    return stock, mesa


@pytest.mark.parametrize('cls', [nn.BatchNorm2d, nn.SyncBatchNorm])
@pytest.mark.parametrize('settings', [{}, dict(momentum=None), dict(affine=False), dict(track_running_stats=False)], ids=str)
@pytest.mark.parametrize('layout', [torch.contiguous_format, torch.channels_last])
def test_it_follows_torch_own(cls, settings, layout):
    stock, mesa = pair(cls, **settings)
    for _ in range(2):
        x = (torch.randn(3, 32, 5, 7) * 2 + 1).to(memory_format=layout)
        xs = [x.clone(memory_format=torch.preserve_format).requires_grad_() for _ in range(2)]
        outs = [m(v) for m, v in zip((stock, mesa), xs, strict=False)]
        torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-5)
        grad = torch.randn_like(outs[0])
        for out in outs:
            out.backward(grad)
        assert (xs[0].grad - xs[1].grad).norm() < 0.02 * xs[0].grad.norm()
    for a, b in zip(stock.buffers(), [b for n, b in mesa.named_buffers() if 'quantizer' not in n], strict=False):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_one_value_a_channel_is_an_error_in_words():
    mesa = convert_and_train()
    with pytest.raises(ValueError, match='more than one value a channel'):
        mesa(torch.randn(1, 32, 1, 1, requires_grad=True))


def convert_and_train():
    mesa = nn.BatchNorm2d(32)
    convert(mesa)
    return mesa


def worker(rank, folder):
    """One of the two processes: its part of the batch; what it found goes into a file."""
    dist.init_process_group('gloo', init_method=f'file://{folder}/rendezvous', rank=rank, world_size=2)
    torch.manual_seed(0)
    x, grad = torch.randn(5, 32, 4, 3) * 2 + 1, torch.randn(5, 32, 4, 3)
    norm = nn.SyncBatchNorm(32)
    convert(norm, dict(rounding='nearest'))
    part = slice(0, 2) if rank == 0 else slice(2, 5)  # unequal batches
    own = x[part].clone().requires_grad_()
    out = F.relu(norm(own))
    out.backward(grad[part])
    dist.all_reduce(norm.weight.grad)
    dist.all_reduce(norm.bias.grad)
    torch.save([out.detach(), own.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var],
               f'{folder}/{rank}.pt')
    dist.barrier()
    dist.destroy_process_group()


def test_two_processes_equal_one_over_the_joined_batch(tmp_path):
    root = Path(__file__).parents[2]
    environment = {**os.environ, 'PYTHONPATH': str(root), 'OMP_NUM_THREADS': '1'}
    processes = [subprocess.Popen([sys.executable, __file__, str(rank), str(tmp_path)], env=environment) for rank in range(2)]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    found = [torch.load(tmp_path / f'{rank}.pt') for rank in range(2)]
    torch.manual_seed(0)
    x, grad = (torch.randn(5, 32, 4, 3) * 2 + 1).requires_grad_(), torch.randn(5, 32, 4, 3)
    norm = nn.BatchNorm2d(32)
    out = F.relu(norm(x))
    out.backward(grad)
    join = [torch.cat([r[i] for r in found]) for i in (0, 1)]
    torch.testing.assert_close(join[0], out.detach(), rtol=1e-4, atol=1e-5)
    assert (join[1] - x.grad).norm() < 0.02 * x.grad.norm()
    for result in found:
        assert (result[2] - norm.weight.grad).norm() < 0.02 * norm.weight.grad.norm()
        torch.testing.assert_close(result[3], norm.bias.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(result[4], norm.running_mean)
        torch.testing.assert_close(result[5], norm.running_var)


if __name__ == '__main__':
    worker(int(sys.argv[1]), sys.argv[2])
