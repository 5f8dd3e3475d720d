"""The quality of synthetic rows: compares them with the real rows, for the owner only."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bdpvi._ground import validate
from bdpvi.datasets import grid
from bdpvi.datasets.encoding import with_text_names
from bdpvi.synthesis import measures
from bdpvi.synthesis.counts import Floats
from bdpvi.synthesis.measures import Bins, Scale, Task, total_variation
from bdpvi.synthesis.report import (
    ALL,
    BASE,
    REAL,
    SYNTHETIC,
    Cell,
    ColumnShares,
    Detail,
    Pair,
    Quality,
    Score,
    Told,
)
from bdpvi.synthesis.synthetic import Synthetic

MOST = 10**5
"""Students use a sample of tables with more rows than this."""
WORST = 5
"""Number of pairs whose cells are shown."""
_QUARTERS = 4
_FEWEST = 20
_TRIED = 5000


def evaluate(
    released: Synthetic,
    *,
    train: pd.DataFrame,
    held_out: pd.DataFrame,
    rows: pd.DataFrame | None = None,
    groups: Sequence[str] = (),
    seed: int = 0,
) -> Quality:
    """Compare synthetic with real rows, for the owner of the real rows only.

    Args:
        released: the result of :func:`bdpvi.synthesize`.
        train: its input rows, (N, d).
        held_out: rows used for nothing else, (M, d).
        rows: synthetic rows; by default as many as the estimated number of real rows.
        groups: columns by whose values students are scored separately; numbers by quartiles.
        seed: seed of the samples, including default ``rows``, and of the students.

    Raises:
        ValueError: naming the argument, if a table lacks a column or a group is not a column.

    >>> import bdpvi
    >>> from bdpvi.datasets import ColumnType, Schema
    >>> coin = ColumnType(levels=("0", "1"))
    >>> frame = pd.DataFrame({"a": ["0", "1"] * 500, "b": ["1", "0"] * 500})
    >>> shared = bdpvi.synthesize(frame, Schema({"a": coin, "b": coin}, "coins"), "b", epsilon=1.0)
    >>> found = evaluate(shared, train=frame, held_out=frame[:100])
    >>> found.copies > 0.9, found.held_out_copies, found.scores[0].student
    (True, 1.0, 'boosted trees')
    """
    schema, random = released.schema, np.random.default_rng(validate.positive_int("seed", seed, 0))
    names = list(schema.columns)
    if unknown := [group for group in groups if group not in names]:
        raise ValueError(f"groups names {unknown[0]!r}; the columns are {names}")
    made = released.sample(seed=seed) if rows is None else rows
    given = {"train": train, "held_out": held_out, "rows": made}
    real, other, synthetic = (measures.read(one, schema, name) for name, one in given.items())
    scales = measures.scales(real, schema)
    bins = [measures.binned(one, scales) for one in (real, synthetic)]
    few, tried, new = (_sampled(one, random) for one in (real, other, synthetic))
    classes, scores, unscored = _use(released, few, tried, new, groups)
    return Quality(
        receipt=released.receipt,
        target=released.target,
        rows=(len(real), len(other), len(synthetic)),
        columns=_columns(released, train, scales, *bins),
        **_pairs(names, scales, *bins),
        **_controls(bins[0], random),
        classes=classes,
        scores=scores,
        unscored=unscored,
        told=_tree_accuracy(new, tried, names, random),
        copies=measures.copies(synthetic, real),
        held_out_copies=measures.copies(other, real) if len(other) else None,
    )


def _controls(real: Bins, random: np.random.Generator) -> dict[str, Any]:
    """Return the mean total variation distance between two halves, and to shuffled columns."""
    order = random.permutation(len(real))
    mixed = np.stack([random.permutation(one) for one in real.T], axis=1)
    return {
        "halves": measures.variation(real[order[::2]], real[order[1::2]]),
        "shuffled": measures.variation(real, mixed),
    }


def _sampled(values: Floats, random: np.random.Generator) -> Floats:
    if len(values) <= MOST:
        return values
    return values[random.choice(len(values), MOST, replace=False)]


def _columns(
    released: Synthetic, train: pd.DataFrame, scales: Sequence[Scale], real: Bins, synthetic: Bins
) -> tuple[ColumnShares, ...]:
    schema, sizes = released.schema, [len(scale.labels) for scale in scales]
    names = list(schema.columns)
    _, unfit = schema.encode(with_text_names(train)[names])
    parents = {columns[-1]: columns[:-1] for columns, _ in released.network.nodes}
    found = []
    for at, (name, column) in enumerate(schema.columns.items()):
        p, q = (measures.shares(one, (at,), sizes) for one in (real, synthetic))
        bins = released.counts.bins[at][: grid.cells(column)]  # without blanks and unknown values
        crowded = np.bincount(bins)[bins] > 1
        levels = zip(column.names or (), crowded, strict=False)
        found.append(
            ColumnShares(
                name=name,
                labels=scales[at].labels,
                real=tuple(p.tolist()),
                synthetic=tuple(q.tolist()),
                variation=total_variation(p, q),
                codes=grid.size(column),
                bins=released.counts.sizes[at],
                pooled=tuple(one for one, crowd in levels if crowd),
                parents=tuple(names[one] for one in parents[at]),
                unfit=grid.words_of_unfit(unfit[name]),
            )
        )
    return tuple(found)


def _pairs(
    names: Sequence[str], scales: Sequence[Scale], real: Bins, synthetic: Bins
) -> dict[str, Any]:
    """Return all pairs, their mean, and the worst in detail."""
    sizes = [len(scale.labels) for scale in scales]

    def both(two: tuple[int, int]) -> tuple[Floats, Floats]:
        return measures.shares(real, two, sizes), measures.shares(synthetic, two, sizes)

    def apart(two: tuple[int, int]) -> tuple[Floats, Floats]:
        p, q = both(two)
        return measures.dependence(p), measures.dependence(q)

    places, found = list(itertools.combinations(range(len(names)), 2)), []
    for two in places:
        (p, q), (a, b) = both(two), apart(two)
        strength, kept = (float(np.abs(one).sum() / 2) for one in (a, b))
        named = (names[two[0]], names[two[1]])
        found.append(Pair(named, total_variation(p, q), strength, kept, total_variation(a, b)))

    def worst(by: Sequence[float], tables: Any) -> tuple[Detail, ...]:
        order = np.argsort(-np.array(by), kind="stable")[:WORST]
        return tuple(
            _detail(
                found[at].names, [scales[one].labels for one in places[at]], *tables(places[at])
            )
            for at in order
        )

    return {
        "pairs": tuple(found),
        "variation": float(np.mean([one.variation for one in found])) if found else 0.0,
        "details": worst([one.variation for one in found], both),
        "lost": worst([one.lost for one in found], apart),
    }


def _detail(
    names: tuple[str, str], labels: Sequence[Sequence[str]], p: Floats, q: Floats
) -> Detail:
    order = np.argsort(-np.abs(p - q), axis=None, kind="stable")[:WORST]
    cells = []
    for a, b in zip(*np.unravel_index(order, p.shape), strict=True):
        cells.append(Cell((labels[0][a], labels[1][b]), float(p[a, b]), float(q[a, b])))
    return Detail(names, tuple(cells))


def _use(
    released: Synthetic, real: Floats, held_out: Floats, synthetic: Floats, groups: Sequence[str]
) -> tuple[tuple[str, ...], tuple[Score, ...], str]:
    """Return classes and scores of the students for each group, or why there are none."""
    schema, target = released.schema, released.target
    if target is None:
        return (), (), "no target was named"
    trained = Task.of(real, schema, target, real)
    tested = Task.of(held_out, schema, target, real)
    classes = trained.classes[: int(trained.y.max(initial=-1)) + 1]
    if not len(held_out):
        return classes, (), "no rows were held out"
    tables = {SYNTHETIC: Task.of(synthetic, schema, target, real), REAL: trained}
    given: dict[tuple[str, str], Floats] = {}
    for kind, task in tables.items():
        try:
            found = measures.students(task, tested)
        except ValueError as error:
            return classes, (), f"{kind} rows: {error}"
        given |= {(student, kind): one for student, one in found.items()}
    rate = np.bincount(trained.y, minlength=len(trained.classes)) / len(trained.y)
    given[BASE, REAL] = np.tile(rate, (len(held_out), 1))
    scores = [
        Score(
            student,
            kind,
            group,
            int(rows.sum()),
            measures.area(tested.y[rows], one[rows]),
            float((one[rows].argmax(1) == tested.y[rows]).mean()),
            measures.log_score(tested.y[rows], one[rows]),
        )
        for group, rows in _groups(released, real, held_out, groups).items()
        for (student, kind), one in given.items()
    ]
    return classes, tuple(scores), ""


def _groups(
    released: Synthetic, real: Floats, held_out: Floats, groups: Sequence[str]
) -> Mapping[str, Any]:
    """Return the held-out rows of each non-empty group."""
    names = list(released.schema.columns)
    scales = measures.scales(real, released.schema, _QUARTERS)
    result: dict[str, Any] = {ALL: np.ones(len(held_out), dtype=bool)}
    for name in groups:
        scale = scales[names.index(name)]
        bins = scale.bins(held_out[:, names.index(name)])
        result |= {f"{name}: {scale.labels[one]}": bins == one for one in np.unique(bins)}
    return result


def _tree_accuracy(
    synthetic: Floats, held_out: Floats, names: Sequence[str], random: np.random.Generator
) -> Told | None:
    """Return how well trees trained on half of the rows classify the other half."""
    number = min(len(synthetic), len(held_out))
    if number < _FEWEST:
        return None
    both = [one[random.permutation(len(one))[:number]] for one in (held_out, synthetic)]
    half = number // 2
    x = np.concatenate([one[:half] for one in both])
    tested = np.concatenate([one[half:] for one in both])
    x, tested = (np.where(np.isnan(x).all(0), 0.0, one) for one in (x, tested))
    y = np.repeat([0, 1], number - half)
    some = random.permutation(len(tested))[:_TRIED]
    with measures.one_thread():
        trees = measures.boosted().fit(x, np.repeat([0, 1], half))

        def area(rows: Floats, of: NDArray[np.int64]) -> float:
            return measures.area(of, trees.predict_proba(rows)) or 0.5

        lost, before = [], area(tested[some], y[some])
        for at in range(tested.shape[1]):
            mixed = tested[some]
            mixed[:, at] = random.permutation(mixed[:, at])
            lost.append(before - area(mixed, y[some]))
        whole = area(tested, y)
    order = np.argsort(-np.array(lost), kind="stable")[:3]
    return Told(number - half, whole, tuple((names[at], float(lost[at])) for at in order))
