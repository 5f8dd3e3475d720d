"""Summaries of a comparison's finished cells: tables, and differences between methods."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bdpvi.bayesian.guarantees import BAYESIAN, WORST_CASE
from bdpvi.bench.methods import BaseRate
from bdpvi.bench.methods.dpvi import NonPrivate
from bdpvi.bench.methods.without_privacy import LogisticRegression
from bdpvi.bench.ratios import REPEATS, Interval, ScoreTable, difference, epsilon_ratios
from bdpvi.tables.metrics import MEASURES

PAIRED = ("log_score", "accuracy")
"""Measures that are means over records, so that methods can be compared record by record."""
BEST = "best worst-case"
YES, NO, WORST = "yes", "no", "—"
"""Whether a row's Bayesian ε is certified, and within its target; worst-case rows need not be."""

_COMMON = (
    "data", "method", "guarantee", "target_epsilon", "epsilon", "worst_case_epsilon", "delta",
    "certified", "reliable", "reason", "accountant", "setting",
)  # fmt: skip
_RATIOS = (
    "measure", "method", "target_epsilon", "epsilon", "worst_case_epsilon", "certified", "against",
    "rival",
    "difference", "difference_low", "difference_high", "ratio", "ratio_low", "ratio_high", "least",
    "most", "shown",
)  # fmt: skip

Found = Mapping[str, Any]
"""A finished cell, see :func:`bdpvi.bench.comparison.run`."""


def summarise(found: Sequence[Found]) -> pd.DataFrame:
    """Return a row for each method and target.

    Each measure has its mean over the runs (seeds, or draws), the standard error of that mean
    (``…_error``), and the standard deviation of one run (``…_spread``). Accuracy and log score also
    have the difference from the best row with the same guarantee and target, with a 95 % interval
    over test records and runs (``…_behind``, ``…_behind_low``, ``…_behind_high``; see
    :func:`bdpvi.bench.ratios.difference`); an unreliable row is never the best. Certified Bayesian
    rows are compared among themselves, as are uncertified ones. A row with an ε above its target is
    not compared.
    ``kept`` is the share of logistic regression's gain in log score over the base rate, and
    ``ece_above`` the calibration error minus that of logistic regression; if it is not among the
    methods, both refer to variational inference without privacy.

    Args:
        found: the cells.
    """
    without = {
        one["row"]["method"]: one["measures"]
        for one in found
        if one["row"]["target_epsilon"] is None and one["measures"] is not None
    }
    reached = LogisticRegression if LogisticRegression.name in without else NonPrivate
    base, free = (
        {name: float(np.mean(values)) for name, values in without.get(method.name, {}).items()}
        for method in (BaseRate, reached)
    )
    rows = []
    for one in found:
        row = {name: one["row"].get(name) for name in _COMMON}
        row["seeds"] = len(one["measures"]["accuracy"]) if one["measures"] else 0
        if one["measures"]:
            row |= _measures(one) | _against_free(one, base, free)
            row |= _behind(one, [other for other in found if _class(other) == _class(one)])
        rows.append({**row, "seconds": one["row"]["seconds"]})
    return pd.DataFrame(rows, columns=[*_COMMON, "seeds", *_columns(), "seconds"])


def _columns() -> Iterator[str]:
    for name in MEASURES:
        yield from (name, f"{name}_error", f"{name}_spread")
        if name in PAIRED:
            yield from (f"{name}_behind", f"{name}_behind_low", f"{name}_behind_high")
    yield from ("kept", "ece_above")


def scores(one: Found, measure: str) -> ScoreTable:
    """Return a cell's scores by one of :data:`PAIRED`."""
    records, runs = (one[part][measure] for part in ("records", "measures"))
    return ScoreTable(np.array(records), np.array(runs))


def best(found: Sequence[Found], measure: str) -> Found | None:
    """Return the cell with the highest mean among reliable cells that reached their target."""
    usable = [one for one in found if _within(one) and one["row"].get("reliable") is not False]
    return max(usable, key=lambda one: float(np.mean(one["measures"][measure])), default=None)


def _within(one: Found) -> bool:
    """Return whether a cell was measured at an ε within its target."""
    row = one["row"]
    target = row["target_epsilon"]
    return bool(one["measures"]) and (target is None or row["epsilon"] <= target)


def _class(one: Found) -> tuple[Any, ...]:
    row = one["row"]
    return row["guarantee"], row.get("certified"), row["target_epsilon"]


def _measures(one: Found) -> dict[str, float]:
    result = {}
    for name, values in one["measures"].items():
        column = pd.Series(values, dtype=float)
        result[name] = float(column.mean())
        result[f"{name}_error"] = float(column.std()) / math.sqrt(len(column))
        result[f"{name}_spread"] = float(column.std())
    return result


def _against_free(
    one: Found, base: Mapping[str, float], free: Mapping[str, float]
) -> dict[str, float]:
    """Return the share of the non-private gain kept, and the additional calibration error."""
    if not base or not free:
        return {}
    gain = free["log_score"] - base["log_score"]
    now = {name: float(np.mean(one["measures"][name])) for name in ("log_score", "ece")}
    kept = (now["log_score"] - base["log_score"]) / gain if gain > 0 else math.nan
    return {"kept": kept, "ece_above": now["ece"] - free["ece"]}


def _behind(one: Found, alike: Sequence[Found]) -> dict[str, float]:
    """Return a cell's difference from the best with its guarantee and target, if there is one."""
    result: dict[str, float] = {}
    for name in PAIRED if one["row"]["target_epsilon"] is not None and _within(one) else ():
        first = best(alike, name)
        if first is not None:
            gap = difference(scores(first, name), scores(one, name))
            if first is one:
                gap = Interval(0.0, 0.0, 0.0)
            result[f"{name}_behind"] = gap.estimate
            result |= {f"{name}_behind_low": gap.low, f"{name}_behind_high": gap.high}
    return result


def ratio_table(found: Sequence[Found], repeats: int = REPEATS) -> pd.DataFrame:
    """Return Bayesian rows compared with worst-case rows: in score, and in ε for the same score.

    Each is compared with the best worst-case row at its target (``against`` is "best worst-case",
    ``rival`` that row's method). ``difference`` is how much higher the Bayesian row scores than
    the rival, with a 95 % interval. ``ratio`` is the ε that the worst-case rows need for the same
    score over the Bayesian row's ε, see :func:`bdpvi.bench.ratios.epsilon_ratios`: 0 means at most
    ``least``, inf at least ``most``; ``shown`` has it in words. Unreliable rows are left out.

    Args:
        found: the cells.
        repeats: number of resamples of the test records for each interval.
    """
    reached = [one for one in found if best([one], PAIRED[0])]
    worst = [one for one in reached if one["row"]["guarantee"] == WORST_CASE]
    bayesian = [one for one in reached if one["row"]["guarantee"] == BAYESIAN]
    rows = []
    for measure in PAIRED if bayesian else ():
        at: dict[float, list[Found]] = {}
        for one in worst:
            at.setdefault(one["row"]["target_epsilon"], []).append(one)
        curve = {target: best(some, measure) for target, some in at.items()}
        first = {target: top for target, top in curve.items() if top is not None}
        rows += _set_against(measure, bayesian, first, repeats) if first else []
    return pd.DataFrame(rows, columns=list(_RATIOS))


def _set_against(
    measure: str, rows: Sequence[Found], curve: Mapping[float, Found], repeats: int
) -> list[dict[str, Any]]:
    """Return the rows of :func:`ratio_table` for the best worst-case cells, by target."""
    ours = [(one["row"]["epsilon"], scores(one, measure)) for one in rows]
    points = [(one["row"]["epsilon"], scores(one, measure)) for one in curve.values()]
    result = []
    for one, ratio in zip(rows, epsilon_ratios(ours, points, repeats), strict=True):
        row, rival = one["row"], curve.get(one["row"]["target_epsilon"])
        entry: dict[str, Any] = {"measure": measure, "against": BEST, "shown": str(ratio)}
        entry |= {name: row.get(name) for name in _COMMON if name in _RATIOS}
        if rival is not None:
            gap = difference(scores(one, measure), scores(rival, measure))
            entry |= {"rival": rival["row"]["method"], "difference": gap.estimate}
            entry |= {"difference_low": gap.low, "difference_high": gap.high}
        now = ratio.interval
        entry |= {"ratio": now.estimate, "ratio_low": now.low, "ratio_high": now.high}
        result.append({**entry, "least": ratio.least, "most": ratio.most})
    return result
