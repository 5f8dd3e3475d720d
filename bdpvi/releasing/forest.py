"""The forest plot of a summary; needs matplotlib, which the extra ``bdpvi[report]`` installs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bdpvi._runtime.outputs import one_line

if TYPE_CHECKING:
    from bdpvi.releasing.summary import Summary


def forest(summary: Summary, path: Path) -> Path:
    """Draw estimates and intervals, one line for each coefficient; return ``path``.

    Ratios have a logarithmic axis. Coefficients without an estimate are not drawn.

    Args:
        summary: summary of a release.
        path: file of the figure; its suffix sets the format.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("matplotlib is not installed: pip install 'bdpvi[report]'") from error
    rows = [one for one in summary.coefficients if one.sd]
    ratios = summary.odds and bool(summary.ratio)
    values = [one.ratio() if ratios else (one.mean, one.low, one.high) for one in rows]
    figure = Figure(figsize=(7, 1.2 + 0.3 * len(rows)), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.axvline(1.0 if ratios else 0.0, color="0.6", lw=1)
    for at, (middle, low, high) in enumerate(values):
        axes.plot([low, high], [at, at], color="C0", lw=1.5)
        axes.plot([middle], [at], "o", color="C0")
    if ratios:
        axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [one_line(one.name) for one in rows], parse_math=False)
    axes.invert_yaxis()
    trust = {None: "", True: ", reliable", False: ", NOT reliable"}[summary.reliable]
    what = summary.ratio if ratios else "coefficient"
    axes.set_xlabel(f"{what}, {100 * summary.level:g} % intervals{trust}")
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path)
    return path
