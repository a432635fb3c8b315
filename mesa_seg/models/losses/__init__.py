"""Losses registered with mmseg."""
from mesa_seg.models.losses.cross_entropy_loss import MesaCrossEntropyLoss

__all__ = ['MesaCrossEntropyLoss']
