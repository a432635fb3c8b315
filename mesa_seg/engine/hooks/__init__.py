"""Hooks for mmengine's runner."""
from .memory_report import MemoryReportHook
from .progress import ProgressHook

__all__ = ['MemoryReportHook', 'ProgressHook']
