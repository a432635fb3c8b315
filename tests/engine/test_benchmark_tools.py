import importlib.util
import json
from pathlib import Path

import pytest

from mesa_seg.engine.forecast import measure_kept

TOOLS = Path(__file__).resolve().parents[2] / 'tools'


def tool(name):
    spec = importlib.util.spec_from_file_location(f'tools_{name}', TOOLS / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_train_benchmark_prints_a_table_and_writes_json(tiny_config, tmp_path, capsys):
    out = tmp_path / 'results' / 'train.json'
    tool('benchmark').main(['train', str(tiny_config), '--crop', '32', '--batch', '2', '--steps', '1', '--with',
                            'stock_checkpointed', '--by-op', '--grad-error', '--json', str(out)])
    stock, checkpointed = json.loads(out.read_text())
    assert {'config', 'saved_bytes', 'saved_by_part', 'peak_bytes', 'step_s', 'loss'} <= set(stock)
    assert stock['saved_bytes'] == sum(stock['saved_by_part'].values())
    assert checkpointed['saved_bytes'] < stock['saved_bytes'] <= stock['after_forward_bytes'] <= stock['peak_bytes']
    assert checkpointed['loss'] == pytest.approx(stock['loss'], rel=1e-5)
    assert stock['grad_error'] == 0 and checkpointed['grad_error'] < 1e-4
    printed = capsys.readouterr().out
    for word in ('kept for backward', 'decode_head', 'outside the loss', 'peak of the step', 'attention',
                 'stock_checkpointed'):
        assert word in printed


def test_backbone_in_bfloat16(tiny_config, tmp_path):
    out = tmp_path / 'train.json'
    tool('benchmark').main(['train', str(tiny_config), '--crop', '32', '--batch', '1', '--steps', '1', '--part',
                            'backbone', '--amp', 'bf16', '--json', str(out)])
    assert list(json.loads(out.read_text())[0]['saved_by_part']) == ['backbone']


@pytest.mark.parametrize('arguments, message', [
    (['train'], 'CONFIG'), (['train', 'x.py', '--bits', '3'], '--bits'),
    (['train', 'x.py', '--steps', '-1'], 'positive'), (['nothing'], 'nothing'), (['train', 'no.py'], 'no.py')])
def test_wrong_arguments_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit):
        tool('benchmark').main(arguments)
    assert message in capsys.readouterr().err


def test_memory_report_lists_layers_and_draws(tiny_config, tmp_path, capsys):
    picture = tmp_path / 'pictures' / 'report.png'
    tool('memory_report').main([str(tiny_config), '--crop', '64', '--batch', '2', '--picture', str(picture)])
    printed = capsys.readouterr().out
    assert picture.read_bytes()[:4] == b'\x89PNG'
    for word in ('backbone.stages.0.blocks.0.attn.w_msa', 'decode_head.fpn_bottleneck.conv', 'sum', 'exact'):
        assert word in printed


def test_a_config_without_mesa_is_reported_as_the_hook_converts_it(tiny_config, tmp_path, capsys):
    tool('memory_report').main([str(tiny_config), '--crop', '64', '--depth', '2', '--picture', str(tmp_path / 'report.svg')])
    printed = capsys.readouterr().out
    assert 'MesaConversionHook' in printed
    stock, kept = next(line for line in printed.splitlines() if line.startswith('sum ')).split()[1:3]
    assert float(kept) < 0.3 * float(stock)


def test_any_model_prints_bytes_and_times_of_every_way(tiny_config, tmp_path, capsys):
    out = tmp_path / 'any.json'
    arguments = ['any_model', str(tiny_config), '--crop', '64', '--steps', '1', '--seconds', '0', '--left', '--by-op', '--json',
                 str(out)]
    tool('benchmark').main(arguments)
    (result, ) = json.loads(out.read_text())
    for key in ('saved_bytes', 'step_s', 'outside_loss'):
        assert list(result[key]) == ['stock', 'converted', 'with leftovers']
    assert result['saved_bytes']['with leftovers'] <= result['saved_bytes']['converted'] < 0.3 * result['saved_bytes']['stock']
    printed = capsys.readouterr().out
    assert 'and leftovers, x' in printed and 'upernet_tiny' in printed


def test_any_model_names_what_it_leaves_out(tiny_config, tmp_path, capsys):
    config = tmp_path / 'absent.py'
    config.write_text(f"_base_ = '{tiny_config}'\ncustom_imports = dict(imports=['no_such_package'])\n")
    tool('benchmark').main(['any_model', str(config)])
    assert "absent is left out. The config's custom_imports fail: No module named 'no_such_package'." in capsys.readouterr().out


def test_a_model_that_looks_at_values_is_run(tiny_model):
    traced = measure_kept(tiny_model, 64, 2).total

    def looks(model):
        forward = model.backbone.forward
        model.backbone.forward = lambda x: forward(x if x.sum().item() else x)

    assert measure_kept(tiny_model, 64, 2, prepare=looks).total == traced == measure_kept(tiny_model, 64, 2, run=True).total


def test_a_model_converted_by_a_hook_is_measured_converted(tiny_config, tmp_path, capsys):
    hooked = tmp_path / 'hooked.py'
    hooked.write_text(f"_base_ = '{tiny_config}'\ncustom_hooks = [dict(type='MesaConversionHook', "
                      "mesa=dict(rules=[dict(kind='gelu', enable=False)]))]\n")
    out = tmp_path / 'train.json'
    tool('benchmark').main(['train', str(tiny_config), str(hooked), '--crop', '64', '--steps', '0', '--bits', '4',
                            '--json', str(out)])
    stock, mesa = json.loads(out.read_text())
    assert mesa['saved_bytes'] < 0.5 * stock['saved_bytes'] and mesa['step_s'] is None
    assert mesa['saved_by_kind']['GELU'] == stock['saved_by_kind']['GELU']
    tool('memory_report').main([str(hooked), '--crop', '64', '--picture', str(tmp_path / 'report.svg')])
    assert 'switched off by a rule' in capsys.readouterr().out
