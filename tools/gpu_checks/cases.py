"""Calls of every operator: small and odd ones to compare, and those of a training step to time."""
from dataclasses import dataclass, field

import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
CODINGS = ((8, 0), (4, 0), (2, 0), (8, 256), (4, 64), (2, 24))
ROUNDING = {torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@dataclass
class Case:
    """One call.

    Attributes:
        operator (str): name in ``torch.ops.mesa_seg``.
        args (list): on the CPU.
        compare (list): for each output how it must agree with the CPU operator: ``'exact'``; ``'close'``, to rounding;
            ``'labels'``, all but one in a thousand.
        exact (callable | None): the outputs in float64, None for those that have no such form.
        label (str): the sort of case.
    """
    operator: str
    args: list
    compare: list
    exact: object = None
    label: str = ''
    traits: dict = field(default_factory=dict)

    def __str__(self):
        return f'{self.operator} ({self.label})'


def _short(dtype):
    return str(dtype).removeprefix('torch.')


def ranges_for(groups):
    return torch.tensor([[-2.5, 2.75], [-1.0, 1.5], [-3.0, 3.0]]).repeat((groups + 2) // 3, 1)[:groups].contiguous()


def _on_cpu(operator, *args):
    return getattr(torch.ops.mesa_seg, operator)(*args)


def small_cases():
    """Yields a Case for every operator, dtype, coding and kind of shape."""
    torch.manual_seed(0)
    views = [((700, 3, 32), 'tokens'), ((2, 4, 32 * 49), 'maps'), ((5, 3, 7), 'odd'), ((1, 1, 1), 'one'),
             ((0, 2, 8), 'none'), ((33, 40, 64), 'many groups')]
    for dtype in FLOATS:
        for shape, kind in views:
            x = (torch.randn(shape) * 2).to(dtype)
            yield from _quantizing(x, kind, CODINGS if kind in ('tokens', 'odd') else CODINGS[:1] + CODINGS[4:5])
        strided = (torch.randn(32, 50, 3) * 2).to(dtype).permute(1, 2, 0)
        yield from _quantizing(strided, 'strided', ((4, 0), (8, 64)))
        yield from _masks(dtype)
        for rows, channels, groups in ((601, 96, 3), (50, 768, 24), (9, 1536, 48), (7, 21, 3), (0, 32, 1)):
            yield from _layer_norm(torch.randn(rows, channels).mul(2).add(1).to(dtype), groups)
        for shape, groups in (((2, 64, 400), 2), ((3, 6, 25), 3), ((2, 3, 9001), 1), ((1, 2, 1), 1)):
            yield from _batch_norm(torch.randn(shape).mul(2).add(1).to(dtype), groups)
        for shape in ((2, 14, 15, 3, 32, 7, 3), (1, 12, 13, 4, 32, 12, 0), (2, 30, 27, 2, 32, 12, 6), (1, 13, 9, 2, 32, 8, 3),
                      (1, 9, 10, 2, 24, 7, 2), (1, 15, 9, 1, 64, 8, 4), (1, 14, 25, 1, 48, 12, 5), (1, 5, 6, 1, 20, 4, 1),
                      (1, 15, 14, 1, 32, 13, 6)):
            yield from _attention(dtype, *shape)
        for size, target, classes in (((16, 16), (64, 64), 150), ((9, 7), (40, 31), 19), ((5, 5), (3, 4), 4)):
            yield from _loss(dtype, size, target, classes)
    running, observed = torch.randn(5, 2), torch.randn(5, 2).sort(1).values
    observed[2] = torch.tensor([float('inf'), float('-inf')])
    yield Case('update_ranges', [running, observed, 0.9], [], label='written in place', traits=dict(written=0))


def _quantizing(x, kind, codings):
    label = f'{kind}, {_short(x.dtype)}'
    yield Case('group_range', [x], ['exact'], label=label)
    for bits, block_size in codings:
        ranges = None if block_size else ranges_for(x.shape[1])
        name = f'{label}, {bits} bits' + (f', blocks of {block_size}' if block_size else '')
        for stochastic in (True, False):
            args = [x, ranges, bits, block_size, 0x1234567890ab, stochastic]
            yield Case('quantize', args, ['exact', 'exact'], label=name + ('' if stochastic else ', nearest'))
        codes, found = _on_cpu('quantize', *args)
        used = found if block_size else ranges
        yield Case('dequantize', [codes, used, *x.shape, bits, block_size, x.dtype], ['exact'], label=name)
        channels = x.shape[1] * x.shape[2]
        if x.numel():
            scale, shift = torch.randn(channels), torch.randn(channels)
            yield Case('dequantize_affine', [codes, used, *x.shape, bits, block_size, scale, shift, 1, True, x.dtype],
                       ['exact'], label=name)
        h = _on_cpu('dequantize', codes, used, *x.shape, bits, block_size, torch.float32).double()
        grad = torch.randn(x.shape).to(x.dtype)
        for tanh in (False, True):
            way = 'tanh' if tanh else 'none'
            yield Case('gelu_quantize', [x, ranges, bits, block_size, 3, True, tanh], ['close', 'exact', 'exact'],
                       lambda x=x, way=way: [torch.nn.functional.gelu(x.double(), approximate=way), None, None],
                       f'{name}, {way}')
            yield Case('gelu_backward', [grad, codes, used, bits, block_size, tanh], ['close'],
                       lambda grad=grad, h=h, way=way: [torch.ops.aten.gelu_backward(grad.double(), h, approximate=way)],
                       f'{name}, {way}')
            yield Case('gelu_dequantize', [codes, used, *x.shape, bits, block_size, tanh, x.dtype], ['close'],
                       lambda h=h, way=way: [torch.nn.functional.gelu(h, approximate=way)], f'{name}, {way}')


def _masks(dtype):
    for n in (0, 1, 4095, 100_003):
        x = torch.randn(n + 1).to(dtype)[1:]
        label = f'{n} values, {_short(dtype)}'
        yield Case('pack_mask', [x > 0], ['exact'], label=label)
        yield Case('relu_mask', [x], ['exact', 'exact'], label=label)
        bits = _on_cpu('pack_mask', x > 0.5)
        yield Case('unpack_mask', [bits, n], ['exact'], label=label)
        yield Case('mask_multiply', [x, bits, 1.25], ['exact'], label=label)


def _layer_norm(x, groups):
    rows, channels = x.shape
    weight, bias = torch.randn(channels) + 1, torch.randn(channels)
    for bits, block_size in CODINGS if channels in (96, 21) else CODINGS[:1] + CODINGS[4:5]:
        label = f'{rows} x {channels}, {_short(x.dtype)}, {bits} bits' + (f', blocks of {block_size}' if block_size else '')
        ranges = None if block_size else ranges_for(groups)
        args = [x, weight, bias, 1e-5, ranges, groups, bits, block_size, 5, True]

        def forward(x=x, weight=weight, bias=bias):
            y = torch.nn.functional.layer_norm(x.double(), (x.shape[1],), weight.double(), bias.double(), 1e-5)
            return [y, (x.double().var(1, correction=0) + 1e-5).rsqrt(), None, None]

        yield Case('layer_norm_quantize', args, ['exact'] * 4, forward, label)
        _, rstd, codes, found = _on_cpu('layer_norm_quantize', *args)
        used = found if block_size else ranges
        grad = torch.randn(x.shape).to(x.dtype)
        n = _on_cpu('dequantize', codes, used, rows, groups, channels // groups, bits, block_size, torch.float32)
        n = n.view(rows, channels).double()

        def backward(grad=grad, n=n, rstd=rstd, weight=weight):
            gy = grad.double()
            g = gy * weight.double()
            gx = (g - g.mean(1, True) - n * (g * n).mean(1, True)) * rstd.double()[:, None]
            return [gx, (gy * n).sum(0), gy.sum(0)]

        yield Case('layer_norm_backward', [grad, codes, used, rstd, weight, groups, bits, block_size], ['close'] * 3,
                   backward, label)


def _batch_norm(x, groups):
    batch, channels, positions = x.shape

    def statistics(x=x):
        return [x.double().mean((0, 2)), x.double().var((0, 2), correction=0)]

    yield Case('batch_norm_stats', [x], ['close', 'close'], statistics, f'{tuple(x.shape)}, {_short(x.dtype)}')
    mean, var = _on_cpu('batch_norm_stats', x)
    rstd, weight, bias = (var + 1e-5).rsqrt(), torch.randn(channels), torch.randn(channels)
    for bits, block_size in CODINGS if positions == 400 else CODINGS[:1] + CODINGS[4:5]:
        label = f'{tuple(x.shape)}, {_short(x.dtype)}, {bits} bits' + (f', blocks of {block_size}' if block_size else '')
        ranges = None if block_size else ranges_for(groups)
        args = [x, mean, rstd, weight, bias, True, ranges, groups, bits, block_size, 5, True]
        yield Case('batch_norm_quantize', args, ['exact'] * 4, label=label)
        _, mask, codes, found = _on_cpu('batch_norm_quantize', *args)
        used = found if block_size else ranges
        grad = torch.randn(x.shape).to(x.dtype)
        n = _on_cpu('dequantize', codes, used, batch, groups, channels // groups * positions, bits, block_size,
                    torch.float32).view(x.shape).double()
        g = torch.where(_on_cpu('unpack_mask', mask, x.numel()).view(x.shape), grad.double(), 0.0)
        sums = [g.sum((0, 2)), (g * n).sum((0, 2))]
        yield Case('batch_norm_backward_reduce', [grad, mask, codes, used, groups, bits, block_size], ['close'] * 2,
                   lambda sums=sums: sums, label)
        means = [(s / (batch * positions)).float() for s in sums]

        def backward(g=g, n=n, means=means, rstd=rstd, weight=weight):
            a, b = (m.double()[:, None] for m in means)
            return [(g - a - n * b) * (rstd.double() * weight.double())[:, None]]

        yield Case('batch_norm_backward', [grad, mask, codes, used, rstd, weight, *means, groups, bits, block_size],
                   ['exact'], backward, label)


def _attention(dtype, batch, height, width, heads, dim, window, shift):
    label = f'{height} x {width}, {heads} heads of {dim}, window {window}, shift {shift}, {_short(dtype)}'
    qkv = torch.randn(batch, height, width, 3 * heads * dim).to(dtype)
    pad, bias = torch.randn(3 * heads * dim), torch.randn(heads, window**2, window**2)
    grad = torch.randn(batch, height, width, heads * dim).to(dtype)
    rest = [pad, bias, heads, window, shift, dim**-0.5]

    def forward(qkv=qkv, rest=rest):
        from mesa_seg.reference import window_attention as reference
        return [reference.window_attention(qkv.double(), rest[0].double(), rest[1].double(), *rest[2:])]

    yield Case('window_attention', [qkv, *rest], ['close'], forward, label)
    yield Case('window_attention_backward', [grad, qkv, *rest], ['close'] * 3, label=label)


def _loss(dtype, size, target, classes):
    label = f'{size} to {target}, {classes} classes, {_short(dtype)}'
    logits = torch.randn(2, classes, *size).mul(3).to(dtype)
    labels = torch.randint(0, classes, (2, *target))
    labels[torch.rand(labels.shape) < 0.1] = 255

    def exact(logits=logits, labels=labels, target=target):
        z = logits.double().requires_grad_()
        big = torch.nn.functional.interpolate(z, target, mode='bilinear')
        loss = torch.nn.functional.cross_entropy(big, labels, ignore_index=255, reduction='none')
        loss.sum().backward()
        return [loss.detach(), z.grad, None]

    yield Case('upsample_cross_entropy', [logits, labels, None, None, 255, False, True, True], ['close', 'close', 'sums'],
               exact, label)
    fused = torch.backends.cpu.get_cpu_capability() in ('AVX2', 'AVX512')  # as the GPU rounds
    yield Case('upsample_argmax', _argmax(logits[0], target), ['exact' if fused else 'labels'], label=label)


def _argmax(logits, target):
    """Arguments of the operator for one map, bilinearly resized."""
    from mesa_seg.reference.upsample import bilinear_taps
    taps = [bilinear_taps(full, low, False) for full, low in zip(target, logits.shape[1:], strict=True)]
    lists = [part for index, weight in taps for part in (index.int(), weight)]
    return [[logits], *[[part.to(logits.device)] for part in lists], False]


def large_cases(device, mib=128):
    """Yields (name, operator, args, bytes moved at least, bytes of outputs counted) made on the device: what a step of
    UPerNet Swin-T would give each operator, scaled to ``mib`` MiB of float32 activations."""
    n = mib * 2**18
    for dtype in (torch.float32, torch.bfloat16):
        rows = n // 384
        x = torch.randn(rows, 12, 32, device=device, dtype=dtype)
        lo, hi = x.amin((0, 2)).float(), x.amax((0, 2)).float()
        ranges = torch.stack((lo, hi), 1)
        short = _short(dtype)
        yield f'group_range {short}', 'group_range', [x]
        for bits, block_size in ((8, 0), (8, 256), (4, 64), (2, 64)):
            given = None if block_size else ranges
            how = f'{short}, {bits} bits, ' + (f'blocks of {block_size}' if block_size else 'groups')
            yield f'quantize {how}', 'quantize', [x, given, bits, block_size, 1, True]
            codes, found = torch.ops.mesa_seg.quantize(x, given, bits, block_size, 1, True)
            used = found if block_size else ranges
            yield f'dequantize {how}', 'dequantize', [codes, used, *x.shape, bits, block_size, dtype]
            scale = torch.randn(384, device=device)
            yield (f'dequantize_affine {how}', 'dequantize_affine',
                   [codes, used, *x.shape, bits, block_size, scale, scale, 1, False, dtype])
            yield f'gelu_quantize {how}', 'gelu_quantize', [x, given, bits, block_size, 1, True, False]
            yield f'gelu_backward {how}', 'gelu_backward', [x, codes, used, bits, block_size, False]
            yield f'gelu_dequantize {how}', 'gelu_dequantize', [codes, used, *x.shape, bits, block_size, False, dtype]
            flat = x.view(rows, 384)
            yield (f'layer_norm_quantize {how}', 'layer_norm_quantize',
                   [flat, scale, scale, 1e-5, given, 12, bits, block_size, 1, True])
            rstd = torch.ones(rows, device=device)
            yield (f'layer_norm_backward {how}', 'layer_norm_backward',
                   [flat, codes, used, rstd, scale, 12, bits, block_size])
        yield f'relu_mask {short}', 'relu_mask', [x]
        mask = torch.ops.mesa_seg.relu_mask(x)[1]
        yield f'mask_multiply {short}', 'mask_multiply', [x, mask, 1.0]
        if dtype == torch.float32:  # these know no dtype
            yield 'pack_mask', 'pack_mask', [x > 0]
            yield 'unpack_mask', 'unpack_mask', [mask, n]
        images = torch.randn(4, 512, n // 2048, device=device, dtype=dtype)
        ones = torch.ones(512, device=device)
        images_ranges = torch.tensor([[-5.0, 5.0]], device=device).repeat(16, 1)
        yield f'batch_norm_stats {short}', 'batch_norm_stats', [images]
        args = [images, ones * 0, ones, ones, ones, True, images_ranges, 16, 8, 0, 1, True]
        yield f'batch_norm_quantize {short}, 8 bits, groups', 'batch_norm_quantize', args
        _, mask, codes, _ = torch.ops.mesa_seg.batch_norm_quantize(*args)
        backward = [images, mask, codes, images_ranges]
        yield (f'batch_norm_backward_reduce {short}, 8 bits, groups', 'batch_norm_backward_reduce',
               [*backward, 16, 8, 0])
        yield (f'batch_norm_backward {short}, 8 bits, groups', 'batch_norm_backward',
               [*backward, ones, ones, ones, ones, 16, 8, 0])
        for window, heads, side in ((7, 3, 128), (12, 4, 96)):
            qkv = torch.randn(8, side, side, 3 * heads * 32, device=device, dtype=dtype)
            bias = torch.randn(heads, window**2, window**2, device=device)
            grad = torch.randn(8, side, side, heads * 32, device=device, dtype=dtype)
            rest = [None, bias, heads, window, window // 2, 32**-0.5]
            yield f'window_attention {short}, window {window}', 'window_attention', [qkv, *rest]
            yield f'window_attention_backward {short}, window {window}', 'window_attention_backward', [grad, qkv, *rest]
        logits = torch.randn(4, 150, 128, 128, device=device, dtype=dtype)
        labels = torch.randint(0, 150, (4, 512, 512), device=device)
        yield (f'upsample_cross_entropy {short}', 'upsample_cross_entropy',
               [logits, labels, None, None, 255, False, False, True])
        yield f'upsample_argmax {short}', 'upsample_argmax', _argmax(logits[0], (512, 512))
