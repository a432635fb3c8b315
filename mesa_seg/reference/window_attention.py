"""Window attention over an unpartitioned token map in plain PyTorch: the oracle of the compiled kernels."""
import torch

MASKED = -100.0  # added to the logits of two tokens that the cyclic shift brought together (mmseg's value)


def check(qkv, pad, bias, heads, window, shift):
    """Raise a RuntimeError that names the first argument that does not fit; return (B, H, W, C, N)."""
    if qkv.dim() != 4:
        raise RuntimeError(f'qkv: expected [B, H, W, 3C], got {list(qkv.shape)}')
    if heads < 1 or qkv.shape[3] % (3 * heads):
        raise RuntimeError(f'heads: expected a divisor of C with qkv [B, H, W, 3C], got {heads} for {list(qkv.shape)}')
    if window < 1:
        raise RuntimeError(f'window: expected at least 1, got {window}')
    if not 0 <= shift < window:
        raise RuntimeError(f'shift: expected 0 <= shift < window = {window}, got {shift}')
    if pad is not None and list(pad.shape) != [qkv.shape[3]]:
        raise RuntimeError(f'pad: expected [3C] = [{qkv.shape[3]}], got {list(pad.shape)}')
    tokens = window * window
    if list(bias.shape) != [heads, tokens, tokens]:
        raise RuntimeError(f'bias: expected [heads, N, N] = [{heads}, {tokens}, {tokens}], got {list(bias.shape)}')
    batch, height, width, channels = qkv.shape
    return batch, height, width, channels // 3, tokens


def _windows(grid, window):
    """[Hp, Wp] -> [windows, N]."""
    rows, columns = grid.shape[0] // window, grid.shape[1] // window
    return grid.view(rows, window, columns, window).transpose(1, 2).reshape(rows * columns, window * window)


def token_index(height, width, window, shift, device=None):
    """Token of each window position, ``int64 [windows, N]``: ``y * width + x``, or ``height * width`` where padded."""
    grid = torch.full((-(-height // window) * window, -(-width // window) * window), height * width, device=device)
    grid[:height, :width] = torch.arange(height * width, device=device).view(height, width)
    return _windows(grid.roll((-shift, -shift), (0, 1)), window)


def shift_mask(height, width, window, shift, device=None):
    """0 or -100 for each pair of positions, ``float32 [windows, N, N]``: -100 where a shift joined distant regions."""
    def region(size):
        place = torch.arange(-(-size // window) * window, device=device)
        return (place >= len(place) - window).int() + (place >= len(place) - shift).int()

    regions = _windows(3 * region(height)[:, None] + region(width), window)
    apart = regions[:, :, None] != regions[:, None, :]
    return torch.zeros(apart.shape, device=device).masked_fill_(apart, MASKED)


def _probabilities(qkv, pad, bias, heads, window, shift, scale):
    """Scaled q, k, v ``[B, windows, heads, N, d]`` and the probabilities, in float32 (float64 for a float64 qkv)."""
    batch, height, width, channels, tokens = check(qkv, pad, bias, heads, window, shift)
    dtype = torch.promote_types(qkv.dtype, torch.float32)
    fill = qkv.new_zeros(3 * channels) if pad is None else pad
    index = token_index(height, width, window, shift, qkv.device)
    flat = qkv.to(dtype).reshape(batch, height * width, 3 * channels)
    flat = torch.cat([flat, fill.to(dtype).expand(batch, 1, 3 * channels)], 1)
    windows = flat[:, index].view(batch, len(index), tokens, 3, heads, channels // heads)
    q, k, v = windows.permute(3, 0, 1, 4, 2, 5).unbind(0)
    q = q * scale
    logits = q @ k.transpose(-2, -1) + bias.to(dtype)
    if shift > 0:
        logits = logits + shift_mask(height, width, window, shift, qkv.device).to(dtype)[:, None]
    return index, q, k, v, logits.softmax(-1)


def window_attention(qkv, pad, bias, heads, window, shift, scale):
    """See :func:`mesa_seg.ops.window_attention`."""
    batch, height, width, channels, _ = check(qkv, pad, bias, heads, window, shift)
    if qkv.numel() == 0:
        return qkv.new_empty(batch, height, width, channels)
    index, _, _, v, p = _probabilities(qkv, pad, bias, heads, window, shift, scale)
    rows = (p @ v).transpose(2, 3).reshape(batch, index.numel(), channels)
    out = rows.new_empty(batch, height * width + 1, channels)
    out[:, index.flatten()] = rows
    return out[:, :-1].reshape(batch, height, width, channels).to(qkv.dtype)


def window_attention_backward(grad, qkv, pad, bias, heads, window, shift, scale):
    """See :func:`mesa_seg.ops.window_attention_backward`."""
    batch, height, width, channels, tokens = check(qkv, pad, bias, heads, window, shift)
    if list(grad.shape) != [batch, height, width, channels]:
        raise RuntimeError(f'grad: expected [B, H, W, C] = [{batch}, {height}, {width}, {channels}], '
                           f'got {list(grad.shape)}')
    if grad.dtype != qkv.dtype:
        raise RuntimeError(f"grad: expected qkv's dtype {qkv.dtype}, got {grad.dtype}")
    if qkv.numel() == 0:
        return torch.empty_like(qkv), bias.new_zeros(3 * channels).float(), torch.zeros_like(bias).float()
    index, q, k, v, p = _probabilities(qkv, pad, bias, heads, window, shift, scale)
    flat = grad.to(p.dtype).reshape(batch, height * width, channels)
    flat = torch.cat([flat, flat.new_zeros(batch, 1, channels)], 1)  # outputs of padded tokens are cut off
    g = flat[:, index].view(batch, len(index), tokens, heads, channels // heads).transpose(2, 3)
    gp = g @ v.transpose(-2, -1)
    gs = p * (gp - (p * gp).sum(-1, keepdim=True))
    gq, gk, gv = gs @ k * scale, gs.transpose(-2, -1) @ q, p.transpose(-2, -1) @ g
    rows = torch.stack([gq, gk, gv]).permute(1, 2, 4, 0, 3, 5).reshape(batch, index.numel(), 3 * channels)
    gtokens = rows.new_zeros(batch, height * width + 1, 3 * channels).index_add_(1, index.flatten(), rows)
    wide = torch.promote_types(qkv.dtype, torch.float32)
    return (gtokens[:, :-1].reshape(qkv.shape).to(qkv.dtype), gtokens[:, -1].sum(0).to(wide),
            gs.sum((0, 1)).to(wide))
