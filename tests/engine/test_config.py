"""Config files and --cfg-options."""
import pytest

from mesa_seg import compat

compat.prepare()

from mesa_seg.engine.config import load_config  # noqa: E402
from mesa_seg.engine.errors import UserError  # noqa: E402


@pytest.fixture
def config(tmp_path):
    path = tmp_path / 'config.py'
    path.write_text("""
root = 'here'
size = (64, 48)
number = 7
mesa = dict(bits=8, decay=0.9)
model = dict(type='Model', backbone=dict(type='B', depths=[1, 2], mesa=mesa, size=size), head=dict(type='H', mesa=mesa),
             test_cfg=dict(mode='whole'))
train_dataloader = dict(dataset=dict(type='D', data_root=root, pipeline=[dict(type='P'), dict(type='Q', size=size)]))
train_cfg = dict(type='L', max_iters=number)
""")
    return lambda **options: load_config(str(path), {key.replace('__', '.'): value for key, value in options.items()})


def test_option_sets_its_key(config):
    cfg = config(model__backbone__depths=[3, 3], model__test_cfg__stride=4, randomness__seed=3, model__backbone__new=1)
    assert cfg.model.backbone.depths == [3, 3] and cfg.model.test_cfg.stride == 4 and cfg.randomness.seed == 3
    assert cfg.model.backbone.new == 1, 'left to the constructor to refuse'


def test_variable_is_followed_to_what_was_made_from_it(config):
    cfg = config(root='there', size=(32, 32), mesa__bits=4, mesa__granularity='block')
    assert cfg.train_dataloader.dataset.data_root == 'there'
    assert cfg.model.backbone.size == (32, 32) and cfg.train_dataloader.dataset.pipeline[1].size == (32, 32)
    assert cfg.model.backbone.mesa == cfg.model.head.mesa == dict(bits=4, decay=0.9, granularity='block')


def test_later_option_wins(config):
    assert config(root='a', train_dataloader__dataset__data_root='b').train_dataloader.dataset.data_root == 'b'
    assert config(model__head__mesa__bits=2, mesa__decay=0.5).model.head.mesa == dict(bits=2, decay=0.9), \
        'no longer equal to the variable'


@pytest.mark.parametrize('option, words', [
    ('modle.backbone', 'did you mean `model`'),
    ('number', 'only a variable of the config file'),
    ('model.test_cfg.mdoe', 'did you mean `mode`'),
    ('model.backbone.depths.5', 'list of 2 entries'),
    ('train_cfg.max_iters.x', 'is 7, which has no keys'),
])
def test_option_that_nobody_reads(config, option, words):
    with pytest.raises(UserError, match=words) as error:
        config(**{option: 1})
    assert option in str(error.value)
