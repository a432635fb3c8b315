import pytest
import torch

from mesa_seg.saved.layout import grouped

VIEWS = {
    'tokens': (lambda: torch.randn(2, 9, 64), -1, 2),
    'one channel': (lambda: torch.randn(5, 1), -1, 1),
    'channels that 32 does not divide': (lambda: torch.randn(3, 150), -1, 75),
    'map': (lambda: torch.randn(2, 64, 5, 3), 1, 2),
    'channels-last map': (lambda: torch.randn(2, 64, 5, 3).to(memory_format=torch.channels_last), 1, 2),
    'slice of qkv': (lambda: torch.randn(2, 7, 3, 4, 32).permute(2, 0, 3, 1, 4)[1], 1, 1),
    'transposed': (lambda: torch.randn(64, 9).t(), -1, 2),
    'expanded': (lambda: torch.randn(1, 64).expand(9, 64), -1, 2),
    'empty': (lambda: torch.randn(0, 64), -1, 2),
    'vector': (lambda: torch.randn(64), -1, 2),
}


@pytest.mark.parametrize('name', VIEWS)
def test_a_view_comes_back_as_it_was(name):
    make, channel_dim, groups = VIEWS[name]
    x = make()
    view, layout = grouped(x, channel_dim, 32, groups=4 if name == 'slice of qkv' else None)
    assert view.shape == (layout.outer, layout.groups, layout.inner)
    assert layout.groups == (4 if name == 'slice of qkv' else groups)
    assert torch.equal(layout.restore(view.contiguous()), x)
    if name != 'expanded' and x.numel():
        assert view.data_ptr() == x.data_ptr(), 'the tensor was copied'


def test_a_group_holds_its_channels_alone():
    x = torch.arange(64.).expand(2, 3, 64).transpose(1, 2).unsqueeze(-1)  # [2, 64, 3, 1], the channel's number everywhere
    view, layout = grouped(x, 1, 32)
    assert [(view[:, g].min().item(), view[:, g].max().item()) for g in range(layout.groups)] == [(0, 31), (32, 63)]
