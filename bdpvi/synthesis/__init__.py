"""Synthetic rows that may be shared, from noisy counts of a table: ``bdpvi.synthesize``."""

from bdpvi.synthesis.content import Receipt
from bdpvi.synthesis.counts import Counts, NoisyCounts
from bdpvi.synthesis.intervals import Combined, combine
from bdpvi.synthesis.quality import evaluate
from bdpvi.synthesis.released import Synthetic, load, synthesize
from bdpvi.synthesis.report import Quality

__all__ = [
    "Combined",
    "Counts",
    "NoisyCounts",
    "Quality",
    "Receipt",
    "Synthetic",
    "combine",
    "evaluate",
    "load",
    "synthesize",
]
