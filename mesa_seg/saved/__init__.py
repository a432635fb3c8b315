"""Saved forms of activations: what is kept for backward, and how it comes back."""
from .activation import SavedActivation, attach, derive, exact, lookup
from .policy import KINDS, Policy, Rule
from .propagate import Propagate
from .quantizer import Quantizer, QuantizerConfig
from .seed import advance_with_gradient, next_seed, seed_stream

__all__ = [
    'KINDS', 'Policy', 'Propagate', 'Quantizer', 'QuantizerConfig', 'Rule', 'SavedActivation', 'advance_with_gradient',
    'attach', 'derive', 'exact', 'lookup', 'next_seed', 'seed_stream'
]
