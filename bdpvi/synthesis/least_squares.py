"""A column's counts from all noisy tables that have it, by least squares, with their covariance.

All tables of a release have independent noise of known deviations, so the best linear unbiased
counts are those of generalized least squares, whose covariance is the inverse of the sum of the
tables' precisions (Gauss and Markov; for trees of counts Hay, Rastogi, Miklau and Suciu 2010).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bdpvi.datasets.grid import Codes
from bdpvi.synthesis.counts import Floats, NoisyCounts
from bdpvi.synthesis.margins import with_tables
from bdpvi.synthesis.network import within_bins


@dataclass(frozen=True, eq=False)
class CodeCounts:
    """Estimated counts of a column's codes.

    Attributes:
        counts: (codes,); they can be negative.
        noise: covariance of their privacy noise, (codes, codes).
        blocks: the block of each code, (codes,). Only totals of blocks were counted; within them
            counts have the shape of all rows, or one cell's is taken for uniform.
    """

    counts: Floats
    noise: Floats
    blocks: Codes


def of_column(noisy: NoisyCounts, at: int) -> CodeCounts:
    """Return the counts of a column's codes in all rows.

    Its own table, the bins of all tables with it, and the total of all tables without it are used.

    >>> codes, bins = np.array([5, 7, 0, 0]), np.arange(4)
    >>> noisy = NoisyCounts((codes,), (bins,), {(0,): codes + 2}, 1.0, {(0,): 1.0})
    >>> found = of_column(noisy, 0)
    >>> found.counts.round(9).tolist(), found.noise[0].round(9).tolist()
    ([6.0, 8.0, 1.0, 1.0], [0.5, 0.0, 0.0, 0.0])
    """
    single, bins = noisy.single[at].astype(np.float64), noisy.bins[at]
    zeros = np.zeros(noisy.sizes[at])
    weighted, precision = with_tables(noisy, at, zeros, zeros)
    total, known = _total_without(noisy, at)
    own = 1 / noisy.deviation**2
    matrix = own * np.eye(len(single)) + known
    matrix += np.where(bins[:, None] == bins, precision[bins], 0.0)
    noise = np.asarray(np.linalg.inv(matrix), dtype=np.float64)
    counts = noise @ (own * single + weighted[bins] + known * total)
    return CodeCounts(counts, noise, np.arange(len(single)))


def of_groups(noisy: NoisyCounts, at: int, by: int, shares: Floats) -> list[CodeCounts]:
    """Return the counts of a column's codes in the rows of each bin of another column.

    Their joint table has the bins' counts; the groups' sizes by all other tables are used too.
    Within a bin each group has the shape of all rows.

    Args:
        noisy: the released counts, with a table of the two columns.
        at: the column.
        by: the column of groups.
        shares: the share of each code in a bin without usable counts, (codes,).
    """
    columns = (min(at, by), max(at, by))
    table = noisy.joint[columns].astype(np.float64)
    table = table if at < by else table.T
    own = 1 / noisy.deviations[columns] ** 2
    shape = within_bins(noisy, at, shares)
    found = []
    for cells, size, variance in zip(table.T, *group_sizes(noisy, by, but=at), strict=True):
        noise = np.linalg.inv(own * np.eye(len(cells)) + 1 / variance)
        counts = noise @ (own * cells + size / variance)
        found.append(CodeCounts(counts @ shape, shape.T @ noise @ shape, noisy.bins[at]))
    return found


def group_sizes(noisy: NoisyCounts, by: int, but: int | None = None) -> tuple[Floats, Floats]:
    """Return the counts of a column's bins, and their variances, without another's tables."""
    precision = 1 / (noisy.deviation**2 * np.bincount(noisy.bins[by]))
    total, precision = with_tables(noisy, by, noisy.binned(by) * precision, precision, but)
    return total / precision, 1 / precision


def rows(noisy: NoisyCounts) -> tuple[float, float]:
    """Return the number of rows by all tables, and its variance."""
    total, known = _total_without(noisy, None)
    return total, 1 / known


def _total_without(noisy: NoisyCounts, at: int | None) -> tuple[float, float]:
    """Return the number of rows by the tables that lack a column, and its precision."""
    tables: list[tuple[Codes, float]] = [
        (one, noisy.deviation) for place, one in enumerate(noisy.single) if place != at
    ]
    tables += [
        (one, noisy.deviations[columns])
        for columns, one in noisy.joint.items()
        if at not in columns
    ]
    weights: Sequence[float] = [1 / (deviation**2 * one.size) for one, deviation in tables]
    totals = sum(w * float(one.sum()) for w, (one, _) in zip(weights, tables, strict=True))
    known = float(sum(weights))
    return (totals / known if known else 0.0), known
