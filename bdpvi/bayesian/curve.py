"""The figure of ε against the share of a group; needs matplotlib, the extra ``bdpvi[report]``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bdpvi.privacy.cost import Cost

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_groups(cost: Cost, path: Path | str) -> Path:
    """Draw ε from everybody on average to the smallest group; return the path.

    The figure is computed from the records, so it is secret, for the owner only.

    Args:
        cost: of :func:`bdpvi.cost` with ``for_groups_of=``.
        path: file of the figure; its suffix sets the format.

    Raises:
        ValueError: if the cost has no bound for groups.
        ImportError: if matplotlib is not installed.
    """
    if not cost.groups:
        raise ValueError("cost has no bound for groups: bdpvi.cost(fit, for_groups_of=0.1) has one")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("matplotlib is not installed: pip install 'bdpvi[report]'") from error
    figure = Figure(figsize=(6.4, 3.6), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*cost.curve, strict=True), "o-", color="C0")
    label_shares(axes, [share for share, _ in cost.curve], cost.groups[0].delta)
    axes.set_title("For the owner only", fontsize=9, color="0.4", loc="right")
    figure.savefig(path)
    return Path(path)


def label_shares(axes: Axes, shares: Sequence[float], delta: float) -> None:
    """Label the axes: shares from everybody on the left to the smallest on the right, and ε."""
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.set_xticks(
        shares, ["everybody" if share == 1 else f"{100 * share:g} %" for share in shares]
    )
    axes.minorticks_off()
    axes.set_ylim(0, None)
    axes.set(xlabel="every group of at least this share", ylabel=f"ε at δ = {delta:g}")
    axes.grid(alpha=0.3)
