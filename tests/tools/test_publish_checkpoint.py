"""tools/publish_checkpoint.py."""
import hashlib

import pytest
import torch

from .conftest import ROOT, options


def test_published_mesa_checkpoint_is_stocks(tool, tmp_path):
    from mmengine.config import Config, DictAction
    from mmseg.registry import MODELS
    from mmseg.utils import register_all_modules

    import mesa_seg  # noqa: F401
    register_all_modules()

    def build(name):
        cfg = Config.fromfile(ROOT / 'configs' / name)
        cfg.merge_from_dict({key: DictAction._parse_iterable(value) for key, value in (
            option.split('=', 1) for option in options()[1:]) if key.startswith('model.')})
        return MODELS.build(cfg.model)

    model, stock = build('upernet_mesa_swin_t_ade20k.py'), build('upernet_swin_t_ade20k.py')
    run = tmp_path / 'iter_2.pth'
    torch.save(dict(meta=dict(iter=2, cfg='work_dir = "/home/me"', dataset_meta=dict(classes=('wall', 'sky'))),
                    state_dict=model.state_dict(), optimizer=dict(state={0: torch.ones(100)})), run)
    tool('publish_checkpoint').main([str(run), str(tmp_path / 'out' / 'model.pth')])
    published, = (tmp_path / 'out').iterdir()
    assert published.name == f'model-{hashlib.sha256(published.read_bytes()).hexdigest()[:8]}.pth'
    loaded = torch.load(published, weights_only=True)
    assert loaded['meta'] == dict(iter=2, dataset_meta=dict(classes=['wall', 'sky'])) and 'optimizer' not in loaded
    stock.load_state_dict(loaded['state_dict'], strict=True)


def test_refuses_what_is_no_checkpoint(tool, tmp_path):
    from mesa_seg.engine.errors import UserError
    torch.save(dict(weights=1), tmp_path / 'other.pth')
    with pytest.raises(UserError, match='no weights'):
        tool('publish_checkpoint').main([str(tmp_path / 'other.pth'), str(tmp_path / 'out.pth')])
    with pytest.raises(UserError, match='There is no checkpoint'):
        tool('publish_checkpoint').main([str(tmp_path / 'none.pth'), str(tmp_path / 'out.pth')])
