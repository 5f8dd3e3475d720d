"""Common to every study: a table, figures, and a text with the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bdpvi._ground import validate
from bdpvi._ground.progress import Track

BAYESIAN = "Bayesian DP"
DP = "DP"
PLD = "DP by PLD"
LINES: Mapping[str, Mapping[str, Any]] = {
    BAYESIAN: {"ls": "-", "lw": 1.8},
    DP: {"ls": "--", "lw": 1.5},
    PLD: {"ls": ":", "lw": 1.5},
}
"""The two guarantees never share a line style."""
EITHER_EPSILON = "ε: DP ε dashed or dotted, Bayesian-DP ε solid"


@dataclass(frozen=True, eq=False)
class Finding:
    """What a study found.

    Attributes:
        table: every number behind the figures; also in a CSV file.
        text: whether the claim was reproduced, in words.
        files: what was written.
    """

    table: pd.DataFrame
    text: str
    files: tuple[Path, ...]


class Run(Protocol):
    """The work of a study."""

    def __call__(self, out: Path, *, seed: int, track: Track[Any], scale: float) -> Finding:
        """Do it and write CSV, figures and text to the folder ``out``.

        Args:
            out: folder, made if it is not there.
            seed: of everything random.
            track: shows progress, see :mod:`bdpvi._ground.progress`.
            scale: in (0, 1], the fraction of the full size; the documentation shows 1.
        """


def sized(full: int, scale: float, least: int = 1) -> int:
    """Return ``scale`` times the full size, at least ``least``.

    >>> sized(1000, 0.25)
    250
    """
    return max(least, round(full * validate.rate("scale", scale)))


def publish(
    out: Path, name: str, title: str, table: pd.DataFrame, figures: Iterable[Figure], text: str
) -> Finding:
    """Write ``{name}.csv``, ``{name}.png`` (``{name}-2.png`` …) and ``{name}.md``.

    Tables of ten rows and more go to ``{name}.txt``.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows, note = out / f"{name}.csv", out / f"{name}.md"
    table.to_csv(rows, index=False, float_format="%.6g")
    pictures = []
    for number, figure in enumerate(figures, start=1):
        pictures.append(out / (f"{name}.png" if number == 1 else f"{name}-{number}.png"))
        figure.savefig(pictures[-1])
    text, long = without_long_tables(text, f"{name}.txt")
    if long:
        rows.with_suffix(".txt").write_text(long, encoding="utf-8")
    links = "\n\n".join(f"![{title}]({picture.name})" for picture in pictures)
    note.write_text(
        f"# {title}\n\n{text}\n\n{links}\n\nNumbers: [{rows.name}]({rows.name}).\n",
        encoding="utf-8",
    )
    return Finding(table, text, (rows, note, *pictures))


def without_long_tables(text: str, file: str) -> tuple[str, str]:
    """Return a text whose tables of ten rows and more are a link to a file, and these tables."""
    parts = text.split("\n\n")
    long = [part for part in parts if part.startswith("|") and part.strip().count("\n") > 10]
    page = "\n\n".join(f"([Table]({file}))" if part in long else part for part in parts)
    return page, "\n\n".join(long)


def draw(axes: Axes, x: pd.Series, curve: pd.DataFrame, guarantee: str, **style: Any) -> None:
    """Draw ε against ``x`` in the line style of its guarantee, hollow where not reliable."""
    (line,) = axes.plot(x, curve["epsilon"], **{**LINES[guarantee], **style})
    doubtful = ~curve["reliable"]
    axes.plot(x[doubtful], curve["epsilon"][doubtful], "o", ms=4, mfc="white", c=line.get_color())


def chart(
    table: pd.DataFrame, x: str, by: tuple[str, str], title: str, size: tuple[float, float]
) -> Figure:
    """Return a figure of ε on a logarithmic axis: a line for each setting and guarantee.

    Args:
        table: with the columns ``x``, "guarantee", "epsilon" and "reliable".
        x: column for the horizontal axis.
        by: column of the settings, one color each, and their symbol.
        title: above the axes.
        size: width and height in inches.
    """
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    axes = figure.subplots()
    column, symbol = by
    colors = {value: f"C{i}" for i, value in enumerate(table[column].unique())}
    for (value, guarantee), curve in table.groupby([column, "guarantee"], sort=False):
        label = f"{guarantee}, {symbol} = {value:g}"
        draw(axes, curve[x], curve, str(guarantee), color=colors[value], label=label)
    axes.set(yscale="log", ylabel=EITHER_EPSILON)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    return figure
