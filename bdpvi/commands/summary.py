"""``bdpvi summary``: the coefficients of a release, with their intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bdpvi._ground import outputs, store
from bdpvi.commands.options import Json


def summary(
    released: Annotated[Path, typer.Argument(help="File with a release.")],
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    odds: Annotated[
        bool, typer.Option("--odds", help="Show odds ratios, or rate ratios of counts.")
    ] = False,
    reference: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=LEVEL",
            help="Level that the others of a category are compared with; once for every column.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="File for a forest plot, such as forest.png."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show coefficients with intervals, and whether they can be relied on.

    Intervals of a release for intervals (bdpvi private --for intervals) account for sampling and
    privacy noise. Of other releases they are quantiles of the draws, and a line says what they
    omit; with fewer than 20 draws there are point estimates alone.
    """
    from bdpvi.releases import shared_file

    release = shared_file.load_release(released)
    columns = [one.name for one in release.encoding.columns] if release.encoding else []
    chosen = {}
    for one in reference or ():
        if "=" not in one:
            raise ValueError(f"reference={one!r} must be COLUMN=LEVEL, such as smokes=never")
        named = [name for name in columns if one.startswith(f"{name}=")]
        column = max(named, key=len, default=one.partition("=")[0])
        chosen[column] = one[len(column) + 1 :]
    found = release.summary(level, odds=odds, reference=chosen)
    if plot is not None:
        found.plot(plot)
    if as_json:
        outputs.show(store.json_text(found.to_dict()))
    else:
        outputs.show(*str(found).split("\n"))
