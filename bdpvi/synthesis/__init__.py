"""Rows that may be shared, from noisy counts of a table: ``bdpvi.synthesize``."""

from bdpvi.synthesis.counts import Counts, NoisyCounts
from bdpvi.synthesis.released import Receipt, Synthetic, load, synthesize

__all__ = ["Counts", "NoisyCounts", "Receipt", "Synthetic", "load", "synthesize"]
