import pytest
import torch

from mesa_seg.engine.trial import generated_batch


@pytest.fixture
def train(tiny_model, tmp_path):
    from mmengine.config import Config
    from mmengine.runner import Runner

    from mesa_seg.engine import trial

    def run(**hook):
        trial._register()
        from mmseg.registry import MODELS
        model = dict(tiny_model, backbone=dict(tiny_model['backbone'], init_cfg=None))
        for part in ('decode_head', 'auxiliary_head'):
            model[part] = dict(model[part], norm_cfg=dict(type='BN'))
        head = MODELS.build(dict(model['decode_head']))
        batches = [generated_batch(torch.nn.ModuleDict({'decode_head': head}), 64, 2, seed) for seed in range(2)]

        class Batches(torch.utils.data.Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, i):
                batch = batches[i // 2]
                return dict(inputs=batch['inputs'][i % 2], data_samples=batch['data_samples'][i % 2])

        torch.manual_seed(0)
        runner = Runner(
            MODELS.build(model), work_dir=str(tmp_path), default_scope='mmseg',
            train_dataloader=dict(batch_size=2, num_workers=0, dataset=Batches(),
                                  collate_fn=dict(type='pseudo_collate'),
                                  sampler=dict(type='DefaultSampler', shuffle=False)),
            train_cfg=dict(by_epoch=False, max_iters=2), optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.01)),
            default_hooks=dict(checkpoint=None, logger=dict(type='LoggerHook', interval=1)),
            custom_hooks=[dict(type='MemoryReportHook', **hook)] if hook is not None else [],
            cfg=Config(dict(model=model)), experiment_name=tmp_path.name)
        runner.train()
        return runner

    return run


def test_reports_once_by_part_and_kind_against_stock(train, tmp_path):
    from mesa_seg.engine.hooks import MemoryReportHook
    runner = train(layers=True)
    hook = next(hook for hook in runner.hooks if isinstance(hook, MemoryReportHook))
    assert hook.kept.total > 0 and hook.stock_kept.by_part() == hook.kept.by_part()
    assert 'update_params' not in vars(runner.optim_wrapper)
    for handler in runner.logger.handlers:
        handler.flush()
    log = next(tmp_path.rglob('*.log')).read_text()
    assert log.count('Kept for backward in the first iteration') == 1
    for word in ('backbone', 'decode_head', 'outside the loss', 'Conv2d', 'attention', '100.0%',
                 'backbone.stages.0.blocks.0.norm1'):
        assert word in log
    assert 'cannot tell' not in log
