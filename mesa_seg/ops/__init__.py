"""The operators ``torch.ops.mesa_seg``, one file a family."""
from mesa_seg.ops._library import load_kernels
from mesa_seg.ops.window_attention import window_attention, window_attention_backward

KERNELS = load_kernels()

__all__ = ['KERNELS', 'window_attention', 'window_attention_backward']
