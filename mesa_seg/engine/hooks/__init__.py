"""Hooks for mmengine's runner."""
from .conversion import MesaConversionHook
from .memory_report import MemoryReportHook
from .progress import ProgressHook

__all__ = ['MemoryReportHook', 'MesaConversionHook', 'ProgressHook']
