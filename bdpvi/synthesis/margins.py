"""From noisy tables to probabilities: margins, shrinkage by the known noise, and raking."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from bdpvi.synthesis.counts import Floats, Group, NoisyCounts

_FLOOR = 1e-3
"""Smallest probability of a cell, as a share of its probability under independence."""
_ROUNDS = 50
ROUNDS = 40
"""Rounds of iterative proportional fitting for a joint table with several margins."""
_NOTHING = 1e-300


def projected(table: Floats) -> Floats:
    """Return the nearest probabilities in squared distance (Held, Wolfe and Crowder 1974).

    >>> projected(np.array([0.5, 0.7, -0.1])).round(3).tolist()
    [0.4, 0.6, 0.0]
    """
    down = np.sort(table.ravel())[::-1]
    over = (np.cumsum(down) - 1) / np.arange(1, len(down) + 1)
    return np.asarray(np.maximum(table - over[np.flatnonzero(down > over)[-1]], 0.0))


def margins(noisy: NoisyCounts) -> tuple[Floats, ...]:
    """Return each column's probabilities: the inverse-variance mean over all tables with it."""
    found = []
    for at, size in enumerate(noisy.sizes):
        cells = np.bincount(noisy.bins[at], minlength=size)
        precision = 1 / (noisy.deviation**2 * cells)
        total, precision = with_tables(noisy, at, noisy.binned(at) * precision, precision)
        found.append(projected(total / precision / noisy.records))
    return tuple(found)


def with_tables(
    noisy: NoisyCounts, at: int, total: Floats, precision: Floats, but: int | None = None
) -> tuple[Floats, Floats]:
    """Return weighted counts and weights of a column's bins, with those of all tables that have it.

    Args:
        noisy: the released counts.
        at: the column.
        total, precision: where to start, (bins,): counts times weights, and inverse variances.
        but: a column whose tables are left out.
    """
    for columns, table in noisy.joint.items():
        if at in columns and but not in columns:
            others = tuple(axis for axis, one in enumerate(columns) if one != at)
            weight = noisy.sizes[at] / (noisy.deviations[columns] ** 2 * table.size)
            total, precision = total + weight * table.sum(others), precision + weight
    return total, precision


def shrunk_values(residual: Floats, deviation: float) -> Floats:
    """Denoise a matrix with white noise of known deviation by shrinking its singular values.

    With singular values s in units of the deviation times √max(A, B), and β = min(A, B)/max(A, B),
    the shrinkage with least squared error in large matrices is √((s² − β − 1)² − 4β)/s above
    1 + √β, else 0 (Gavish and Donoho 2017, eq. 7).

    >>> float(np.abs(shrunk_values(np.eye(4), 10.0)).max())
    0.0
    """
    left, values, right = np.linalg.svd(residual, full_matrices=False)
    unit = deviation * math.sqrt(max(residual.shape))
    beta = min(residual.shape) / max(residual.shape)
    s = values / unit
    inside = np.maximum((s**2 - beta - 1) ** 2 - 4 * beta, 0.0)
    kept = np.where(s > 1 + math.sqrt(beta), np.sqrt(inside) / np.maximum(s, 1e-12), 0.0)
    return np.asarray((left * (unit * kept)) @ right)


def shrunk_cells(residual: Floats, expected: Floats, deviation: float) -> Floats:
    """Denoise an array with white noise by shrinking each cell by its own share of signal.

    A cell's signal is modelled with variance κ²e², so its mean given the noisy cell is
    κ²e²/(κ²e² + σ²) times that cell. κ² is estimated by moments: the mean of r²/e² − fσ²/e²,
    weighted by e²/(e² + σ²), f the share of noise left after centring the array in all axes.

    Args:
        residual: r, with any number of axes.
        expected: e, the expected cells.
        deviation: σ.
    """
    left, free = residual, 1.0
    for axis, size in enumerate(residual.shape):
        left = left - left.mean(axis, keepdims=True)
        free *= 1 - 1 / size
    squared, noise = expected**2, deviation**2
    weight = 1 / (squared + noise)
    signal = float(((left**2 - free * noise) * weight).sum() / (squared * weight).sum())
    share = max(signal, 1e-6) * squared
    return np.asarray(left * share / (share + noise))


def fitted(start: Floats, parts: Sequence[tuple[tuple[int, ...], Floats]], rounds: int) -> Floats:
    """Return the table nearest to ``start`` with these margins, by iterative proportional fitting.

    It is nearest in relative entropy (Csiszár 1975); from a product of margins it is the table of
    maximum entropy. The margins of the last part hold exactly.

    Args:
        start: probabilities.
        parts: axes in increasing order, and their joint probabilities.
        rounds: how often each part is imposed.
    """
    result = start
    for _ in range(rounds):
        for axes, wanted in parts:
            others = tuple(axis for axis in range(start.ndim) if axis not in axes)
            ratio = wanted / np.maximum(result.sum(others), _NOTHING)
            result = result * np.expand_dims(ratio, others)
    return result


def raked(table: Floats, wanted: Sequence[Floats]) -> Floats:
    """Return a table of probabilities near this one, with these margins.

    Margins are first corrected by the same amount in every cell. Negative cells are then removed by
    projection, because clipping would add mass, and iterative proportional fitting follows.

    Args:
        table: any numbers.
        wanted: the margin of each axis.
    """
    found = table
    axes = range(table.ndim)
    for _ in range(3):
        for axis in axes:
            lacking = wanted[axis] - found.sum(_but(axes, axis))
            found = found + _along(lacking, axis, table.ndim) * (table.shape[axis] / table.size)
        found = projected(found)
    product = np.ones(())
    for one in wanted:
        product = np.multiply.outer(product, one)
    found = np.maximum(found, _FLOOR * product)
    return fitted(found, [((axis,), wanted[axis]) for axis in axes], _ROUNDS)


def cleaned(
    noisy: NoisyCounts, single: Sequence[Floats], target: int | None, *, shrink: bool = True
) -> Mapping[Group, Floats]:
    """Return the probabilities of every pair and group: shrunk, with the columns' margins.

    Pairs with the target are shrunk cell by cell, the others by singular values. A group's
    deviation from its pairs is shrunk cell by cell. Without shrinkage cells have more variance but
    no bias towards independence.
    """
    result: dict[Group, Floats] = {}
    for columns, table in sorted(noisy.joint.items(), key=lambda one: len(one[0])):
        deviation = noisy.deviations[columns] / noisy.records
        share = table / noisy.records
        expected = by_pairs([single[at] for at in columns], columns, result)
        residual = share - expected
        if not shrink:
            pass
        elif len(columns) > 2 or target in columns:
            residual = shrunk_cells(residual, expected, deviation)
        else:
            residual = shrunk_values(residual, deviation)
        result[columns] = raked(expected + residual, [single[at] for at in columns])
    return result


def by_pairs(single: Sequence[Floats], columns: Group, pairs: Mapping[Group, Floats]) -> Floats:
    """Return the joint probabilities of maximum entropy, given some margins and pairs.

    Args:
        single: probabilities of these columns.
        columns: indices in increasing order.
        pairs: probabilities of pairs; missing pairs are not imposed.
    """
    product = np.ones(())
    for one in single:
        product = np.multiply.outer(product, one)
    axes = itertools.combinations(range(len(columns)), 2)
    found = [(two, pairs.get((columns[two[0]], columns[two[1]]))) for two in axes]
    return fitted(product, [(two, table) for two, table in found if table is not None], ROUNDS)


def _but(axes: range, axis: int) -> tuple[int, ...]:
    return tuple(one for one in axes if one != axis)


def _along(values: Floats, axis: int, axes: int) -> Floats:
    return np.expand_dims(values, _but(range(axes), axis))
