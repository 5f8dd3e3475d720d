"""Rows that may be shared, from noisy counts of a table: ``bdpvi.synthesize``."""

from bdpvi.synthesis.counts import Counts, NoisyCounts
from bdpvi.synthesis.findings import Quality
from bdpvi.synthesis.quality import evaluate
from bdpvi.synthesis.released import Receipt, Synthetic, load, synthesize

__all__ = [
    "Counts",
    "NoisyCounts",
    "Quality",
    "Receipt",
    "Synthetic",
    "evaluate",
    "load",
    "synthesize",
]
