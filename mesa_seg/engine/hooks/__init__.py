"""Hooks for mmengine's runner."""
from .memory_report import MemoryReportHook

__all__ = ['MemoryReportHook']
