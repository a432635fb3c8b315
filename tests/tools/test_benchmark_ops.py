"""tools/benchmark.py ops: what it prints and writes (the numbers are the machine's)."""
import json
import math

import pytest

from mesa_seg.ops import KERNELS


def test_prints_and_writes_every_operator(compiled, tool, tmp_path, capsys):
    written = tmp_path / 'new' / 'ops.json'
    tool('benchmark').main(['ops', '--mib', '2', '--rounds', '1', '--fresh-memory', '--json', str(written)])
    said = capsys.readouterr().out
    results = json.loads(written.read_text())
    assert set(results) == {'tokens', 'maps'}
    for view, rows in results.items():
        assert f'{view} [' in said
        names = [row['op'] for row in rows]
        assert {'copy_', 'clone', 'quantize 8', 'dequantize 8', 'relu_mask', 'gelu_quantize 8'} <= set(names)
        copy = rows[names.index('copy_')]
        for row in rows:
            assert row['op'] in said
            assert math.isclose(row['of_copy'], row['bytes'] / row['seconds'] * copy['seconds'] / copy['bytes'])
            assert (row['of_reference'] is None) == (row['op'] in ('copy_', 'clone'))
    quantize = results['maps'][[row['op'] for row in results['maps']].index('quantize 8')]
    values = quantize['bytes'] / 5  # four bytes read and one written for each
    assert values == results['maps'][0]['bytes'] / 8


@pytest.mark.parametrize('option, words', [(['--mib', '0'], '--mib 0'), (['--device', 'cuda'], '--device cuda')])
def test_bad_options_are_sentences(option, words, tool, capsys):
    import torch
    if 'cuda' in option and torch.cuda.is_available():
        pytest.skip('there is a CUDA device')
    if KERNELS['CPU'] != 'compiled':
        words = 'make setup'
    with pytest.raises(SystemExit) as stopped:
        tool('benchmark').main(['ops', *option])
    assert stopped.value.code not in (0, None)
    assert words in str(stopped.value.code) + capsys.readouterr().err
