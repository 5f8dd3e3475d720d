"""Synthetic rows that may be shared, from noisy counts of a table: ``bdpvi.synthesize``."""

from bdpvi.synthesis.content import TableReceipt
from bdpvi.synthesis.counts import Counts, NoisyCounts
from bdpvi.synthesis.quality import evaluate
from bdpvi.synthesis.released import synthesize
from bdpvi.synthesis.report import Quality
from bdpvi.synthesis.synthetic import Combined, Synthetic, combine, load
from bdpvi.synthesis.table_one import TableOne, table_one

__all__ = [
    "Combined",
    "Counts",
    "NoisyCounts",
    "Quality",
    "Synthetic",
    "TableOne",
    "TableReceipt",
    "combine",
    "evaluate",
    "load",
    "synthesize",
    "table_one",
]
