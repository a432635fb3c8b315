import pytest
import torch

from mesa_seg.saved import Quantizer, QuantizerConfig


def rebuilt(saved):
    return saved.rebuild(*saved.tensors)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize('config', [dict(bits=8), dict(bits=4), dict(bits=2), dict(bits=8, granularity='block'),
                                    dict(bits=4, granularity='block', block_size=128), dict(bits=2, granularity='block')],
                         ids=str)
def test_what_comes_back_is_within_one_step(config, dtype):
    x = torch.randn(3, 50, 96).to(dtype)
    config = QuantizerConfig(**config)
    saved = Quantizer(config)(x, -1)
    y = rebuilt(saved)
    assert y.dtype == dtype and y.shape == x.shape
    step = (x.float().max() - x.float().min()) / (2**config.bits - 1)
    assert (y.float() - x.float()).abs().max() <= step * 1.02 + 0.02 * (dtype != torch.float32)
    ranges = saved.tensors[1].nbytes
    assert saved.nbytes() == x.numel() * config.bits // 8 + ranges
    assert ranges <= max(3 * 8, x.numel() / config.block_size * 4 + 4)


def test_the_first_step_is_exact_and_later_ones_move_by_the_decay():
    quantizer = Quantizer(QuantizerConfig(decay=0.9))
    first, second = torch.randn(100, 64), 3 * torch.randn(100, 64)
    quantizer(first, -1)
    low = first.view(100, 2, 32).amin((0, 2))
    assert torch.equal(quantizer.running[:, 0], low)
    quantizer(second, -1)
    torch.testing.assert_close(quantizer.running[:, 0], 0.9 * low + 0.1 * second.view(100, 2, 32).amin((0, 2)))


def test_later_forwards_do_not_change_what_was_kept():
    quantizer = Quantizer(QuantizerConfig(decay=0.0))
    first = quantizer(torch.randn(10, 32), -1)
    second = quantizer(torch.randn(10, 32), -1)
    before = rebuilt(first), rebuilt(second)
    quantizer(100 * torch.randn(10, 32), -1)
    quantizer(100 * torch.randn(10, 32), -1)
    assert torch.equal(rebuilt(first), before[0]) and torch.equal(rebuilt(second), before[1])


def test_values_outside_the_running_range_saturate_at_both_ends():
    quantizer = Quantizer(QuantizerConfig())
    quantizer(torch.rand(100, 32), -1)
    low, high = quantizer.running[0].tolist()
    y = rebuilt(quantizer(torch.tensor([[-50.0, 50.0]]).repeat(1, 16), -1))
    torch.testing.assert_close(y[0, :2], torch.tensor([low, high]))


def test_non_finite_values_do_not_poison_the_ranges():
    quantizer = Quantizer(QuantizerConfig())
    x = torch.randn(10, 32)
    x[0, 0], x[1, 1], x[2, 2] = float('nan'), float('inf'), float('-inf')
    quantizer(x, -1)
    quantizer(x, -1)
    finite = x[x.isfinite()]
    torch.testing.assert_close(quantizer.running[0], torch.stack([finite.min(), finite.max()]))
    quantizer = Quantizer(QuantizerConfig())
    quantizer(torch.full((10, 32), float('nan')), -1)
    quantizer(torch.rand(10, 32), -1)
    assert quantizer.running.isfinite().all()


def test_manual_seed_repeats_the_codes_and_without_it_they_differ():
    quantizer = Quantizer(QuantizerConfig(granularity='block'))
    x = torch.randn(64, 32)
    codes = []
    for seed in (0, 0, None):
        if seed is not None:
            torch.manual_seed(seed)
        codes.append(quantizer(x, -1).tensors[0])
    assert torch.equal(codes[0], codes[1]) and not torch.equal(codes[0], codes[2])


def test_a_run_of_seeds_averages_to_the_value():
    quantizer = Quantizer(QuantizerConfig(bits=2, granularity='block'))
    torch.manual_seed(0)
    x = torch.randn(8, 64)
    runs = torch.stack([rebuilt(quantizer(x, -1)) for _ in range(2000)])
    step = (x.amax(1, True) - x.amin(1, True)) / 3  # its share below: values so near a code that no run left it
    error = (runs.mean(0) - x) / (runs.std(0) / 2000**0.5 + 2e-3 * step)
    assert error.abs().max() < 5.5 and abs(error.mean()) < 0.2


def test_ranges_are_no_part_of_the_state_dict():
    quantizer = Quantizer(QuantizerConfig())
    quantizer(torch.randn(4, 32), -1)
    assert not quantizer.state_dict() and quantizer.double().running.dtype == torch.float64


def test_float64_is_kept_exact():
    x = torch.randn(4, 32, dtype=torch.float64)
    assert torch.equal(rebuilt(Quantizer(QuantizerConfig())(x, -1)), x)


@pytest.mark.parametrize('key,value', [('bits', 3), ('bits', '8'), ('bits', True), ('granularity', 'tensor'),
                                       ('block_size', 12), ('block_size', 2048), ('rounding', 'up'), ('decay', 1.0),
                                       ('decay', -0.1), ('group_size', 0)])
def test_an_impossible_setting_is_named(key, value):
    with pytest.raises(ValueError, match=rf'{key}={value!r}.*expected'):
        QuantizerConfig(**{key: value})
