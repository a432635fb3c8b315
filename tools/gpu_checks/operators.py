"""Every operator on the device against the CPU operator and, where it has one, the exact result in float64; then what
any operator must do: the same bits again, the stream it is told, CUDA graphs, no memory left behind."""
import functools

import torch

from .cases import ROUNDING, ranges_for, small_cases


def run(context):
    count, operators = 0, set()
    for case in small_cases():
        if context.left < 0.55 * context.seconds:
            context.skip(f'operator cases after the first {count}: time')
            break
        context.attempt(str(case), check, context, case)
        count += 1
        operators.add(case.operator)
    context.progress(f'operators: {count} calls of {len(operators)} operators compared')
    context.results['operators'] = dict(calls=count, operators=sorted(operators))
    if context.device.type == 'cuda':
        for check_it in (same_bits_again, stream_is_used, graph_is_captured, nothing_is_left, beyond_32_bits,
                         second_device):
            context.attempt(check_it.__name__.replace('_', ' '), check_it, context)


def check(context, case):
    """Compare one call."""
    written = case.traits.get('written')
    want_args = [a.clone() if i == written else a for i, a in enumerate(case.args)]
    want = getattr(torch.ops.mesa_seg, case.operator)(*want_args)
    args = [context.put(a) for a in case.args]
    got = [t.cpu() for t in context.call(case.operator, args)]
    if written is not None:
        _compare(context, case, 'argument written', args[written].cpu(), want_args[written], 'exact')
        return
    want = list(want) if isinstance(want, tuple) else [want]
    exact = [None] * len(want) if case.exact is None else case.exact()
    for i, (g, w, e, how) in enumerate(zip(got, want, exact, case.compare, strict=True)):
        name = f'output {i}'
        if g.shape != w.shape or g.dtype != w.dtype:
            context.wrong(f'{case}: {name} is {g.dtype} {list(g.shape)}, on the CPU {w.dtype} {list(w.shape)}')
            continue
        _compare(context, case, name, g, w, how)
        if e is not None:
            _against_exact(context, case, name, g, e)


def _compare(context, case, name, got, want, how):
    if how == 'exact':
        same = torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0)) if got.is_floating_point() else torch.equal(got, want)
        if not same:
            context.wrong(f'{case}: {name} is not that of the CPU bit for bit ({_differing(got, want)})')
    elif how == 'labels':
        if (got == want).float().mean() < 0.999:
            context.wrong(f'{case}: {name}: {_differing(got, want)}')
    else:
        _near(context, f'{case}: {name} against the CPU', got, want)


def _against_exact(context, case, name, got, exact):
    _near(context, f'{case}: {name} against float64', got, exact)


def _near(context, name, got, want):
    if not got.numel():
        return
    tolerance = ROUNDING.get(got.dtype, 1e-6)
    got, want = got.double(), want.double()
    if not torch.equal(got.isnan(), want.isnan()):
        context.wrong(f'{name}: NaN in other places')
        return
    got, want = got.nan_to_num(), want.nan_to_num()
    size = want.abs().max().item()
    error = ((got - want).abs() / (want.abs() + max(1.0, size))).max().item()
    if error > 2 * tolerance:
        context.wrong(f'{name}: off by {error:.2e} relative to the largest value, expected at most {2 * tolerance:.1e}')


def _differing(got, want):
    differs = (got != want) & ~((got != got) & (want != want))
    if not differs.any():
        return 'other NaN'
    at = differs.flatten().nonzero()[0].item()
    return (f'{int(differs.sum())} of {got.numel()} differ, first at {at}: {got.flatten()[at].item()} '
            f'instead of {want.flatten()[at].item()}')


@functools.cache
def _samples():
    """One float32 case of each operator that is not tiny; making all cases takes seconds."""
    seen = {}
    for case in small_cases():
        size = sum(a.numel() for a in case.args if isinstance(a, torch.Tensor))
        if case.operator not in seen and size > 2000 and 'written' not in case.traits:
            seen[case.operator] = case
    return list(seen.values())


def _prepared(context):
    """Yields each sample and its arguments on the device."""
    for case in _samples():
        yield case, [context.put(a) for a in case.args]


def same_bits_again(context):
    for case, args in _prepared(context):
        first = context.call(case.operator, args)
        for _ in range(3):
            again = context.call(case.operator, args)
            if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
                context.wrong(f'{case}: other bits when run again')
                break


def stream_is_used(context):
    """Inputs are written on a side stream after a long wait: an operator on any other stream would read old values."""
    for case, args in _prepared(context):
        want = context.call(case.operator, args)
        late = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        for a in late:
            if isinstance(a, torch.Tensor):
                a.zero_()
        context.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            for a, b in zip(late, args, strict=True):
                if isinstance(a, torch.Tensor):
                    a.copy_(b)
            got = context.call(case.operator, late)
        stream.synchronize()
        if not all(torch.equal(a, b) for a, b in zip(want, got, strict=True)):
            context.wrong(f'{case}: does not run on the current stream')


def graph_is_captured(context):
    for case, args in _prepared(context):
        want = context.call(case.operator, args)
        graph = torch.cuda.CUDAGraph()
        kept = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        with torch.cuda.graph(graph):
            got = context.call(case.operator, kept)
        for out in got:
            out.zero_()
        graph.replay()
        context.synchronize()
        if not all(torch.equal(a, b) for a, b in zip(want, got, strict=True)):
            context.wrong(f'{case}: a captured CUDA graph gives other results')


def nothing_is_left(context):
    for case, args in _prepared(context):
        context.call(case.operator, args)
        context.synchronize()
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            context.call(case.operator, args)
        context.synchronize()
        left = torch.cuda.memory_allocated() - before
        if left:
            context.wrong(f'{case}: leaves {left} bytes allocated')


def beyond_32_bits(context):
    """More than 2^31 values: the end of the tensor is quantised as well as its beginning."""
    n = 2**31 + 2**20
    if torch.cuda.mem_get_info()[0] < 14 * n // 2:
        context.skip('tensors of more than 2^31 values: less than 14 GiB of memory free')
        return
    x = torch.empty(n, dtype=torch.bfloat16, device=context.device)
    for part in x.split(2**28):
        part.normal_()
    for block_size in (0, 256):
        view = x.view(-1, 1, 64)
        ranges = ranges_for(1).to(context.device) * 4
        codes, found = context.ops.quantize(view, None if block_size else ranges, 8, block_size, 1, True)
        used = found if block_size else ranges
        y = context.ops.dequantize(codes, used, *view.shape, 8, block_size, torch.bfloat16)
        for place in (slice(0, 2**20), slice(n - 2**20, n)):
            error = (y.view(-1)[place].float() - x[place].float()).abs().max().item()
            if error > (0.12 if not block_size else 0.08):
                context.wrong(f'quantize and dequantize of 2^31 + 2^20 values (block size {block_size}): off by {error:.3f}')
        del codes, found, y


def second_device(context):
    if torch.cuda.device_count() < 2:
        context.skip('a second GPU: there is only one')
        return
    for case in _samples():
        args = [a.to('cuda:1') if isinstance(a, torch.Tensor) else
                [t.to('cuda:1') for t in a] if isinstance(a, list) else a for a in case.args]
        want = context.call(case.operator, [context.put(a) for a in case.args])
        got = context.call(case.operator, args)
        if not all(g.device.index == 1 and torch.equal(g.cpu(), w.cpu()) for g, w in zip(got, want, strict=True)):
            context.wrong(f'{case}: other results on the second GPU')
