"""A training step on the meta device, where no value can be read and no tensor of the CPU may take part: what passes here
never makes a CUDA step wait for a value, nor computes part of it on the CPU."""
import pytest

from mesa_seg.engine.config import load_config
from mesa_seg.engine.trial import Trial, override_mesa, stock_twin
from mesa_seg.models.any_model import compress
from tests.tools.conftest import ROOT

BLOCKS = dict(bits=4, granularity='block', block_size=64)


def step(trial):
    data = trial.segmentor.data_preprocessor(trial.batch, True)
    losses = trial.segmentor(**data, mode='loss')
    sum(value for name, value in losses.items() if 'loss' in name).backward()


@pytest.mark.parametrize('config', ['upernet_mesa_swin_t_ade20k.py', 'fpn_mesa_pvt_t_ade20k.py',
                                    'fpn_mesa_pvt_v2_b0_ade20k.py'])
@pytest.mark.parametrize('settings', [{}, BLOCKS], ids=['8 bits', '4 bits in blocks'])
def test_recipes(config, settings):
    model = override_mesa(load_config(ROOT / 'configs' / config).model, **settings)
    trial = Trial(model, 96, 2, device='meta')
    for _ in range(2):  # the second with running ranges
        step(trial)
    assert all(p.grad is not None for p in trial.segmentor.parameters())


def test_converted_with_leftovers():
    model = stock_twin(load_config(ROOT / 'configs' / 'upernet_mesa_swin_t_ade20k.py').model)
    trial = Trial(model, 96, 2, device='meta',
                  prepare=lambda segmentor: compress(segmentor, mesa=dict(bits=8), leftovers=True))
    step(trial)
    assert all(p.grad is not None for p in trial.segmentor.parameters())
