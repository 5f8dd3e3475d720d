"""The command ``bdpvi ledger``: the releases from a fit, and its budget."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdpvi._ground import outputs, store
from bdpvi._ground.outputs import several
from bdpvi.commands.command import Command
from bdpvi.commands.options import Folder, Json

if TYPE_CHECKING:
    from bdpvi.privacy.book import Entry

app = typer.Typer(
    help="Releases from a fit, and the remaining budget.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(cls=Command)
def show(folder: Folder, as_json: Json = False) -> None:
    """List what was released from a fit, and its budget."""
    from bdpvi.bayesian import storage
    from bdpvi.releases import receipts

    receipts.check(folder if folder.is_dir() else None, storage.open_ledger(folder))
    _print(folder, as_json)


@app.command(cls=Command)
def repair(
    folder: Folder,
    charge: Annotated[
        list[str] | None,
        typer.Option(
            help="DRAWS,TEMPERATURE of a release, in place of the ledger lines that cannot be "
            "verified; once for every release. It is treated as one at a temperature chosen "
            "from the data, which is conservative.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a damaged ledger whole again; keep the damaged file beside it.

    Lines up to the first damage are kept. Where whole lines are lost and nothing says what they
    were, the whole budget counts as spent. All else only the owner of the fit can decide, by
    --charge: in doubt give too much.
    """
    from bdpvi.bayesian import storage
    from bdpvi.privacy.repair import repair as repaired
    from bdpvi.releases import receipts

    kept = storage.open_ledger(folder)
    assert kept.path is not None
    given = [_charge(text, storage.name_of(folder)) for text in charge or ()]
    fits = folder if folder.is_dir() else None
    told = () if given or fits is None else receipts.missing(fits, kept.mended()).values()
    added = repaired(kept.path, given, tuple(told))
    _print(folder, as_json, len(added))


def _charge(text: str, of: str) -> Entry:
    from bdpvi.privacy.book import Charge, Entry, Origin

    try:
        draws, temperature = text.split(",")
        made = Charge(int(draws), float(temperature), Origin.DATA)
        return Entry(kind="draws", of=of, charge=made, events=None)
    except ValueError as error:
        raise ValueError(f"charge must be like 10,5.0, got {text!r}: {error}") from error


def _print(folder: Path, as_json: bool, added: int | None = None) -> None:
    from bdpvi.bayesian import storage
    from bdpvi.tables import files

    files.sweep(folder)
    kept = storage.open_ledger(folder)
    book = kept.book()
    if as_json:
        content = {
            "path": kept.path,
            "id": book.id,
            "budget": asdict(book.budget) if book.budget else None,
            "unit": book.unit,
            "rows_per_unit": book.rows,
            "charges": [one.to_dict() for one in book.entries],
            "added": added or 0,
        }
        outputs.show(store.json_text(content))
        return
    if added is not None:
        outputs.show(f"{several(added, 'charge')} added" if added else "Nothing to repair")
    for number, one in enumerate(book.charges, start=1):
        outputs.show(f"{number}. {one}" + (f", of {one.of}" if one.of else ""))
    if book.marks:
        outputs.show(
            "Temperatures were chosen from the data: every temperature is treated as chosen from it"
        )
    limit = f"ε = {book.budget.epsilon:g} at δ = {book.budget.delta:g}" if book.budget else "none"
    if book.opened:
        outputs.show(f"{len(book.opened)} started and not finished, with all of their ε reserved")
    outputs.show(f"{several(len(book.charges), 'charge')}; budget: {limit}; in {kept.path}")
