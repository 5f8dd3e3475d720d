"""The command ``bdpvi ledger``: what was released from a fit, and what may be."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdpvi.commands.command import Command
from bdpvi.commands.options import Folder, Json, print_json

if TYPE_CHECKING:
    from bdpvi.accounting.ledger import Charge, Line

app = typer.Typer(
    help="What was released from a fit, and what may be.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(cls=Command)
def show(folder: Folder, as_json: Json = False) -> None:
    """List what was released from a fit, and its budget."""
    _print(folder, as_json)


@app.command(cls=Command)
def repair(
    folder: Folder,
    charge: Annotated[
        list[str] | None,
        typer.Option(
            help="DRAWS,TEMPERATURE of a release that the ledger should hold after the lines that "
            "are proven, instead of those that are not; once for every release. It counts as "
            "one at a temperature found from the data, which is the safe side.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a damaged ledger whole again; keep the damaged file beside it.

    Lines up to the first damage are kept. A last line that was cut off is charged in full. All else
    only the owner of the fit can decide, by --charge: in doubt give too much.
    """
    from bdpvi.accounting import ledger
    from bdpvi.releasing import storage

    kept = storage.open_ledger(folder)
    assert kept.path is not None
    given = [_charge(text) for text in charge or ()]
    added = ledger.repair(kept.path, given, binding=kept.binding)
    _print(folder, as_json, added)


def _charge(text: str) -> Charge:
    from bdpvi.accounting.ledger import Charge

    try:
        draws, temperature = text.split(",")
        return Charge(int(draws), float(temperature), from_data=True)
    except ValueError as error:
        raise ValueError(f"charge must be like 10,5.0, got {text!r}: {error}") from error


def _print(folder: Path, as_json: bool, added: tuple[Line, ...] | None = None) -> None:
    from bdpvi.releasing import storage

    kept = storage.open_ledger(folder)
    charges, budget = kept.charges(), kept.budget
    if as_json:
        content = {
            "path": kept.path,
            "budget": asdict(budget) if budget else None,
            "bought": [asdict(one) for one in kept.bought()],
            "charges": [asdict(one) for one in charges],
            "added": len(added or ()),
        }
        print_json(content)
        return
    if added is not None:
        print(f"{len(added)} charges added" if added else "Nothing to repair")
    for other in kept.bought():
        print(f"bought from the table: Gaussian DP of distance {other.distance:.4g}")
    for number, one in enumerate(charges, start=1):
        found = ", found from the data" if one.from_data else ""
        print(f"{number}. {one.draws} draws at temperature {one.temperature:.4g}{found}")
    limit = f"ε = {budget.epsilon:g} at δ = {budget.delta:g}" if budget else "none"
    print(f"{len(charges)} releases; budget: {limit}")
