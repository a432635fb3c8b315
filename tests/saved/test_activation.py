import weakref

import torch

from mesa_seg.saved import Quantizer, QuantizerConfig, attach, derive, exact, lookup


def quantized(x):
    return Quantizer(QuantizerConfig())(x, -1)


def test_a_form_is_found_until_the_tensor_is_edited():
    x = torch.randn(4, 32)
    saved = quantized(x)
    attach(x, saved)
    assert lookup(x) is saved
    x.add_(1)
    assert lookup(x) is None


def test_an_edit_through_a_view_makes_the_form_stale_too():
    x = torch.randn(4, 32)
    attach(x, quantized(x))
    x[0].zero_()
    assert lookup(x) is None


def test_an_exact_form_gives_the_tensor_itself_and_does_not_keep_it_alive():
    x = torch.randn(3)
    saved = exact(x)
    attach(x, saved)
    alive = weakref.ref(x)
    assert lookup(x) is saved
    pointer = x.data_ptr()
    del x
    assert alive() is None
    assert saved.rebuild(*saved.tensors).data_ptr() == pointer


def test_a_derived_form_applies_its_function_to_all_sources_and_extras():
    a, b, scale = torch.randn(4, 32), torch.randn(4, 32), torch.randn(32)
    sources = (quantized(a), quantized(b))
    saved = derive(lambda x, y, s: (x + y) * s, sources, a.shape, extra=(scale, ))
    parts = [s.rebuild(*s.tensors) for s in sources]
    assert torch.equal(saved.rebuild(*saved.tensors), (parts[0] + parts[1]) * scale)
    assert saved.nbytes() == sum(s.nbytes() for s in sources) + scale.numel() * 4


def test_a_chain_of_sums_stops_being_derived_when_it_would_read_too_much():
    saved, length = quantized(torch.randn(4, 32)), 0
    while saved is not None:
        saved = derive(torch.add, (saved, quantized(torch.randn(4, 32))), torch.Size((4, 32)))
        length += 1
    assert 2 <= length <= 8
