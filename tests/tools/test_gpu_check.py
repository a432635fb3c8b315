"""The check for machines with a GPU, as far as it goes without one: its comparisons with the CPU operators as the device
under test, its training steps on the CPU."""
import sys
from pathlib import Path

import pytest
import torch

import mesa_seg  # noqa: F401  the operators

TOOLS = str(Path(__file__).resolve().parents[2] / 'tools')


@pytest.fixture
def checks(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    import gpu_checks.context
    import gpu_checks.modules
    import gpu_checks.operators
    import gpu_checks.training
    yield gpu_checks
    for name in [name for name in sys.modules if name.startswith('gpu_check')]:
        del sys.modules[name]


@pytest.fixture
def context(checks):
    return checks.context.Context('cpu', seconds=1e6, progress=lambda text: None)


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_says_that_there_is_no_gpu(monkeypatch, capsys):
    monkeypatch.syspath_prepend(TOOLS)
    import gpu_check
    assert gpu_check.main([]) == 2
    assert 'nothing was checked' in capsys.readouterr().out


def test_floors_of_every_operator(monkeypatch, capsys):
    monkeypatch.syspath_prepend(TOOLS)
    import gpu_check
    assert gpu_check.main(['--floors']) == 0
    lines = capsys.readouterr().out.splitlines()
    known = {schema.name.removeprefix('mesa_seg::') for schema in torch._C._jit_get_all_schemas()
             if schema.name.startswith('mesa_seg::')}
    assert {line.split()[0] for line in lines} >= known - {'update_ranges'}, 'which moves a few bytes'
    quantize = next(line for line in lines if line.startswith('quantize float32, 8 bits, groups')).split()
    assert quantize[-3:] == ['160', '35', '166'], '128 MiB in, 32 out; 4.8 and 1.008 TB/s'


@pytest.fixture(scope='module')
def every():
    """All cases; a few seconds."""
    sys.path.insert(0, TOOLS)
    try:
        from gpu_checks.cases import small_cases
        return list(small_cases())
    finally:
        sys.path.remove(TOOLS)


def test_operators_agree_with_themselves_and_float64(checks, context, every, monkeypatch):
    assert {case.operator for case in every} == {
        schema.name.removeprefix('mesa_seg::') for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith('mesa_seg::')}
    some = every[::17] + [case for case in every if case.operator in ('update_ranges', 'upsample_argmax')][:2]
    monkeypatch.setattr(checks.operators, 'small_cases', lambda: some)
    checks.operators.run(context)
    assert context.problems == []
    assert context.results['operators']['calls'] == len(some)


def test_a_wrong_operator_is_reported(checks, context, every):
    case = next(case for case in every if case.operator == 'quantize')

    class Wrong:
        def quantize(self, *args):
            codes, ranges = torch.ops.mesa_seg.quantize(*args)
            codes[17] ^= 1
            return codes, ranges

    context.ops = Wrong()
    checks.operators.check(context, case)
    assert len(context.problems) == 1
    assert 'quantize' in context.problems[0] and '1 of ' in context.problems[0] and 'at 17' in context.problems[0]
    context.ops = object()
    context.attempt('call', checks.operators.check, context, case)
    assert 'AttributeError' in context.problems[1]


def test_a_converted_model(checks, context, monkeypatch):
    checks.modules.run(context)
    assert context.problems == []
    monkeypatch.setattr(checks.modules, 'TOLERANCE', dict.fromkeys(checks.modules.TOLERANCE, 1e-6))
    checks.modules.run(context)
    assert 'converted model' in context.problems[0] and 'off by' in context.problems[0]


def test_training_steps(checks, context):
    checks.training.run(context, crop=64, batches=(1,), models={'FPN': 'fpn_mesa_pvt_t_ade20k.py'},
                        ways=['stock', 'Mesa 8 bit'], steps=1)
    assert context.problems == []
    stock, mesa = context.results['training']
    assert mesa['saved_bytes'] < 0.5 * stock['saved_bytes']
