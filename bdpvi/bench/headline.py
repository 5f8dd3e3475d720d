"""A comparison's result in three sentences, supported by its intervals."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pandas as pd

from bdpvi.bayesian.guarantees import BAYESIAN, WORST_CASE
from bdpvi.bench.summary import BEST, YES

BEYOND = (
    "Higher, lower and ahead are said only where the 95 % interval of a difference, over test "
    "records and runs, excludes 0. Each interval holds by itself: of twenty such statements one is "
    "wrong on average, and the first of many methods is partly the luckiest."
)
"""Explanation of the words in the sentences."""


def headline(summary: pd.DataFrame, ratios: pd.DataFrame) -> list[str]:
    """Return at most three sentences about the log score.

    They compare certified rows with the best worst-case row, worst-case rows with each other, and
    the best rows of both kinds with the gain without privacy. Uncertified rows are ignored.

    Args:
        summary, ratios: see :mod:`bdpvi.bench.summary`.
    """
    said = (_certified(summary, ratios), _worst_case(summary), _kept_gain(summary))
    return [f"{one}." for one in said if one]


def _certified(summary: pd.DataFrame, ratios: pd.DataFrame) -> str:
    """Return the targets where certified rows score above or below the best worst-case row."""
    targets = sorted(summary.loc[summary["guarantee"] == BAYESIAN, "target_epsilon"].unique())
    if not targets:
        return ""
    found = ratios["measure"].eq("log_score") & ratios["against"].eq(BEST)
    held = ratios[found & ratios["certified"].eq(YES) & ratios["difference"].notna()]
    # Rows at one target have one rival, so the largest difference is the highest score.
    first = held.sort_values("difference").groupby("target_epsilon").tail(1)
    below, above = first["difference_high"] < 0, first["difference_low"] > 0
    parts = [
        f"{words} at ε = {_numbers(at)}"
        for words, at in (
            ("the higher log score", first.loc[above, "target_epsilon"]),
            ("the lower log score", first.loc[below, "target_epsilon"]),
            ("one too close to call", first.loc[~above & ~below, "target_epsilon"]),
        )
        if len(at)
    ]
    if not parts:
        return f"No Bayesian ε is certified within its target of {_numbers(targets)}"
    names, at = _listed(sorted(set(first["method"]))), _numbers(first["target_epsilon"])
    return (
        f"Beside the best worst-case method, {names}, certified at ε = {at}, has {', '.join(parts)}"
    )


def _worst_case(summary: pd.DataFrame) -> str:
    """Return the first worst-case method at each target, and where it beats every other."""
    rows = summary[(summary["guarantee"] == WORST_CASE) & summary["log_score_behind"].notna()]
    leaders: dict[str, list[float]] = {}
    ahead = []
    for target, some in rows.groupby("target_epsilon"):
        first = some["log_score_behind"].eq(0) & some["log_score_behind_low"].eq(0)
        if len(some) < 2 or not first.any():
            continue
        leaders.setdefault(str(some.loc[first, "method"].iloc[0]), []).append(float(str(target)))
        if first.sum() == 1 and (some.loc[~first, "log_score_behind_low"] > 0).all():
            ahead.append(float(str(target)))
    if not leaders:
        return ""
    parts = _listed([f"{name} at ε = {_numbers(at)}" for name, at in leaders.items()])
    clear = f"it is ahead of every other at ε = {_numbers(ahead)}" if ahead else ""
    if len(ahead) < sum(map(len, leaders.values())):
        clear += ", elsewhere" * bool(ahead) + " at least one other is too close to call"
    return f"Among worst-case methods the highest log score belongs to {parts}; {clear.strip()}"


def _kept_gain(summary: pd.DataFrame) -> str:
    """Return the share of the gain without privacy that the best row of each guarantee keeps."""
    parts = []
    for kind, some in (
        ("certified Bayesian", summary["certified"].eq(YES)),
        ("worst-case", summary["guarantee"].eq(WORST_CASE)),
    ):
        best = summary[some].groupby("target_epsilon")["kept"].max().dropna()
        if len(best):
            each = _listed([f"{kept:.0%} at ε = {target:g}" for target, kept in best.items()])
            parts.append(f"the best {kind} row keeps {each}")
    gain = "Of the gain in log score of a non-private fit over the base rate"
    return f"{gain}, {'; '.join(parts)}" if parts else ""


def _numbers(values: Collection[float]) -> str:
    return _listed([f"{value:g}" for value in sorted(values)])


def _listed(words: Sequence[str]) -> str:
    """Return words with commas and an "and" between.

    >>> _listed(["a"]), _listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
