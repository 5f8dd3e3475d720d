"""Privacy–accuracy curves: a score against ε on a logarithmic axis, a line for each method.

Needs matplotlib, which the extra ``bdpvi[report]`` brings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart by colour-blind readers too (Okabe and Ito 2008)."""
GREY = "0.35"


@dataclass(frozen=True)
class Curve:
    """One method's results.

    Attributes:
        label: in the legend, with the guarantee.
        points: pairs of ε and score, in any order.
        notes: text beside each point; empty for none.
        bayesian: whether ε is Bayesian: circles instead of squares.
        certified: whether markers are filled.
    """

    label: str
    points: Sequence[tuple[float, float]]
    notes: Sequence[str] = ()
    bayesian: bool = False
    certified: bool = True


def draw(axes: Axes, lines: Sequence[Curve], without: float) -> None:
    """Draw lines, and the score without privacy as a horizontal one."""
    axes.axhline(without, color=GREY, lw=1.2, ls="--", label="without privacy")
    for colour, line in zip(COLOURS, lines, strict=False):
        x, y = zip(*sorted(line.points), strict=True)
        axes.plot(
            x, y, "o-" if line.bayesian else "s-", color=colour, ms=5,
            mfc=colour if line.certified else "white", label=line.label,
        )  # fmt: skip
        for point, note in zip(line.points, line.notes, strict=False):
            axes.annotate(note, point, (0, 7), ha="center", color=colour, fontsize=8,
                          textcoords="offset points")  # fmt: skip
    axes.set_xscale("log")
    plain_ticks(axes.xaxis)
    axes.grid(alpha=0.3)


def legend(figure: Figure, axes: Axes, columns: int = 2) -> None:
    """Put the legend below the panels, where it hides nothing."""
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False,
        fontsize=9,
    )  # fmt: skip


def demonstration(rows: pd.DataFrame, delta: float) -> Figure:
    """Return the figure of ``bdpvi demo``: accuracy and log score against ε.

    Args:
        rows: see :mod:`bdpvi.bench.demonstration`; of each method one row an ε.
        delta: δ of every ε.
    """
    figure = Figure(figsize=(8.4, 4.6), dpi=110, layout="constrained")
    for axes, score in zip(figure.subplots(1, 2), ("log_score", "accuracy"), strict=True):
        free = rows[rows["epsilon"].isna() & rows["certified"].isna()]  # draws have a "certified"
        draw(axes, _lines(rows, score), float(free[score].iloc[0]))
        axes.set(xlabel=f"ε at δ = {delta:g}", ylabel=f"test {score.replace('_', ' ')}")
    legend(figure, axes)
    return figure


def _lines(rows: pd.DataFrame, score: str) -> list[Curve]:
    own = rows[rows["certified"].notna() & rows["epsilon"].notna()]
    lines = []
    for certified, some in own.groupby(own["certified"].astype(bool)):
        kind = "certified Bayesian DP" if certified else "Bayesian DP, not certified"
        lines.append(
            Curve(f"posterior draws, {kind}", _points(some, score),
                 notes=[*some["method"].str.replace("temperature", "τ =")], bayesian=True,
                 certified=bool(certified))
        )  # fmt: skip
    others = rows[rows["certified"].isna() & rows["epsilon"].notna()]
    for method, some in others.groupby("method", sort=False):
        lines.append(Curve(f"{method}, worst-case DP", _points(some, score)))
    return lines


def _points(rows: pd.DataFrame, score: str) -> list[tuple[float, float]]:
    return list(zip(rows["epsilon"], rows[score], strict=True))


def plain_ticks(axis: Axis) -> None:
    """Label a logarithmic axis with numbers such as 0.2 and 0.5."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
