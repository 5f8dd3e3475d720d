"""``bdpvi account``: everything spent on a table; ``bdpvi ledger`` repairs its record."""

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
    from bdpvi.privacy.entry import Entry

app = typer.Typer(
    help="Releases from a fit, and the remaining budget.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def account(
    place: Annotated[
        Path, typer.Argument(help="The table's file, its ledger, or a folder of `bdpvi fit`.")
    ],
    html: Annotated[
        Path | None,
        typer.Option(help="New file for a page with the same content."),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="δ of every ε; by default the budget's."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what was spent on a table: when, by which command, for which file, at which ε.

    Nothing is charged. What it shows is for the owner of the table.
    """
    from bdpvi.bayesian import storage
    from bdpvi.privacy.accounts import beside
    from bdpvi.releases import receipts

    if place.is_file() and beside(place).is_file():
        place = beside(place)
    receipts.check(place if place.is_dir() else None, storage.open_ledger(place))
    _print(place, as_json, delta=delta, html=html)


app.command("show", cls=Command)(account)


@app.command(cls=Command)
def repair(
    folder: Folder,
    charge: Annotated[
        list[str] | None,
        typer.Option(
            help="DRAWS,TEMPERATURE of a release, in place of the ledger lines that cannot be "
            "verified; once for every release. It is treated as one at a temperature chosen "
            "from the data, which is conservative."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a damaged ledger whole again; keep the damaged file beside it.

    Lines up to the first damage are kept. Where whole lines are lost and nothing says what they
    were, the whole budget counts as spent. Other damage only the owner of the fit can repair, by
    --charge: if in doubt, give too much.
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
    from bdpvi.privacy.entry import Charge, Entry, TemperatureOrigin

    try:
        draws, temperature = text.split(",")
        made = Charge(int(draws), float(temperature), TemperatureOrigin.DATA)
        return Entry(kind="draws", of=of, charge=made, events=None)
    except ValueError as error:
        raise ValueError(f"charge must be like 10,5.0, got {text!r}: {error}") from error


def _print(
    folder: Path,
    as_json: bool,
    added: int | None = None,
    delta: float | None = None,
    html: Path | None = None,
) -> None:
    from bdpvi.bayesian import storage
    from bdpvi.releases.account import Statement
    from bdpvi.tables import files

    files.sweep(folder)
    kept = storage.open_ledger(folder)
    book = kept.book()
    if delta is None:
        delta = book.budget.delta if book.budget else 1e-5
    made = Statement(book, delta)
    if html is not None:
        store.write(html, made.page().encode())
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
        outputs.show(store.json_text(content | made.to_dict()))
        return
    if added is not None:
        outputs.show(f"{several(added, 'charge')} added" if added else "Nothing to repair")
    outputs.show(*made.text())
    if book.marks:
        outputs.show(
            "Temperatures were chosen from the data: every temperature is treated as chosen from it"
        )
    outputs.show(
        f"{several(len(book.charges), 'charge')}; budget: {made.limit}; in {kept.path}",
        *([] if html is None else [f"Wrote {html}, for the owner of the table"]),
    )
