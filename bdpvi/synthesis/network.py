"""The model of the rows: each column given the target and a few earlier columns.

Structure and conditional tables are computed from the noisy counts alone. No message passing is
needed: the parents of a column lie in one existing clique, so their joint probabilities are known,
and the table with the new column has maximum entropy given these and its pairs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bdpvi.datasets.grid import Codes
from bdpvi.synthesis.counts import RARE, Floats, Group, NoisyCounts, cells_of, in_bins
from bdpvi.synthesis.margins import (
    ROUNDS,
    by_pairs,
    cleaned,
    fitted,
    margins,
    projected,
    shrunk_values,
)

Pair = tuple[int, int]


Clique = tuple[Group, Floats]
"""Indices of the columns on which one is conditioned, and its own last; their probabilities."""


@dataclass(frozen=True, eq=False)
class Network:
    """A distribution of rows of codes.

    Attributes:
        nodes: the columns, each with its parents, in the order of drawing.
        within: for every column, the probabilities of codes in each bin, (bins, codes).
    """

    nodes: tuple[Clique, ...]
    within: tuple[Floats, ...]

    def sample(self, rows: int, random: np.random.Generator) -> Codes:
        """Return codes of independent rows, (rows, d)."""
        bins = np.zeros((rows, len(self.nodes)), dtype=np.int64)
        for (*parents, column), table in self.nodes:
            given = np.zeros(rows, dtype=np.int64)
            for axis, parent in enumerate(parents):
                given = given * table.shape[axis] + bins[:, parent]
            bins[:, column] = draw_categories(table.reshape(-1, table.shape[-1]), given, random)
        codes = [draw_categories(one, bins[:, at], random) for at, one in enumerate(self.within)]
        return np.stack(codes, axis=1)


def draw_categories(table: Floats, rows: Codes, random: np.random.Generator) -> Codes:
    """Return one draw for each listed row of a table of weights.

    >>> draw_categories(np.eye(3), np.array([2, 0]), np.random.default_rng(0)).tolist()
    [2, 0]
    """
    ends = np.cumsum(table, axis=1)
    ends = ends / np.maximum(ends[:, -1:], 1e-300)
    ends += np.arange(len(table))[:, None]  # one increasing sequence over all rows
    at = np.searchsorted(ends.ravel(), rows + random.random(len(rows)), side="right")
    return np.asarray(np.minimum(at - rows * table.shape[1], table.shape[1] - 1), dtype=np.int64)


def redrawn(
    noisy: NoisyCounts, made: Network, rows: int, random: np.random.Generator
) -> NoisyCounts:
    """Return a parametric bootstrap replicate of the noisy counts: other rows and other noise.

    The difference of two samples of the network, counted alike, over √2 has mean 0 and the variance
    of one sample. It is added to the noisy counts, with fresh noise of the same deviations. Counts
    of a single sample would have the network's mean, and its bias would enter twice.

    Args:
        noisy: the released counts.
        made: their network.
        rows: N, rows of each sample.
        random: any generator, because everything here is post-processing.
    """
    samples = [made.sample(rows, random) for _ in range(2)]
    binned = [in_bins(codes, noisy.bins) for codes in samples]

    def moved(table: Codes, places: list[Codes], deviation: float) -> Codes:
        there, other = (cells_of(place, table.shape) for place in places)
        by = (there - other) / math.sqrt(2) + deviation * random.standard_normal(table.shape)
        return table + np.rint(by).astype(np.int64)

    return NoisyCounts(
        tuple(
            moved(one, [codes[:, [at]] for codes in samples], noisy.deviation)
            for at, one in enumerate(noisy.single)
        ),
        noisy.bins,
        {
            at: moved(one, [codes[:, at] for codes in binned], noisy.deviations[at])
            for at, one in noisy.joint.items()
        },
        noisy.deviation,
        noisy.deviations,
    )


def network(
    noisy: NoisyCounts,
    target: int | None,
    shares: Sequence[Floats],
    parents: int,
    cells: int,
    *,
    shrink: bool = True,
) -> Network:
    """Return the network of noisy counts.

    Args:
        noisy: the released counts.
        target: index of the target; it comes first and is a parent of every column.
        shares: for every column, the share of each code in a bin without usable counts.
        parents: largest number of parents besides the target.
        cells: largest number of cells of a node's table, unless the target alone needs more.
        shrink: whether to shrink pairs towards independence by their noise: rows are then closer to
            the real rows, but estimates from them are biased.
    """
    single = margins(noisy)
    tables = cleaned(noisy, single, target, shrink=shrink)
    first: Group = () if target is None else (target,)
    rest = [at for at in range(len(single)) if at != target]
    heavy = weights(noisy, single, tables, target)
    nodes: list[Clique] = [] if target is None else [(first, single[target])]
    best: dict[int, tuple[float, Group, Clique]] = {}
    here = max(rest, key=lambda a: max(heavy.get((a, b), 0.0) for b in rest), default=None)
    while here is not None:
        if here not in best:  # the first
            known, joint = first, single[target] if target is not None else np.ones(())
        else:
            _, chosen, (whole, table) = best.pop(here)
            known = first + chosen
            joint = table.sum(tuple(i for i, one in enumerate(whole) if one not in known))
            order = [one for one in whole if one in known]
            joint = joint.transpose([order.index(one) for one in known]) if known else joint
        made = _joined(here, known, joint, single[here], tables)
        nodes.append(((*known, here), made))
        rest.remove(here)
        for column in rest:
            found = _parents(column, nodes[-1][0], single, heavy, first, parents, cells)
            if column not in best or found[0] > best[column][0] + 1e-12:
                best[column] = (*found, nodes[-1])
        here = max(rest, key=lambda one: best[one][0], default=None)
    within = tuple(within_bins(noisy, at, share) for at, share in enumerate(shares))
    return Network(tuple(nodes), within)


def weights(
    noisy: NoisyCounts,
    single: Sequence[Floats],
    tables: Mapping[Group, Floats],
    target: int | None,
) -> Mapping[Pair, float]:
    """Return the estimated strength of dependence of two columns, given the target.

    It is the sum of a pair's shrunk deviations from independence; pairs of a named group also get
    the sum of the group's deviations from its pairs.
    """
    result: dict[Pair, float] = {}
    for columns, table in noisy.joint.items():
        if len(columns) > 2:
            expected = by_pairs([single[at] for at in columns], columns, tables)
            more = float(np.abs(tables[columns] - expected).sum())
            for two in itertools.permutations((at for at in columns if at != target), 2):
                result[two] = result.get(two, 0.0) + more
        elif target not in columns:
            a, b = columns
            expected = np.outer(single[a], single[b])
            if target is not None:
                given = _pair(tables, target, a) / np.maximum(single[target], 1e-12)[:, None]
                expected = given.T @ _pair(tables, target, b)
            left = shrunk_values(
                table / noisy.records - expected, noisy.deviations[columns] / noisy.records
            )
            for two in ((a, b), (b, a)):
                result[two] = result.get(two, 0.0) + float(np.abs(left).sum())
    return result


def _parents(
    column: int,
    clique: Group,
    single: Sequence[Floats],
    heavy: Mapping[Pair, float],
    first: Group,
    parents: int,
    cells: int,
) -> tuple[float, Group]:
    """Return the parents of a column with the largest weight in one clique, and that weight."""
    among = [one for one in clique if one not in first and heavy.get((column, one), 0.0) > 0]
    best: tuple[float, Group] = (0.0, ())
    for number in range(1, min(parents, len(among)) + 1):
        for some in itertools.combinations(among, number):
            size = math.prod(len(single[at]) for at in (*first, *some, column))
            weight = sum(heavy[column, one] for one in some)
            if size <= cells and weight > best[0]:
                best = (weight, some)
    return best


def _joined(
    column: int, known: Group, joint: Floats, own: Floats, tables: Mapping[Group, Floats]
) -> Floats:
    """Return the joint probabilities of parents and column, with maximum entropy."""
    start = np.multiply.outer(joint, own)
    clique = (*known, column)
    parts: list[tuple[tuple[int, ...], Floats]] = []
    for columns, table in tables.items():
        if column in columns and set(columns) <= set(clique):
            axes = [clique.index(one) for one in columns]
            order = np.argsort(axes)
            parts.append((tuple(sorted(axes)), table.transpose(order)))
    if known:
        parts.append((tuple(range(len(known))), joint))
    return fitted(start, parts, ROUNDS if len(parts) > 1 else 1)


def _pair(tables: Mapping[Group, Floats], a: int, b: int) -> Floats:
    return tables[a, b] if a < b else tables[b, a].T


def within_bins(noisy: NoisyCounts, at: int, shares: Floats) -> Floats:
    """Return the probabilities of codes in each bin, from noisy counts where these exceed noise.

    Blanks and unknown values without their own bin are not drawn.
    """
    bins, size = noisy.bins[at], noisy.sizes[at]
    result = np.zeros((size, len(bins)))
    for one in range(size):
        (codes,) = np.nonzero(bins == one)
        plain = codes[codes < len(bins) - 2]
        codes = plain if len(plain) else codes
        known = noisy.single[at][codes].astype(np.float64)
        # A cell that stands out does so however far below 0 the noise of the others is.
        stands_out = known.max() > RARE * noisy.deviation
        if len(codes) > 1 and (stands_out or known.sum() > noisy.deviation * math.sqrt(len(codes))):
            result[one, codes] = projected(known / max(known.sum(), known.max()))
        elif shares[codes].any():
            result[one, codes] = shares[codes] / shares[codes].sum()
        else:
            result[one, codes] = 1 / len(codes)
    return result
