"""Several processes without GPUs: gloo, and DDP over the CPU.

mmengine's own start sets a CUDA device whatever the backend, and its DDP names one. With GPUs it is used as it is.
"""
import os
import subprocess
import sys

import torch
import torch.distributed
from mmengine.logging import print_log

from .errors import UserError


def _environment(launcher):
    """Rank, number of processes, rank on this machine, as the launcher says."""
    env = os.environ
    try:
        if launcher == 'pytorch':
            return int(env['RANK']), int(env['WORLD_SIZE']), int(env['LOCAL_RANK'])
        if launcher == 'slurm':
            return int(env['SLURM_PROCID']), int(env['SLURM_NTASKS']), int(env.get('SLURM_LOCALID', 0))
        return (int(env['OMPI_COMM_WORLD_RANK']), int(env['OMPI_COMM_WORLD_SIZE']),
                int(env['OMPI_COMM_WORLD_LOCAL_RANK']))
    except KeyError as error:
        starter = {'pytorch': 'torchrun (tools/dist_train.sh, tools/dist_test.sh)',
                   'slurm': 'srun (tools/slurm_train.sh)', 'mpi': 'mpirun'}[launcher]
        raise UserError(f'--launcher {launcher} needs the environment variable {error.args[0]}, which {starter} sets: '
                        'start the job by it, or leave --launcher out for one process.') from error


def processes(launcher):
    """How many processes the job has.

    Args:
        launcher (str): ``'none'``, ``'pytorch'``, ``'slurm'`` or ``'mpi'``.

    Raises:
        UserError: the process was not started by that launcher.
    """
    return 1 if launcher == 'none' else _environment(launcher)[1]


def prepare_cpu(cfg, launcher):
    """On a machine without a GPU, start the process group with gloo and make the config use DDP over the CPU.

    Args:
        cfg (Config): changed in place.
        launcher (str): see :func:`processes`. Nothing is done for ``'none'``, nor where there is a GPU.
    """
    if launcher == 'none' or torch.cuda.is_available():
        return
    rank, size, local_rank = _environment(launcher)
    env = os.environ
    if launcher == 'slurm' and 'MASTER_ADDR' not in env:
        env['MASTER_ADDR'] = subprocess.run(['scontrol', 'show', 'hostname', env['SLURM_NODELIST']], check=True,
                                            capture_output=True, text=True).stdout.split()[0]
    env.setdefault('MASTER_ADDR', '127.0.0.1')
    env.setdefault('MASTER_PORT', '29500')
    env.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(local_rank))
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group('gloo', rank=rank, world_size=size)
    cfg.env_cfg.dist_cfg = dict(backend='gloo')
    if cfg.get('model_wrapper_cfg') is None:
        cfg.model_wrapper_cfg = dict(
            type='MMDistributedDataParallel', device_ids=None, broadcast_buffers=False,
            find_unused_parameters=cfg.get('find_unused_parameters', False))
    local_norms = _use_local_norm(cfg.model)
    if local_norms and rank == 0:
        print_log(f'torch\'s SyncBatchNorm runs on GPUs only: {", ".join(local_norms)} normalise over the images of '
                  'each process alone', logger='current')


def _use_local_norm(model, name='model'):
    """SyncBN → BN in stock components (Mesa-Seg's own SyncBatchNorm works with gloo). Names those changed."""
    changed = []
    if isinstance(model, dict):
        mesa = model.get('mesa')
        if isinstance(mesa, dict) and mesa.get('enable', True):
            return changed
        if isinstance(model.get('norm_cfg'), dict) and model['norm_cfg'].get('type') == 'SyncBN':
            model['norm_cfg'] = dict(model['norm_cfg'], type='BN')
            changed.append(name)
        for key, value in model.items():
            changed += _use_local_norm(value, f'{name}.{key}')
    elif isinstance(model, (list, tuple)):
        for index, item in enumerate(model):
            changed += _use_local_norm(item, f'{name}.{index}')
    return changed


def leave():
    """End a job of several processes. Gloo's threads now and then abort a process that ends in the ordinary way."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    if torch.distributed.get_backend() != 'gloo':
        torch.distributed.destroy_process_group()
        return
    torch.distributed.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
