import pytest
import torch

from mesa_seg.engine.forecast import forecast_kept
from mesa_seg.engine.memory import KeptForBackward
from mesa_seg.engine.trial import Trial, override_mesa, stock_twin
from mesa_seg.engine.variants import VARIANTS


def test_steps_repeat_exactly_and_keep_gradients_allocated(tiny_model):
    losses = []
    for _ in range(2):
        trial = Trial(tiny_model, crop=32, batch=2)
        losses.append([trial.step(), trial.step()])
    assert losses[0] == losses[1]
    assert losses[0][0] != losses[0][1]
    assert all(weight.grad is not None for weight in trial.module.parameters() if weight.requires_grad)


def test_few_classes_an_image(tiny_model):
    for classes, expected in ((3, {0, 1, 2, 255}), (None, {*range(11), 255})):
        trial = Trial(tiny_model, crop=256, batch=1, classes=classes)
        assert set(trial.batch['data_samples'][0].gt_sem_seg.data.unique().tolist()) == expected


def test_components_get_settings_with_attributes_as_from_a_runner(tiny_model):
    """mmdet's heads read theirs so."""
    from mmseg.registry import MODELS

    @MODELS.register_module(force=True)
    class ReadsAttributes(MODELS.get('FCNHead')):

        def __init__(self, settings, **kwargs):
            super().__init__(**kwargs)
            self.number = settings.inner.number

    tiny_model['auxiliary_head'].update(type='ReadsAttributes', settings=dict(inner=dict(number=7)))
    assert Trial(tiny_model, crop=32, batch=2).segmentor.auxiliary_head.number == 7


def test_backbone_alone(tiny_model):
    trial = Trial(tiny_model, crop=32, batch=1, part='backbone')
    grads, loss = trial.gradients()
    assert grads and isinstance(loss, float)
    trial.step()
    with pytest.raises(ValueError, match='part.*backbone.*neck'):
        Trial(tiny_model, crop=32, batch=1, part='neck')


def test_tracing_shapes_gives_the_bytes_of_a_run(tiny_model):
    trial = Trial(tiny_model, crop=(32, 64), batch=2)
    with KeptForBackward(trial.module) as watch:
        outputs = trial.forward()
    run = watch.report(outputs)
    state = torch.get_rng_state()
    traced = forecast_kept(tiny_model, (32, 64), 2)
    assert torch.equal(torch.get_rng_state(), state)
    assert list(run.by_part()) == ['backbone', 'decode_head', 'auxiliary_head']
    assert traced.by_part() == run.by_part()
    assert traced.by_layer() == run.by_layer()
    assert traced.by_kind() == run.by_kind()
    assert traced.loss == run.loss > 0


@pytest.mark.parametrize('mesa', [dict(), dict(bits=4, granularity='block', block_size=64), dict(reuse=False)])
def test_tracing_a_mesa_model_gives_the_bytes_of_a_run(tiny_mesa_model, mesa):
    model = override_mesa(tiny_mesa_model, **mesa)
    trial = Trial(model, crop=64, batch=2)
    with KeptForBackward(trial.module) as watch:
        outputs = trial.forward()
    run, traced = watch.report(outputs), forecast_kept(model, 64, 2)
    assert traced.by_layer() == run.by_layer()
    assert traced.by_kind() == run.by_kind()
    assert run.outside_loss < 0.6 * forecast_kept(stock_twin(model), 64, 2).outside_loss


def test_bits_reach_mesa_settings_only(tiny_model):
    tiny_model['backbone']['mesa'] = dict(enable=True, bits=8)
    model = override_mesa(tiny_model, bits=4, granularity='block')
    assert model['backbone']['mesa'] == dict(enable=True, bits=4, granularity='block')
    assert tiny_model['backbone']['mesa'] == dict(enable=True, bits=8)
    assert 'mesa' not in model['decode_head']


def test_stock_twin_drops_mesa(tiny_model):
    mesa = dict(tiny_model, backbone=dict(tiny_model['backbone'], type='MesaSwin', mesa=dict(bits=4)),
                decode_head=dict(tiny_model['decode_head'], type='MesaUPerHead', mesa=dict(bits=4)))
    assert stock_twin(mesa) == tiny_model == stock_twin(tiny_model)
    assert mesa['backbone']['type'] == 'MesaSwin'


def test_published_mesa_keeps_a_copy_for_each_operation(tiny_model):
    model, prepare = VARIANTS['mesa_published'].make([tiny_model])
    trials = [Trial(tiny_model, crop=64, batch=2), Trial(model, crop=64, batch=2, prepare=prepare)]
    trials[1].segmentor.load_state_dict(trials[0].segmentor.state_dict())
    reports, grads = [], []
    for trial in trials:
        with KeptForBackward(trial.module) as watch:
            outputs = trial.forward()
        reports.append(watch.report(outputs))
        grads.append(trial.gradients()[0])
        assert trial.backward(outputs) == pytest.approx(trials[0].backward(trials[0].forward()), rel=1e-5)
    stock, mesa = reports
    assert mesa.by_part()['decode_head'] == stock.by_part()['decode_head']
    tokens = [kept for kept in mesa.tensors if kept.dtype == torch.uint8]
    exact = [kept for kept in mesa.tensors if kept.part == 'backbone' and kept.dtype != torch.uint8]
    assert sum(kept.nbytes for kept in exact) < 0.1 * sum(kept.nbytes for kept in tokens)
    # q, k, v, and scores and probabilities for the softmax, and probabilities again for the product
    layer = 'backbone.stages.0.blocks.0.attn.w_msa.'
    maps = [kept for kept in tokens if kept.layer.startswith(layer) and kept.kind == 'attention']
    assert len(maps) == 6
    names = [name for name in grads[0] if 'backbone' in name]
    error = sum((grads[0][name] - grads[1][name]).square().sum() for name in names)
    assert 0 < error < 0.01 * sum(grads[0][name].square().sum() for name in names)
