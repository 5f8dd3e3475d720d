"""The forest plot of a summary; needs matplotlib, which the extra ``bdpvi[report]`` installs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bdpvi._ground.outputs import one_line


def forest(
    names: Sequence[str],
    values: Sequence[tuple[float, float | None, float | None]],
    path: Path,
    *,
    faint: Sequence[bool],
    label: str,
    ratios: bool,
) -> Path:
    """Draw estimates and intervals, one line for each coefficient; return ``path``.

    Args:
        names: names of the coefficients.
        values: estimate, lower and upper end of each; the ends are None without an interval.
        path: file of the figure; its suffix sets the format.
        faint: whether each is dominated by privacy noise, and drawn in grey.
        label: label of the axis.
        ratios: whether the values are ratios, which have a logarithmic axis.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("matplotlib is not installed: pip install 'bdpvi[report]'") from error
    figure = Figure(figsize=(7, 1.2 + 0.3 * len(names)), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.axvline(1.0 if ratios else 0.0, color="0.6", lw=1)
    for at, ((middle, low, high), grey) in enumerate(zip(values, faint, strict=True)):
        colour = "0.7" if grey else "C0"
        if low is not None and high is not None:
            axes.plot([low, high], [at, at], color=colour, lw=1.5)
        axes.plot([middle], [at], "o", color=colour)
    if ratios:
        axes.set_xscale("log")
    axes.set_yticks(range(len(names)), [one_line(name) for name in names], parse_math=False)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path)
    return path
