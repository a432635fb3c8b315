"""Plain Pyramid Vision Transformers: PVT (arXiv 2102.12122) and PVTv2 (arXiv 2106.13797), as MMSegmentation backbones.

MMSegmentation 1.2 has neither. Parameter names are those of the published ImageNet checkpoints, so that these load
through ``init_cfg=dict(type='Pretrained', checkpoint=...)`` with only the classifier's parameters left over.
"""
import math

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from mmcv.cnn import build_activation_layer, build_norm_layer
from mmcv.cnn.bricks.drop import build_dropout
from mmengine.model import BaseModule
from mmseg.registry import MODELS
from torch import nn

from ...nn import ScaledDotProductAttention

NORM = dict(type='LN', eps=1e-6)
ACTIVATION = dict(type='GELU')


def tokens_to_map(x, hw):
    """View tokens ``[B, H*W, C]`` as a map ``[B, C, H, W]``; no copy, the map lies channels-last in memory."""
    return x.transpose(1, 2).unflatten(2, hw)


def map_to_tokens(x):
    """View a map ``[B, C, H, W]`` as tokens ``[B, H*W, C]``; no copy, contiguous when the map lies channels-last."""
    return x.flatten(2).transpose(1, 2)


def resize_positions(positions, hw):
    """Interpolate learned positions ``[1, side**2, C]`` bilinearly to ``[1, H*W, C]`` of a map of size ``hw``."""
    side = math.isqrt(positions.shape[1])
    if hw == (side, side):
        return positions
    positions = tokens_to_map(positions, (side, side))
    return map_to_tokens(F.interpolate(positions, size=hw, mode='bilinear', align_corners=False))


def _positions_from_checkpoint(loaded, own):
    """A checkpoint's positions ``[1, n, C]`` in the size of this model's: without class token, interpolated."""
    if loaded.ndim != 3 or loaded.shape[-1] != own.shape[-1]:
        return loaded  # not ours to mend: torch reports the size mismatch
    count = loaded.shape[1]
    side = math.isqrt(count)
    if count - side**2 == 1:
        loaded = loaded[:, 1:]
    elif count != side**2:
        return loaded
    own_side = math.isqrt(own.shape[1])
    return resize_positions(loaded, (own_side, own_side))


class PatchEmbed(nn.Module):
    """Strided convolution and LayerNorm: a map to the tokens of the next stage.

    Args:
        in_channels (int): channels of the map.
        embed_dims (int): channels of the tokens.
        kernel_size (int): side of a patch.
        stride (int): distance between patches; equal to ``kernel_size``, patches do not overlap (PVT, section 3.2).
        padding (int): zeros on all four sides.
    """

    def __init__(self, in_channels, embed_dims, kernel_size, stride, padding=0):
        super().__init__()
        self.proj = nn.Conv2d(in_channels, embed_dims, kernel_size, stride, padding)
        # The published models use 1e-5 here and 1e-6 inside the blocks.
        self.norm = nn.LayerNorm(embed_dims, eps=1e-5)

    def forward(self, x):
        """Map ``[B, C, H, W]`` to tokens ``[B, h*w, D]`` and ``(h, w)``.

        Where patches do not overlap, the right and bottom edges are padded with zeros to whole patches, so that no
        pixel of an odd-sized image is dropped.
        """
        size, stride = self.proj.kernel_size[0], self.proj.stride[0]
        if size == stride:
            height, width = x.shape[-2:]
            if height % size or width % size:
                x = F.pad(x, (0, -width % size, 0, -height % size))
        x = self.proj(x)
        return self.norm(map_to_tokens(x)), tuple(x.shape[-2:])


class SpatialReductionAttention(nn.Module):
    """Multi-head attention whose keys and values come from a smaller map (PVT, section 3.3; PVTv2, section 3.2).

    Args:
        embed_dims (int): channels C.
        num_heads (int): heads; must divide C.
        sr_ratio (int): keys and values are taken from the map reduced by a convolution of this kernel and stride
            (1: the map itself).
        qkv_bias (bool): biases in the projections to q, k and v.
        qk_scale (float | None): factor on the logits; None: ``(C / num_heads) ** -0.5``.
        attn_drop_rate (float): dropout of the attention probabilities.
        proj_drop_rate (float): dropout of the output.
        linear (bool): linear SRA of PVTv2: average pooling to 7 x 7, 1 x 1 convolution, LayerNorm and GELU instead.
    """

    pool_size = 7

    def __init__(self, embed_dims, num_heads, sr_ratio=1, qkv_bias=True, qk_scale=None, attn_drop_rate=0.,
                 proj_drop_rate=0., linear=False):
        super().__init__()
        if embed_dims % num_heads:
            raise ValueError(f'num_heads must divide embed_dims, got {num_heads} heads for {embed_dims} channels')
        self.embed_dims = embed_dims
        self.num_heads = num_heads
        self.head_dims = embed_dims // num_heads
        self.sr_ratio = sr_ratio
        self.linear = linear
        self.q = nn.Linear(embed_dims, embed_dims, bias=qkv_bias)
        self.kv = nn.Linear(embed_dims, embed_dims * 2, bias=qkv_bias)
        self.attention = ScaledDotProductAttention(qk_scale, attn_drop_rate)
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.proj_drop = nn.Dropout(proj_drop_rate)
        if linear:
            self.pool = nn.AdaptiveAvgPool2d(self.pool_size)
            self.sr = nn.Conv2d(embed_dims, embed_dims, 1)
            self.norm = nn.LayerNorm(embed_dims, eps=1e-5)
            self.act = nn.GELU()
        elif sr_ratio > 1:
            self.sr = nn.Conv2d(embed_dims, embed_dims, sr_ratio, sr_ratio)
            self.norm = nn.LayerNorm(embed_dims, eps=1e-5)

    def reduce(self, x, hw):
        """Tokens ``[B, H*W, C]`` that keys and values are made of: ``[B, M, C]``."""
        if self.linear:
            x = self.sr(self.pool(tokens_to_map(x, hw)))
            return self.act(self.norm(map_to_tokens(x)))
        if self.sr_ratio > 1:
            x = tokens_to_map(x, hw)
            short = [max(0, self.sr_ratio - side) for side in hw]
            if any(short):  # a map smaller than the kernel: one token, zeros beyond the edge
                x = F.pad(x, (0, short[1], 0, short[0]))
            return self.norm(map_to_tokens(self.sr(x)))
        return x

    def forward(self, x, hw):
        """Tokens ``[B, H*W, C]`` of a map of size ``hw`` to tokens of the same shape."""
        q = self.q(x).unflatten(-1, (self.num_heads, self.head_dims)).transpose(1, 2)
        kv = self.kv(self.reduce(x, hw)).unflatten(-1, (2, self.num_heads, self.head_dims))
        k, v = kv.permute(2, 0, 3, 1, 4)
        x = self.attention(q, k, v).transpose(1, 2).flatten(2)
        return self.proj_drop(self.proj(x))


class FeedForward(nn.Module):
    """The MLP of a PVT block: Linear, activation, Linear."""

    def __init__(self, embed_dims, hidden_dims, drop_rate=0., act_cfg=ACTIVATION):
        super().__init__()
        self.fc1 = nn.Linear(embed_dims, hidden_dims)
        self.act = build_activation_layer(act_cfg)
        self.fc2 = nn.Linear(hidden_dims, embed_dims)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x, hw):
        """Tokens ``[B, H*W, C]`` to tokens of the same shape."""
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class DepthwiseConv(nn.Module):
    """3 x 3 depth-wise convolution over tokens, zero padded: it gives PVTv2 its sense of position."""

    def __init__(self, channels):
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, x, hw):
        """Tokens ``[B, H*W, C]`` to tokens of the same shape."""
        return map_to_tokens(self.dwconv(tokens_to_map(x, hw)))


class ConvFeedForward(FeedForward):
    """The MLP of a PVTv2 block, with a depth-wise convolution before the activation (section 3.4).

    Args:
        linear (bool): the block uses linear SRA; the published models then have a ReLU before the convolution.
    """

    def __init__(self, embed_dims, hidden_dims, drop_rate=0., act_cfg=ACTIVATION, linear=False):
        super().__init__(embed_dims, hidden_dims, drop_rate, act_cfg)
        self.dwconv = DepthwiseConv(hidden_dims)
        self.relu = nn.ReLU(inplace=True) if linear else nn.Identity()

    def forward(self, x, hw):
        """Tokens ``[B, H*W, C]`` of a map of size ``hw`` to tokens of the same shape."""
        x = self.dwconv(self.relu(self.fc1(x)), hw)
        return self.drop(self.fc2(self.drop(self.act(x))))


class Block(nn.Module):
    """Pre-norm transformer block: ``x + attn(norm1(x))``, then ``x + mlp(norm2(x))``, each with drop path."""

    def __init__(self, embed_dims, attn, mlp, drop_path_rate, norm_cfg, with_cp=False):
        super().__init__()
        self.with_cp = with_cp
        self.norm1 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.attn = attn
        self.norm2 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.mlp = mlp
        self.drop_path = build_dropout(dict(type='DropPath', drop_prob=drop_path_rate))

    def _forward(self, x, hw):
        x = x + self.drop_path(self.attn(self.norm1(x), hw))
        return x + self.drop_path(self.mlp(self.norm2(x), hw))

    def forward(self, x, hw):
        """Tokens ``[B, H*W, C]`` of a map of size ``hw`` to tokens of the same shape."""
        if self.with_cp and torch.is_grad_enabled() and x.requires_grad:
            return torch.utils.checkpoint.checkpoint(self._forward, x, hw, use_reentrant=False)
        return self._forward(x, hw)


class _Pyramid(BaseModule):
    """What PVT and PVTv2 share: stages of a patch embedding and blocks, numbered from 1 in parameter names.

    Args:
        make_stage (callable): stage index from 0 to a dict of the stage's parts in the order they are applied:
            ``patch_embed``, optionally ``pos_embed`` (a parameter ``[1, side**2, C]``) and ``pos_drop``, ``block``,
            optionally ``norm``.
        num_stages (int): stages to make.
        out_indices, frozen_stages, init_cfg: as in :class:`PyramidVisionTransformer`.
    """

    def __init__(self, make_stage, num_stages, out_indices, frozen_stages, init_cfg):
        super().__init__(init_cfg=init_cfg)
        if not out_indices or not all(0 <= i < num_stages for i in out_indices):
            raise ValueError(f'out_indices must name stages 0..{num_stages - 1}, got {tuple(out_indices)}')
        if not -1 <= frozen_stages <= num_stages:
            raise ValueError(f'frozen_stages must lie in -1..{num_stages}, got {frozen_stages}')
        self.num_stages = num_stages
        self.out_indices = tuple(out_indices)
        self.frozen_stages = frozen_stages
        for i in range(num_stages):
            for name, part in make_stage(i).items():
                setattr(self, f'{name}{i + 1}', part)
        self._freeze()

    def _part(self, name, i):
        return getattr(self, f'{name}{i + 1}', None)

    def _freeze(self):
        for i in range(max(1, self.frozen_stages) if self.frozen_stages >= 0 else 0):
            whole = i < self.frozen_stages
            for name in ('patch_embed', 'pos_embed') + whole * ('pos_drop', 'block', 'norm'):
                part = self._part(name, i)
                if part is None:
                    continue
                part.requires_grad_(False)
                if isinstance(part, nn.Module):
                    part.eval()

    def train(self, mode=True):
        """Set training mode; frozen stages stay in eval mode."""
        super().train(mode)
        self._freeze()
        return self

    def _init_module(self, module):
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def init_weights(self):
        """Initialise as published, then by ``init_cfg``: a checkpoint overwrites what it holds."""
        if not self.is_init:
            self.apply(self._init_module)
        super().init_weights()

    def forward(self, x):
        """Image ``[B, in_channels, H, W]`` to a list of maps ``[B, C_i, H_i, W_i]``, one for each of ``out_indices``.

        H_i and W_i are the input's sides over the stage's stride, rounded up.
        """
        outs = []
        for i in range(max(self.out_indices) + 1):
            x, hw = self._part('patch_embed', i)(x)
            position = self._part('pos_embed', i)
            if position is not None:
                x = self._part('pos_drop', i)(x + resize_positions(position, hw))
            for block in self._part('block', i):
                x = block(x, hw)
            norm = self._part('norm', i)
            if norm is not None:
                x = norm(x)
            x = tokens_to_map(x, hw)
            if i in self.out_indices:
                outs.append(x)
        return outs


def _check_stages(depths, **per_stage):
    for name, value in per_stage.items():
        if len(value) != len(depths):
            raise ValueError(f'{name} must have one entry a stage, as depths has ({len(depths)}), got {tuple(value)}')


def _drop_path_rates(last, depths):
    steps = max(1, sum(depths) - 1)
    rates = (last * i / steps for i in range(sum(depths)))
    return [[next(rates) for _ in range(depth)] for depth in depths]


@MODELS.register_module()
class PyramidVisionTransformer(_Pyramid):
    """PVT (Wang et al., ICCV 2021, arXiv 2102.12122).

    Stage i gives a map of stride ``patch_size * 2**i``. Tiny, Small, Medium and Large differ in ``depths``: 2-2-2-2,
    3-4-6-3, 3-4-18-3 and 3-8-27-3. The class token of the published classifier has no place here: loading drops its
    position from the checkpoint's last ``pos_embed``.

    Args:
        pretrain_img_size (int): side of the square image each of whose patches has a learned position. Other input
            sizes get positions interpolated bilinearly, and so do checkpoints of other sizes when they are loaded.
        in_channels (int): channels of the image.
        patch_size (int): side of a patch of the first stage; later stages join 2 x 2 patches.
        embed_dims (Sequence[int]): channels of each stage.
        depths (Sequence[int]): blocks of each stage.
        num_heads (Sequence[int]): attention heads of each stage.
        mlp_ratios (Sequence[int]): hidden channels of the MLP over the stage's.
        sr_ratios (Sequence[int]): spatial reduction of keys and values.
        qkv_bias (bool): biases in the projections to q, k and v.
        qk_scale (float | None): factor on the attention logits; None: ``head_dims ** -0.5``.
        drop_rate (float): dropout of MLPs, attention outputs and embedded positions.
        attn_drop_rate (float): dropout of attention probabilities.
        drop_path_rate (float): drop-path rate of the last block, growing linearly from 0 at the first.
        out_indices (Sequence[int]): stages whose maps are returned, from 0.
        norm_cfg (dict): the blocks' normalisation.
        act_cfg (dict): the MLPs' activation.
        with_cp (bool): recompute each block in backward instead of keeping its activations.
        frozen_stages (int): number of leading stages without gradient and in eval mode; 0: the first patch embedding
            and its positions only; -1: none.
        init_cfg (dict | None): mmengine initialisation, usually ``dict(type='Pretrained', checkpoint=...)``.
    """

    def __init__(self, pretrain_img_size=224, in_channels=3, patch_size=4, embed_dims=(64, 128, 320, 512),
                 depths=(2, 2, 2, 2), num_heads=(1, 2, 5, 8), mlp_ratios=(8, 8, 4, 4), sr_ratios=(8, 4, 2, 1),
                 qkv_bias=True, qk_scale=None, drop_rate=0., attn_drop_rate=0., drop_path_rate=0.1,
                 out_indices=(0, 1, 2, 3), norm_cfg=NORM, act_cfg=ACTIVATION, with_cp=False,
                 frozen_stages=-1, init_cfg=None):
        _check_stages(depths, embed_dims=embed_dims, num_heads=num_heads, mlp_ratios=mlp_ratios, sr_ratios=sr_ratios)
        rates = _drop_path_rates(drop_path_rate, depths)

        def make_stage(i):
            channels, before = embed_dims[i], embed_dims[i - 1] if i else in_channels
            patch = 2 if i else patch_size
            side = max(1, pretrain_img_size // (patch_size * 2**i))
            return dict(
                patch_embed=PatchEmbed(before, channels, patch, patch),
                pos_embed=nn.Parameter(torch.zeros(1, side**2, channels)),
                pos_drop=nn.Dropout(drop_rate),
                block=nn.ModuleList(
                    Block(channels,
                          SpatialReductionAttention(channels, num_heads[i], sr_ratios[i], qkv_bias, qk_scale,
                                                    attn_drop_rate, drop_rate),
                          FeedForward(channels, int(channels * mlp_ratios[i]), drop_rate, act_cfg),
                          rate, norm_cfg, with_cp) for rate in rates[i]))

        super().__init__(make_stage, len(depths), out_indices, frozen_stages, init_cfg)

    def init_weights(self):
        """Initialise as published, then by ``init_cfg``: a checkpoint overwrites what it holds."""
        if not self.is_init:
            for i in range(self.num_stages):
                nn.init.trunc_normal_(self._part('pos_embed', i), std=.02)
        super().init_weights()

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        for i in range(self.num_stages):
            key = f'{prefix}pos_embed{i + 1}'
            if key in state_dict:
                state_dict[key] = _positions_from_checkpoint(state_dict[key], self._part('pos_embed', i))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


@MODELS.register_module()
class PyramidVisionTransformerV2(_Pyramid):
    """PVTv2 (Wang et al., 2022, arXiv 2106.13797): overlapping patches, depth-wise convolution in the MLP, no position
    embedding, LayerNorm after each stage.

    ========  ======================  ============  ==============
    model     ``embed_dims``          ``depths``    ``mlp_ratios``
    ========  ======================  ============  ==============
    B0        32, 64, 160, 256        2, 2, 2, 2    8, 8, 4, 4
    B1        64, 128, 320, 512       2, 2, 2, 2    8, 8, 4, 4
    B2        64, 128, 320, 512       3, 4, 6, 3    8, 8, 4, 4
    B3        64, 128, 320, 512       3, 4, 18, 3   8, 8, 4, 4
    B4        64, 128, 320, 512       3, 8, 27, 3   8, 8, 4, 4
    B5        64, 128, 320, 512       3, 6, 40, 3   4, 4, 4, 4
    ========  ======================  ============  ==============

    Args:
        linear (bool): linear spatial-reduction attention (the "-Li" models): keys and values from a 7 x 7 map whatever
            the input size; ``sr_ratios`` is then without effect.
        others: as in :class:`PyramidVisionTransformer`.
    """

    def __init__(self, in_channels=3, embed_dims=(64, 128, 320, 512), depths=(2, 2, 2, 2), num_heads=(1, 2, 5, 8),
                 mlp_ratios=(8, 8, 4, 4), sr_ratios=(8, 4, 2, 1), linear=False, qkv_bias=True, qk_scale=None,
                 drop_rate=0., attn_drop_rate=0., drop_path_rate=0.1, out_indices=(0, 1, 2, 3),
                 norm_cfg=NORM, act_cfg=ACTIVATION, with_cp=False, frozen_stages=-1,
                 init_cfg=None):
        _check_stages(depths, embed_dims=embed_dims, num_heads=num_heads, mlp_ratios=mlp_ratios, sr_ratios=sr_ratios)
        rates = _drop_path_rates(drop_path_rate, depths)

        def make_stage(i):
            channels, before = embed_dims[i], embed_dims[i - 1] if i else in_channels
            kernel, stride = (3, 2) if i else (7, 4)
            return dict(
                patch_embed=PatchEmbed(before, channels, kernel, stride, kernel // 2),
                block=nn.ModuleList(
                    Block(channels,
                          SpatialReductionAttention(channels, num_heads[i], sr_ratios[i], qkv_bias, qk_scale,
                                                    attn_drop_rate, drop_rate, linear),
                          ConvFeedForward(channels, int(channels * mlp_ratios[i]), drop_rate, act_cfg, linear),
                          rate, norm_cfg, with_cp) for rate in rates[i]),
                norm=build_norm_layer(norm_cfg, channels)[1])

        super().__init__(make_stage, len(depths), out_indices, frozen_stages, init_cfg)

    def _init_module(self, module):
        super()._init_module(module)
        if isinstance(module, nn.Conv2d):
            fan_out = module.weight[0, 0].numel() * module.out_channels // module.groups
            nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
            nn.init.zeros_(module.bias)
