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
    per: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=UNITS",
            help="Units of a column that its coefficient is for, such as age=10; once for every "
            "column. 1 by default.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="New file for the table, .html, .tex or .csv; or for a forest plot, .png, .pdf or "
            ".svg."
        ),
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
    amounts = {}
    for name, units in _pairs("per", per, columns, "age=10").items():
        try:
            amounts[name] = float(units)
        except ValueError:
            raise ValueError(f"per={f'{name}={units}'!r}: {units!r} is no number") from None
    chosen = _pairs("reference", reference, columns, "smokes=never")
    found = release.summary(level, odds=odds, reference=chosen, per=amounts)
    if out is not None:
        found.save(out)
    if as_json:
        outputs.show(store.json_text(found.to_dict()))
    else:
        outputs.show(*str(found).split("\n"))


def _pairs(
    option: str, given: list[str] | None, columns: list[str], example: str
) -> dict[str, str]:
    """Return what an option says of columns, whose names may contain the sign =."""
    found = {}
    for one in given or ():
        if "=" not in one:
            raise ValueError(f"{option}={one!r} must be like {example}")
        named = [name for name in columns if one.startswith(f"{name}=")]
        column = max(named, key=len, default=one.partition("=")[0])
        found[column] = one[len(column) + 1 :]
    return found
