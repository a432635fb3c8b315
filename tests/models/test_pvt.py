"""PVT and PVTv2 as a user meets them: published sizes and checkpoints, any input size, freezing, checkpointing."""
import copy

import pytest
import torch
from torch import nn

from mesa_seg import compat

compat.prepare()

from mmseg.registry import MODELS  # noqa: E402

from mesa_seg.models.backbones.pvt import SpatialReductionAttention  # noqa: E402

DEPTHS = dict(tiny=(2, 2, 2, 2), small=(3, 4, 6, 3), medium=(3, 4, 18, 3), large=(3, 8, 27, 3))
V2 = dict(
    b0=dict(embed_dims=(32, 64, 160, 256)),
    b1=dict(),
    b2=dict(depths=(3, 4, 6, 3)),
    b3=dict(depths=(3, 4, 18, 3)),
    b4=dict(depths=(3, 8, 27, 3)),
    b5=dict(depths=(3, 6, 40, 3), mlp_ratios=(4, 4, 4, 4)),
    b2_li=dict(depths=(3, 4, 6, 3), linear=True),
)
SMALL = dict(embed_dims=(8, 16, 24, 32), depths=(1, 2, 1, 1), num_heads=(1, 2, 3, 4), mlp_ratios=(2, 2, 2, 2))


def build(name='PyramidVisionTransformer', **kwargs):
    return MODELS.build(dict(type=name, **{**SMALL, **kwargs}))


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def published_v1(model):
    """A checkpoint with the keys and shapes of pvt_tiny.pth and its kin, made from a model's own weights."""
    state = {key: torch.randn_like(value) for key, value in model.state_dict().items()}
    channels = model.pos_embed4.shape[-1]
    state['pos_embed4'] = torch.randn(1, state['pos_embed4'].shape[1] + 1, channels)
    state.update({'cls_token': torch.randn(1, 1, channels), 'norm.weight': torch.randn(channels),
                  'norm.bias': torch.randn(channels), 'head.weight': torch.randn(10, channels),
                  'head.bias': torch.randn(10)})
    return state


# Table 1 of the PVT paper gives 13.2, 24.5, 44.2 and 61.4 million with a 1000-class head.
@pytest.mark.parametrize('size, millions', [('tiny', 13.2), ('small', 24.5), ('medium', 44.2), ('large', 61.4)])
def test_v1_sizes_are_the_published_ones(size, millions):
    with torch.device('meta'):
        model = MODELS.build(dict(type='PyramidVisionTransformer', depths=DEPTHS[size]))
    classifier = 512 * 1000 + 1000 + 512 * 4
    assert round((parameters(model) + classifier) / 1e6, 1) == millions


# Table 2 of the PVTv2 paper.
@pytest.mark.parametrize('size, millions', [('b0', 3.7), ('b1', 14.0), ('b2', 25.4), ('b3', 45.2), ('b4', 62.6),
                                            ('b5', 82.0), ('b2_li', 22.6)])
def test_v2_sizes_are_the_published_ones(size, millions):
    with torch.device('meta'):
        model = MODELS.build(dict(type='PyramidVisionTransformerV2', **V2[size]))
    channels = V2[size].get('embed_dims', (512, ))[-1]
    assert round((parameters(model) + channels * 1000 + 1000) / 1e6, 1) == pytest.approx(millions, abs=0.1001)


def test_v1_has_the_published_keys():
    keys = build(depths=(1, 1, 1, 1)).state_dict().keys()
    block = ['norm1', 'attn.q', 'attn.kv', 'attn.proj', 'norm2', 'mlp.fc1', 'mlp.fc2']
    expected = {f'pos_embed{i}' for i in range(1, 5)}
    for i in range(1, 5):
        layers = ['patch_embed{}.proj', 'patch_embed{}.norm'] + ['block{}.0.' + name for name in block]
        if i < 4:  # the last stage has ratio 1
            layers += ['block{}.0.attn.sr', 'block{}.0.attn.norm']
        expected |= {f'{layer.format(i)}.{kind}' for layer in layers for kind in ('weight', 'bias')}
    assert set(keys) == expected


def test_v2_has_the_published_keys():
    keys = build('PyramidVisionTransformerV2', depths=(1, 1, 1, 1)).state_dict().keys()
    block = ['norm1', 'attn.q', 'attn.kv', 'attn.proj', 'norm2', 'mlp.fc1', 'mlp.fc2', 'mlp.dwconv.dwconv']
    expected = set()
    for i in range(1, 5):
        layers = ['patch_embed{}.proj', 'patch_embed{}.norm', 'norm{}'] + ['block{}.0.' + name for name in block]
        if i < 4:
            layers += ['block{}.0.attn.sr', 'block{}.0.attn.norm']
        expected |= {f'{layer.format(i)}.{kind}' for layer in layers for kind in ('weight', 'bias')}
    assert set(keys) == expected
    linear = build('PyramidVisionTransformerV2', depths=(1, 1, 1, 1), linear=True).state_dict().keys()
    assert set(linear) == expected | {f'block4.0.attn.{name}.{kind}' for name in ('sr', 'norm')
                                      for kind in ('weight', 'bias')}


def test_published_checkpoint_loads_through_init_cfg(tmp_path):
    state = published_v1(build())
    torch.save(state, tmp_path / 'pvt.pth')
    model = build(init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'pvt.pth')))
    model.init_weights()
    for key, value in model.state_dict().items():
        expected = state[key][:, 1:] if key == 'pos_embed4' else state[key]
        assert torch.equal(value, expected), key
    missing, unexpected = build().load_state_dict(state, strict=False)
    assert not missing
    assert set(unexpected) == {'cls_token', 'norm.weight', 'norm.bias', 'head.weight', 'head.bias'}


def test_positions_of_another_size_are_interpolated_on_loading():
    state = published_v1(build())
    model = build(pretrain_img_size=448)
    model.load_state_dict(state, strict=False)
    for i, side in enumerate((112, 56, 28, 14), start=1):
        loaded = state[f'pos_embed{i}'][:, -(side // 2)**2:].unflatten(1, (side // 2, side // 2)).permute(0, 3, 1, 2)
        expected = nn.functional.interpolate(loaded, size=(side, side), mode='bilinear')
        got = getattr(model, f'pos_embed{i}').unflatten(1, (side, side)).permute(0, 3, 1, 2)
        assert torch.equal(got, expected)
    assert state['pos_embed4'].shape[1] == 50, 'the checkpoint given by the caller was changed'


def test_a_checkpoint_of_other_channels_is_refused():
    state = published_v1(build(embed_dims=(8, 16, 24, 64)))
    with pytest.raises(RuntimeError, match='size mismatch for pos_embed4'):
        build().load_state_dict(state, strict=False)


@pytest.mark.parametrize('name, kwargs', [('PyramidVisionTransformer', {}), ('PyramidVisionTransformerV2', {}),
                                          ('PyramidVisionTransformerV2', dict(linear=True))])
@pytest.mark.parametrize('size', [(64, 64), (33, 70), (7, 5)])
def test_maps_of_any_input_size(name, kwargs, size):
    model = build(name, **kwargs).eval()
    outs = model(torch.randn(2, 3, *size))
    assert isinstance(outs, list)
    for i, out in enumerate(outs):
        stride = 4 * 2**i
        assert out.shape == (2, SMALL['embed_dims'][i], -(-size[0] // stride), -(-size[1] // stride))
        assert out.isfinite().all()


def test_a_pixel_at_the_far_edge_is_seen():
    model = build(pretrain_img_size=32).eval()
    x = torch.zeros(1, 3, 33, 33)
    seen = model(x)[0]
    x[..., 32, 32] = 1
    assert not torch.equal(seen, model(x)[0])


def test_attention_is_softmax_over_the_reduced_map():
    attn = SpatialReductionAttention(8, 2, sr_ratio=2)
    x = torch.randn(2, 24, 8)
    image = x.transpose(1, 2).reshape(2, 8, 4, 6)
    reduced = attn.norm(attn.sr(image).flatten(2).transpose(1, 2))
    assert reduced.shape == (2, 6, 8)
    q, (k, v) = attn.q(x), attn.kv(reduced).split(8, dim=-1)
    heads = [(q[..., part] @ k[..., part].transpose(1, 2) / 2).softmax(-1) @ v[..., part]
             for part in (slice(0, 4), slice(4, 8))]
    torch.testing.assert_close(attn(x, (4, 6)), attn.proj(torch.cat(heads, -1)))


def test_a_map_need_not_be_a_multiple_of_the_ratio():
    attn = SpatialReductionAttention(8, 2, sr_ratio=4)
    assert attn.reduce(torch.randn(1, 6 * 9, 8), (6, 9)).shape == (1, 2, 8)
    assert attn.reduce(torch.randn(1, 2 * 3, 8), (2, 3)).shape == (1, 1, 8)


def test_out_indices_choose_the_maps_and_their_order():
    model = build().eval()
    x = torch.randn(1, 3, 32, 32)
    every = model(x)
    chosen = copy.deepcopy(model)
    chosen.out_indices = (1, 3)
    assert all(torch.equal(a, b) for a, b in zip(chosen(x), every[1::2], strict=True))
    with pytest.raises(ValueError, match='out_indices'):
        build(out_indices=(0, 4))


@pytest.mark.parametrize('name', ['PyramidVisionTransformer', 'PyramidVisionTransformerV2'])
def test_checkpointing_changes_no_gradient(name):
    model = build(name, drop_path_rate=0.5).train()
    x = torch.randn(2, 3, 32, 32)
    gradients = []
    for with_cp in (False, True):
        for block in (b for i in range(1, 5) for b in getattr(model, f'block{i}')):
            block.with_cp = with_cp
        model.zero_grad()
        torch.manual_seed(0)
        sum(out.square().sum() for out in model(x)).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize('name', ['PyramidVisionTransformer', 'PyramidVisionTransformerV2'])
@pytest.mark.parametrize('frozen', [-1, 0, 1, 3])
def test_frozen_stages(name, frozen):
    model = build(name, frozen_stages=frozen, drop_rate=0.1).train()
    for key, p in model.named_parameters():
        stage = int(next(c for c in key if c.isdigit()))
        first = key.startswith(('patch_embed1', 'pos_embed1'))
        assert p.requires_grad == (stage > frozen and not (first and frozen >= 0)), key
    assert model.block4.training
    assert model.block1.training == (frozen < 1)
    sum(out.sum() for out in model(torch.randn(1, 3, 32, 32))).backward()


def test_drop_path_grows_to_the_last_block():
    model = MODELS.build(dict(type='PyramidVisionTransformer', drop_path_rate=0.2, **SMALL))
    rates = [block.drop_path.drop_prob for i in range(1, 5) for block in getattr(model, f'block{i}')]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])


def test_initial_weights_are_the_published_recipe():
    model = build(embed_dims=(64, 128, 320, 512), num_heads=(1, 2, 5, 8))
    model.init_weights()
    assert model.pos_embed1.std().item() == pytest.approx(0.02, rel=0.1)
    assert model.block4[0].mlp.fc1.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not model.block4[0].mlp.fc1.bias.any()
    v2 = build('PyramidVisionTransformerV2', embed_dims=(64, 128, 320, 512), num_heads=(1, 2, 5, 8))
    v2.init_weights()
    assert v2.block1[0].mlp.dwconv.dwconv.weight.std().item() == pytest.approx((2 / 9)**0.5, rel=0.1)


@pytest.mark.parametrize('wrong, message', [
    (dict(num_heads=(1, 2, 3)), 'num_heads'), (dict(num_heads=(3, 2, 3, 4)), 'num_heads'),
    (dict(frozen_stages=5), 'frozen_stages'), (dict(out_indices=()), 'out_indices')])
def test_wrong_arguments_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        build(**wrong)


@pytest.mark.parametrize('name', ['PyramidVisionTransformer', 'PyramidVisionTransformerV2'])
def test_a_model_can_be_copied_and_saved(name, tmp_path):
    model = build(name).eval()
    torch.save(copy.deepcopy(model), tmp_path / 'model.pt')
    loaded = torch.load(tmp_path / 'model.pt', weights_only=False)
    x = torch.randn(1, 3, 32, 32)
    assert all(torch.equal(a, b) for a, b in zip(model(x), loaded(x), strict=True))
