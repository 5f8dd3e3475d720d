"""Accuracy against ε, for the demonstration and for comparisons.

A Bayesian-DP ε is labelled as one on every axis that shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bdpvi.compare.methods import NONE, Method
from bdpvi.releasing.guarantees import BAYESIAN, WORST_CASE
from bdpvi.studies.study import plain_ticks

STYLES: Mapping[str, Mapping[str, Any]] = {
    BAYESIAN: {"ls": "-", "lw": 1.9, "marker": "o"},
    WORST_CASE: {"ls": "--", "lw": 1.3, "marker": "s"},
    NONE: {"ls": ":", "lw": 1.2, "color": "0.4"},
}
"""No two guarantees share a line style or a marker."""
HEADINGS = {
    BAYESIAN: "Bayesian DP (hollow: not reliable)",
    WORST_CASE: "worst-case DP",
    NONE: "no privacy",
}
_NEAR = 0.05
"""How far below the best accuracy the comparison's second panel reaches."""


def accuracy_curve(curve: pd.DataFrame, non_private: float, path: Path) -> Path:
    """Draw accuracy against ε, one line for each guarantee; return ``path``.

    Args:
        curve: columns worst_case and bayesian (ε), accuracy, delta, reliable.
        non_private: accuracy without privacy.
        path: where the PNG goes.
    """
    figure = Figure(figsize=(7, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.axhline(non_private, color="0.4", lw=1, ls=":", label="without privacy")
    columns = {WORST_CASE: "worst_case", BAYESIAN: "bayesian"}
    for guarantee, column in columns.items():
        (line,) = axes.plot(
            curve[column], curve["accuracy"], label=f"ε of {guarantee}", **STYLES[guarantee]
        )
        doubtful = curve[~curve["reliable"]]
        if guarantee == BAYESIAN:
            axes.plot(
                doubtful[column], doubtful["accuracy"], "o", mfc="white", color=line.get_color()
            )
    _axes(axes, f"ε of the same releases at δ = {curve['delta'].iloc[0]:g}", "test accuracy")
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path)
    return path


def curve(methods: Sequence[Method], summary: pd.DataFrame) -> Figure:
    """Return the comparison's accuracy against ε, whole and near the top.

    Args:
        methods: in the order of the legend, which goes by guarantee.
        summary: columns method, epsilon, delta, accuracy, accuracy_error, reliable.
    """
    figure = Figure(figsize=(13, 5), dpi=120, layout="constrained")
    whole, near = figure.subplots(1, 2)
    reached = summary[summary["accuracy"].notna()]
    legend: dict[str, list[Any]] = {}
    for number, method in enumerate(methods):
        rows = reached[reached["method"] == method.name]
        if len(rows):
            lines = [_line(axes, method, rows, f"C{number % 10}") for axes in (whole, near)]
            legend.setdefault(method.guarantee, []).append(lines[0])
    deltas = sorted(set(reached["delta"].dropna()))
    for axes in (whole, near):
        epsilon = (
            f"ε at δ = {deltas[0]:g}: Bayesian DP solid, worst-case DP dashed" if deltas else ""
        )
        _axes(axes, epsilon, "test accuracy, mean ± standard error over seeds")
    if len(reached):
        top = reached["accuracy"].max()
        near.set_ylim(top - _NEAR, top + _NEAR / 10)
        near.set_title(f"within {_NEAR:g} of the best", fontsize=10)
    handles = [
        handle
        for guarantee, lines in legend.items()
        for handle in (Line2D([], [], ls="", label=f"{HEADINGS[guarantee]}:"), *lines)
    ]
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=8)
    return figure


def _line(axes: Axes, method: Method, rows: pd.DataFrame, colour: str) -> Any:
    style = STYLES[method.guarantee]
    if method.guarantee == NONE:
        return axes.axhline(rows["accuracy"].iloc[0], label=method.label, **style)
    drawn = axes.errorbar(
        rows["epsilon"],
        rows["accuracy"],
        yerr=rows["accuracy_error"].fillna(0),
        color=colour,
        ms=5,
        elinewidth=0.8,
        label=method.label,
        **style,
    )
    if method.guarantee == BAYESIAN:
        doubtful = rows[~rows["reliable"].astype(bool)]
        axes.plot(
            doubtful["epsilon"], doubtful["accuracy"], "o", ms=5, mfc="white", c=colour, zorder=5
        )
    return drawn


def _axes(axes: Axes, epsilon: str, accuracy: str) -> None:
    """Label both axes; without an ε the horizontal one stays as it is."""
    if epsilon:
        axes.set_xscale("log")
        plain_ticks(axes.xaxis)
        axes.set_xlabel(epsilon)
    axes.set_ylabel(accuracy)
    axes.grid(alpha=0.3)
