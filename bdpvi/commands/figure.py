"""The demonstration's figure; it needs matplotlib, which the extra ``bdpvi[report]`` brings."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter


def accuracy_curve(curve: pd.DataFrame, non_private: float, path: Path) -> Path:
    """Draw accuracy against ε, with the range of releases; return ``path``.

    Args:
        curve: columns worst_case (ε), accuracy, lowest, highest, delta.
        non_private: accuracy without privacy.
        path: where the PNG goes.
    """
    figure = Figure(figsize=(7, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.axhline(non_private, color="0.4", lw=1, ls=":", label="without privacy")
    at = curve["worst_case"]
    axes.fill_between(at, curve["lowest"], curve["highest"], alpha=0.25, lw=0, label="range")
    axes.plot(at, curve["accuracy"], marker="o", label="mean of releases")
    axes.set_xscale("log")
    plain_ticks(axes.xaxis)
    axes.set_xlabel(f"worst-case ε at δ = {curve['delta'].iloc[0]:g}")
    axes.set_ylabel("test accuracy")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path)
    return path


def plain_ticks(axis: Axis) -> None:
    """Label a logarithmic axis with numbers such as 0.2 and 0.5."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
