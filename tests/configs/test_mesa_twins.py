"""Each Mesa recipe is its stock twin with other class names, and builds."""
from pathlib import Path

import pytest
from mmengine.config import Config

import mesa_seg  # noqa: F401  registers the models

from mmseg.registry import MODELS  # isort: skip

CONFIGS = Path(__file__).parents[2] / 'configs'
MESA = sorted(path.stem for path in CONFIGS.glob('*_mesa_*.py'))
PARTS = ('backbone', 'neck', 'decode_head', 'auxiliary_head')


def load(name):
    return Config.fromfile(CONFIGS / f'{name}.py')


def test_every_recipe_has_its_twin():
    stock = sorted(path.stem for path in CONFIGS.glob('*_ade20k.py') if '_mesa_' not in path.stem)
    assert [name.replace('_mesa', '') for name in MESA] == stock
    assert len(MESA) >= 19


@pytest.mark.parametrize('name', MESA)
def test_only_the_classes_differ(name):
    mesa, stock = load(name), load(name.replace('_mesa', ''))
    assert 'mesa_seg' in mesa.custom_imports.imports
    for cfg in (mesa, stock):
        cfg.pop('custom_imports', None)
    settings = mesa.pop('mesa')
    assert (settings.enable, settings.bits) == (True, 8)
    assert [hook.type for hook in mesa.pop('custom_hooks')] == ['MemoryReportHook']
    for ours, theirs in ((mesa.model, stock.model), (mesa.tta_model, stock.tta_model)):
        assert issubclass(*(MODELS.get(cfg.pop('type')) for cfg in (ours, theirs)))
    for part in PARTS:
        if part not in stock.model:
            continue
        ours, theirs = mesa.model[part], stock.model[part]
        assert ours.pop('mesa') == settings
        kinds = [MODELS.get(cfg.pop('type')) for cfg in (ours, theirs)]
        assert all(kinds), f'{part} is not registered'
        assert issubclass(*kinds) and kinds[0] is not kinds[1]
    assert mesa._cfg_dict.to_dict() == stock._cfg_dict.to_dict()
