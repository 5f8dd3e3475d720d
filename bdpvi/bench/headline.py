"""What a comparison shows, in sentences that say no more than its intervals do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from bdpvi.bench.figures import NO_WORST_CASE
from bdpvi.bench.summary import BEST, PAIRED
from bdpvi.recipes.metrics import MEASURES
from bdpvi.releasing.guarantees import BAYESIAN, WORST_CASE


def headline(summary: pd.DataFrame, ratios: pd.DataFrame) -> list[str]:
    """Return what can be said of log score and accuracy, a sentence for each question.

    A method is called ahead, or behind, only where a 95 % interval of the difference, over test
    records and runs, excludes 0.

    Args:
        summary, ratios: see :mod:`bdpvi.bench.summary`.
    """
    return [line for measure in PAIRED for line in _of(measure, summary, ratios)]


def _of(measure: str, summary: pd.DataFrame, ratios: pd.DataFrame) -> Iterator[str]:
    label = MEASURES[measure].label.capitalize()
    shown = ratios[(ratios["measure"] == measure) & (ratios["against"] == BEST)]
    # Those at one target have one rival, so the first by difference is the first by score.
    leaders = [
        rows.sort_values("difference").iloc[-1]
        for _, rows in shown.dropna(subset="difference").groupby("target_epsilon")
    ]
    if leaders:
        yield f"{label}, best Bayesian row against best worst-case row, at equal ε: " + _verdicts(
            [(one, one["difference_low"], one["difference_high"], _gap(one)) for one in leaders]
        )
        each = (f"{one['target_epsilon']:g}: {one['shown']}, {_named(one)}" for one in leaders)
        yield (
            f"{label}, ε that the worst-case rows need to score as the best Bayesian row does, "
            f"over that row's ε, at {'; '.join(each)}."
        )
    for guarantee in (BAYESIAN, WORST_CASE):
        yield from _within(label, measure, guarantee, summary)


def _verdicts(rows: Sequence[tuple[Any, float, float, str]]) -> str:
    """Return at which targets a difference lies above 0, below it, or cannot be told from it.

    >>> rows = [({"target_epsilon": e}, low, low + 2, "by 1") for e, low in ((0.1, 0.5), (1, -1))]
    >>> _verdicts(rows)
    'ahead at 0.1: by 1; not told apart at 1.'
    """
    above = [f"{one['target_epsilon']:g}: {gap}" for one, low, _, gap in rows if low > 0]
    below = [f"{one['target_epsilon']:g}: {gap}" for one, _, high, gap in rows if high < 0]
    open_ = [
        f"{one['target_epsilon']:g}" for one, low, high, _ in rows if not (low > 0 or high < 0)
    ]
    parts = (("ahead at", above), ("behind at", below), ("not told apart at", open_))
    return "; ".join(f"{word} {', '.join(some)}" for word, some in parts if some) + "."


def _within(label: str, measure: str, guarantee: str, summary: pd.DataFrame) -> Iterator[str]:
    """Return where one method of a guarantee scores above every other of it."""
    rows = summary[(summary["guarantee"] == guarantee) & summary[f"{measure}_behind"].notna()]
    alone: list[str] = []
    open_: list[str] = []
    for target, some in rows.groupby("target_epsilon"):
        first = some[f"{measure}_behind"].eq(0) & some[f"{measure}_behind_low"].eq(0)
        others = some[~first]
        if len(others) and first.any():
            clear = first.sum() == 1 and bool((others[f"{measure}_behind_low"] > 0).all())
            name = _named(some[first].iloc[0])
            (alone if clear else open_).append(f"{target:g}: {name}" if clear else f"{target:g}")
    parts = (
        ("one method is ahead of every other at", alone),
        ("the first is not told apart from at least one other at", open_),
    )
    found = [f"{words} {', '.join(some)}" for words, some in parts if some]
    if found:
        yield f"{label}, within {guarantee}: {'; '.join(found)}."


def _gap(one: Any) -> str:
    return (
        f"{_named(one)} by {one['difference']:+.4f} ({one['difference_low']:+.4f} to "
        f"{one['difference_high']:+.4f}) against {one['rival']}"
    )


def _named(one: Any) -> str:
    """Return a method's name, and that it has no worst-case guarantee where it has none."""
    none = pd.isna(one["worst_case_epsilon"])
    return f"{one['method']} ({NO_WORST_CASE})" if none else str(one["method"])
