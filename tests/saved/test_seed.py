import torch

from mesa_seg.saved import advance_with_gradient, next_seed, seed_stream


def test_inside_a_stream_the_generator_is_left_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with seed_stream('a'):
        seeds = [next_seed() for _ in range(100)]
        assert torch.equal(torch.rand(3), expected)
    assert len(set(seeds)) == 100 and all(0 <= s < 2**63 for s in seeds)


def test_a_stream_depends_on_the_state_and_the_name():

    def seeds(state, name):
        torch.manual_seed(state)
        with seed_stream(name):
            return [next_seed(), next_seed()]

    assert seeds(0, 'a') == seeds(0, 'a')
    assert len({*seeds(0, 'a'), *seeds(1, 'a'), *seeds(0, 'b')}) == 6


def test_an_inner_stream_goes_on_with_the_outer_one():
    with seed_stream('a') as outermost, seed_stream('b') as inner:
        assert outermost and not inner


def test_a_gradient_advances_the_generator():
    x = torch.randn(3, requires_grad=True)
    out = {'loss': [x * 2]}
    advance_with_gradient(out)
    before = torch.get_rng_state()
    out['loss'][0].sum().backward()
    assert not torch.equal(torch.get_rng_state(), before)
