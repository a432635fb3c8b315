"""What launchers say about processes, and BatchNorm where torch's SyncBatchNorm cannot run."""
import pytest

from mesa_seg import compat

compat.prepare()

from mmengine.config import ConfigDict  # noqa: E402

from mesa_seg.engine.distributed import _use_local_norm, processes  # noqa: E402
from mesa_seg.engine.errors import UserError  # noqa: E402

NAMES = {
    'pytorch': ('RANK', 'WORLD_SIZE', 'LOCAL_RANK'),
    'slurm': ('SLURM_PROCID', 'SLURM_NTASKS', 'SLURM_LOCALID'),
    'mpi': ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_RANK'),
}


@pytest.mark.parametrize('launcher', NAMES)
def test_number_of_processes(monkeypatch, launcher):
    assert processes('none') == 1
    for name, value in zip(NAMES[launcher], ('3', '8', '1'), strict=True):
        monkeypatch.setenv(name, value)
    assert processes(launcher) == 8
    monkeypatch.delenv(NAMES[launcher][1])
    with pytest.raises(UserError, match=NAMES[launcher][1]):
        processes(launcher)


def test_only_stock_components_lose_syncbn():
    norm = dict(type='SyncBN', requires_grad=True)
    model = ConfigDict(
        decode_head=dict(type='MesaUPerHead', norm_cfg=norm, mesa=dict(bits=8)),
        auxiliary_head=[dict(type='FCNHead', norm_cfg=norm),
                        dict(type='MesaFCNHead', norm_cfg=norm, mesa=dict(enable=False))])
    assert _use_local_norm(model) == ['model.auxiliary_head.0', 'model.auxiliary_head.1']
    assert model.decode_head.norm_cfg.type == 'SyncBN'
    assert [head['norm_cfg'] for head in model.auxiliary_head] == 2 * [dict(type='BN', requires_grad=True)]


def test_mmengine_leaves_our_syncbn_alone_in_one_process():
    from mmengine.model import revert_sync_batchnorm
    from torch import nn

    from mesa_seg import convert
    from mesa_seg.nn import MesaSyncBatchNorm
    model = nn.Sequential(nn.Conv2d(3, 32, 1), nn.SyncBatchNorm(32))
    convert(model)
    assert type(revert_sync_batchnorm(model)[1]) is MesaSyncBatchNorm
