"""Figures of comparisons.

A Bayesian ε is always labelled as Bayesian.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bdpvi.bayesian.guarantees import BAYESIAN, WORST_CASE
from bdpvi.bench.methods import NONE, BaseRate, Method
from bdpvi.bench.methods.certified import CertifiedDraws
from bdpvi.bench.methods.objective_perturbation import PerturbedMinimum
from bdpvi.bench.summary import NO
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


INK = "#808080"
"""Colour of text, ticks and frame in :func:`headline`: legible on black and on white."""
OPENING = (
    ("posterior draws, Bayesian", "#2f7fd1", "o-"),
    ("best other Bayesian row, an experiment", "#7aa9d8", "o:"),
    ("objective perturbation, worst case", "#d9711c", "s--"),
    ("best other worst-case row", "#a965c0", "s-."),
)
"""Names, colours and styles of the lines of :func:`headline`, in order."""


def headline(summary: pd.DataFrame) -> Figure:
    """Return a comparison's log score against ε in one panel: the best of each family.

    Bayesian rows are circles on solid or dotted lines, worst-case rows squares on dashed lines.
    Markers are hollow where a Bayesian ε is not certified at its target. The band is the standard
    deviation of one run, because one run is released. The best method at a target is selected on
    the test rows, so the line is slightly optimistic.

    Args:
        summary: see :func:`curve`; also needs the spread of the log score and column certified.
    """
    figure = Figure(figsize=(4.8, 5.4), dpi=110, layout="constrained", facecolor="none")
    axes = figure.subplots()
    rows = summary[summary["log_score"].notna() & summary["reliable"].ne(False)]
    bayesian, worst = (rows["guarantee"] == kind for kind in (BAYESIAN, WORST_CASE))
    draws, default = (rows["method"] == one.name for one in (CertifiedDraws, PerturbedMinimum))
    families = (draws, bayesian & ~draws, default, worst & ~default)
    for (label, colour, style), some in zip(OPENING, families, strict=True):
        best = rows[some].sort_values("log_score").groupby("target_epsilon").tail(1)
        best = best.sort_values("target_epsilon")
        if best.empty:
            continue
        x, y, spread = (best[c] for c in ("target_epsilon", "log_score", "log_score_spread"))
        hollow = best["certified"].eq(NO)
        axes.fill_between(
            x, y - spread.fillna(0), y + spread.fillna(0), color=colour, alpha=0.2, lw=0
        )
        axes.plot(x, y, style[1:], color=colour, label="_")
        axes.plot(x[~hollow], y[~hollow], style[0], color=colour, ms=7, label="_")
        axes.plot(
            x[hollow], y[hollow], style[0], color=colour, mfc="none", mew=1.5, ms=7, label="_"
        )
        fill = "none" if hollow.all() else colour
        axes.plot([], [], style, color=colour, mfc=fill, ms=7, label=label)
    free = rows[rows["target_epsilon"].isna() & (rows["method"] != BaseRate.name)]["log_score"]
    if len(free):
        axes.axhline(free.max(), ls="-", lw=1, color=INK, label="without privacy")
    targets = sorted(rows["target_epsilon"].dropna().unique())
    if targets:
        axes.set_xscale("log")
        axes.set_xticks(targets, [f"{epsilon:g}" for epsilon in targets])
        axes.minorticks_off()
    deltas = sorted(set(rows["delta"].dropna()))
    axes.set_xlabel(f"ε at δ = {deltas[0]:g}" if deltas else "no privacy", color=INK)
    axes.set_ylabel("test log score; band: ± sd of one run", color=INK)
    axes.set_facecolor("none")
    axes.tick_params(colors=INK)
    axes.spines[:].set_color(INK)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[1]:
        figure.legend(
            loc="outside lower left", frameon=False, labelcolor=INK, alignment="left",
            title="hollow: not certified at that ε",
        ).get_title().set_color(INK)  # fmt: skip
    return figure


def _near_the_top(axes: Axes, rows: pd.DataFrame, name: str) -> None:
    """Limit a panel to the upper range of the results."""
    low, top = rows[name].quantile(_LEFT_OUT), rows[name].max()
    if low < top:
        room = 0.1 * (top - low)
        axes.set_ylim(low - room, top + room)
        axes.set_title(f"the same without the lowest {_LEFT_OUT:.0%}", fontsize=10)


def reliability(
    methods: Sequence[Method], bins: Mapping[str, Any], titles: Mapping[str, str]
) -> Figure:
    """Return reliability diagrams: predicted probability against observed frequency, and counts.

    Args:
        methods: the methods, one diagram each.
        bins: by the method's name, for each bin the number of records and the sums of their
            probabilities and targets; None for a method without results here.
        titles: by the method's name, the guarantee and its ε, if there is one.
    """
    columns = 4
    rows = -(-len(methods) // columns)
    figure = Figure(figsize=(13, 4.1 * rows), dpi=110, layout="constrained")
    grid = figure.subplots(
        2 * rows, columns, squeeze=False, gridspec_kw={"height_ratios": [3, 1] * rows}
    )
    for number in range(rows * columns):
        row, column = divmod(number, columns)
        above, below = grid[2 * row, column], grid[2 * row + 1, column]
        if number >= len(methods):
            above.set_axis_off()
            below.set_axis_off()
            continue
        method, found = methods[number], bins.get(methods[number].name)
        above.set_title(f"{method.label}\n{titles.get(method.name, HEADINGS[NONE])}", fontsize=9)
        above.plot([0, 1], [0, 1], color="0.6", lw=1, ls=":")
        above.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
        below.set(xlim=(-0.03, 1.03), xlabel="predicted probability")
        above.tick_params(labelbottom=False)
        if column == 0:
            above.set_ylabel("observed frequency")
            below.set_ylabel("records")
        if found is None:
            above.text(0.5, 0.5, "not reached", ha="center", va="bottom", color="0.4")
            below.set_yticks([])
            continue
        _diagram(above, below, np.asarray(found, dtype=float), method.guarantee)
    return figure


def _diagram(above: Axes, below: Axes, bins: Any, guarantee: str) -> None:
    count, predicted, observed = bins[bins[:, 0] > 0].T
    marker = MARKERS.get(guarantee, "D")
    above.plot(predicted / count, observed / count, f"{marker}-", ms=4, lw=1, color="C0")
    width = 1 / len(bins)
    centres = (np.flatnonzero(bins[:, 0] > 0) + 0.5) * width
    below.bar(centres, count, width=0.9 * width, color="0.6")


def record_epsilons(
    methods: Sequence[Method], own: Mapping[tuple[str, float], Any], delta: float
) -> Figure:
    """Return a figure of single records' ε, for the owner only: it is computed from the records.

    Args:
        methods: the methods; each one with a panel of records gets a diagram.
        own: by the method's name and target, equally spaced quantiles of the panel records' ε, up
            to the maximum; None if there are none.
        delta: δ of each record's own ε.
    """
    shown = [m for m in methods if any(n == m.name and e is not None for (n, _), e in own.items())]
    targets = sorted({target for (_, target), found in own.items() if found is not None})
    colours = {target: f"C{number % 10}" for number, target in enumerate(targets)}
    size = (4.5 * len(shown) + 2, 4.8)
    figure = Figure(figsize=size, dpi=110, layout="constrained", facecolor="#fff3f0")
    grid = figure.subplots(1, len(shown), squeeze=False, sharex=True, sharey=True)
    for axes, method in zip(grid[0], shown, strict=True):
        for target in targets:
            found = own.get((method.name, target))
            if found is None:
                continue
            share = np.arange(1, len(found) + 1) / len(found)
            finite = np.where(np.isfinite(found), found, np.nan)
            axes.step(finite, share, where="post", color=colours[target], lw=1.6)
            axes.axvline(target, color=colours[target], lw=0.9, ls=":")
        axes.set_xscale("log")
        axes.set_title(method.label, fontsize=10)
        axes.set_xlabel(f"a record's own ε at δ = {delta:g}")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("fraction of the reference records with at most this ε")
    handles: list[Any] = [
        Line2D([], [], color=colours[t], label=f"target ε {t:g}") for t in targets
    ]
    dotted = Line2D([], [], color="0.3", ls=":", label="the target, a Bayesian ε")
    figure.legend(
        handles=[*handles, dotted], loc="outside lower center", ncols=4, frameon=False, fontsize=9
    )
    figure.suptitle("SECRET: for the owner of the records alone", color="#b00000", weight="bold")
    return figure
