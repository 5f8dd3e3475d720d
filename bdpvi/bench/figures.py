"""Figures of comparisons.

A Bayesian ε is always labelled as Bayesian.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bdpvi.bayesian.guarantees import BAYESIAN, WORST_CASE
from bdpvi.bench.methods import NONE, Method
from bdpvi.tables.metrics import MEASURES

MARKERS: Mapping[str, str] = {BAYESIAN: "o", WORST_CASE: "s"}
"""Each guarantee has its own marker; methods without privacy are horizontal lines."""
NO_WORST_CASE = "worst-case ε: none"
"""Suffix of the name of a private method without a worst-case guarantee."""
LINES = (":", "-.", "--")
HEADINGS = {
    BAYESIAN: "Bayesian DP (hollow: not reliable)",
    WORST_CASE: "worst-case DP",
    NONE: "no privacy",
}
COLOURS = tuple(colormaps["tab20"](place) for place in (*range(0, 20, 2), *range(1, 20, 2)))
"""The default ten colours, then lighter shades of them."""
SHOWN = ("log_score", "accuracy", "auc")
"""Measures in the comparison's figure, one row of panels each."""
_LEFT_OUT = 0.25
"""Fraction of the lowest results that the panels on the right leave out."""
_ROOM = 0.8
"""Fraction of a target's width on the axis used by its methods, drawn side by side."""


def curve(methods: Sequence[Method], summary: pd.DataFrame) -> Figure:
    """Return a comparison's log score, accuracy and AUC at each target: full range and top range.

    Methods are side by side at each target, so that none hides another.

    Args:
        methods: the methods in the order of the legend, sorted by guarantee.
        summary: columns method, target_epsilon, worst_case_epsilon, delta, reliable, and for each
            measure its mean and its error.
    """
    figure = Figure(figsize=(15, 10.5), dpi=110, layout="constrained")
    reached = summary[summary["accuracy"].notna()]
    present = [m for m in methods if m.name in set(reached["method"])]
    targets = sorted(reached["target_epsilon"].dropna().unique())
    legend: dict[str, list[Any]] = {}
    for name, (whole, near) in zip(SHOWN, figure.subplots(len(SHOWN), 2, sharex=True), strict=True):
        legend = {}
        for axes in (whole, near):
            drawn = _panel(axes, name, present, reached, targets)
        for method, one in zip(present, drawn, strict=True):
            legend.setdefault(method.guarantee, []).append(one)
        label = MEASURES[name].label
        whole.set_ylabel(f"test {label}, mean ± s.e. over runs")
        _near_the_top(near, reached, name)
    deltas = sorted(set(reached["delta"].dropna()))
    for axes in figure.axes[-2:]:
        axes.set_xlabel(f"target ε at δ = {deltas[0]:g}" if deltas else "no privacy")
    handles = [
        handle
        for guarantee, lines in legend.items()
        for handle in (Line2D([], [], ls="", label=f"{HEADINGS[guarantee]}:"), *lines)
    ]
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _panel(
    axes: Axes, name: str, methods: Sequence[Method], rows: pd.DataFrame, targets: Sequence[float]
) -> list[Any]:
    """Draw one measure of every method; return the legend's entries."""
    private = [method.name for method in methods if method.guarantee != NONE]
    places = {epsilon: place for place, epsilon in enumerate(targets)}
    drawn: list[Any] = []
    lines = iter(LINES * len(methods))
    for method in methods:
        own = rows[rows["method"] == method.name]
        if method.guarantee == NONE:
            level = axes.axhline(own[name].iloc[0], ls=next(lines), lw=1.2, color="0.35")
            drawn.append(level)
            continue
        number = private.index(method.name)
        shift = _ROOM * ((number + 0.5) / len(private) - 0.5)
        own = own.assign(place=own["target_epsilon"].map(places) + shift)
        doubtful = own["reliable"].eq(False)
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[method.guarantee]
        errors = own[f"{name}_error"].fillna(0)
        drawn.append(
            axes.errorbar(own["place"], own[name], errors, fmt=marker, c=colour, ms=5, elinewidth=1)
        )
        axes.plot(
            own["place"][doubtful],
            own[name][doubtful],
            marker,
            mfc="white",
            c=colour,
            ms=5,
            zorder=5,
        )
    for method, one in zip(methods, drawn, strict=True):
        own = rows[rows["method"] == method.name]
        without = method.guarantee != NONE and own["worst_case_epsilon"].isna().any()
        one.set_label(f"{method.label}{f', {NO_WORST_CASE}' if without else ''}")
    for place in range(1, len(targets)):
        axes.axvline(place - 0.5, color="0.85", lw=0.8)
    axes.set_xticks(range(len(targets)), [f"{epsilon:g}" for epsilon in targets])
    axes.set_xlim(-0.5, max(len(targets), 1) - 0.5)
    axes.grid(axis="y", alpha=0.3)
    return drawn


def _near_the_top(axes: Axes, rows: pd.DataFrame, name: str) -> None:
    """Limit a panel to the upper range of the results."""
    low, top = rows[name].quantile(_LEFT_OUT), rows[name].max()
    if low < top:
        room = 0.1 * (top - low)
        axes.set_ylim(low - room, top + room)
        axes.set_title(f"the same without the lowest {_LEFT_OUT:.0%}", fontsize=10)
