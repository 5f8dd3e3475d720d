"""Figures. A Bayesian-DP ε is labelled as one on every axis that shows it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter


def accuracy_curve(curve: pd.DataFrame, non_private: float, path: Path) -> Path:
    """Draw accuracy against ε, one line for each number of draws; return ``path``.

    Args:
        curve: columns draws, temperature, accuracy, epsilon, delta, reliable.
        non_private: accuracy of the posterior mean.
        path: where the PNG goes.
    """
    figure = Figure(figsize=(7, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.axhline(non_private, color="0.4", lw=1, ls=":", label="posterior mean (not private)")
    for marker, (draws, line) in zip("osD^v", curve.groupby("draws"), strict=False):
        name = f"{draws} draw" + ("s" if draws != 1 else "")
        (drawn,) = axes.plot(line["epsilon"], line["accuracy"], marker=marker, label=name)
        doubtful = line[~line["reliable"]]
        axes.plot(
            doubtful["epsilon"], doubtful["accuracy"], marker, mfc="white", color=drawn.get_color()
        )
        for row in line.itertuples():
            axes.annotate(
                f"τ={row.temperature:g}",
                (row.epsilon, row.accuracy),
                xytext=(6, -9),
                textcoords="offset points",
                fontsize=7,
                color=drawn.get_color(),
            )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(
        f"Bayesian-DP ε at δ = {curve['delta'].iloc[0]:g} (not worst-case DP; hollow: not reliable)"
    )
    axes.set_ylabel("test accuracy")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path)
    return path
