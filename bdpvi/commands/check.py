"""``bdpvi check``: a look at a table before anything is spent, and a question."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdpvi._ground import outputs, store
from bdpvi.commands.engine import WorkerOptions
from bdpvi.commands.options import (
    WORDS,
    ColumnOptions,
    Data,
    Delta,
    Json,
    LedgerFile,
    ScreenOptions,
    UnitOptions,
    of_fields,
    table_file_of,
)

if TYPE_CHECKING:
    from bdpvi.datasets.formats import FileFormat


@dataclass(frozen=True, kw_only=True)
class LookOptions:
    """What a release would be asked, to see what it pays for."""

    target: Annotated[str, typer.Option(help="Column to predict.")] = ""
    positive: Annotated[str, typer.Option(help=WORDS["positive"])] = ""
    constants: Annotated[
        Path | None,
        typer.Option(help="JSON file of public bounds and categories."),
    ] = None
    epsilon: Annotated[
        float | None,
        typer.Option(help="ε of all outputs, to see what it pays for."),
    ] = None
    delta: Delta = 1e-5


@of_fields
def check(
    data: Data,
    columns: ColumnOptions,
    whom: UnitOptions,
    workers: WorkerOptions,
    asked: LookOptions,
    ledger: LedgerFile = None,
    as_json: Json = False,
) -> None:
    """Look at a table before anything is spent: what the options read, and what they do not.

    For the owner of the table only, on screen. Nothing is charged, no file is written, and no
    release changes: options do. A choice that you make by what you see here is one that ε does
    not cover; where you can, declare what you know without the rows.

    Of a folder, a glob or a URL, and with --workers, rows and cells are counted block by block;
    kinds, persons and findings are from the first 200,000 rows.

    Example: bdpvi check patients.csv --target sick --positive yes --epsilon 1
    """
    from bdpvi._ground.schema import to_json
    from bdpvi.tables import look

    known = table_file_of(data, columns.table, release=False)
    named = ledger or known.account
    kept = known.ledger(data, ledger) if named or "://" not in data else None
    with workers.machine(progress=not as_json) as machine:
        found = look(
            data,
            target=asked.target,
            positive=asked.positive,
            epsilon=asked.epsilon,
            delta=asked.delta,
            public=columns.public(known, asked.constants),
            unit=whom.of(known),
            file=known.file,
            machine=machine,
        )
    if as_json:
        outputs.show(store.json_text({"secret": {"ledger": kept, **to_json(found)}}))
        return
    outputs.show(*found.lines, _of_account(kept), "Nothing was charged, and no file written")


def _of_account(file: Path | None) -> str:
    """Return what is said of the account of a table; None for one at a URL."""
    if file is None:
        return "A table at a URL has its account in a local file: a release needs --ledger FILE"
    state = "is there" if file.exists() else "begins with the first release"
    return (
        f"The account of this table is {file}, which {state}. A file with the same rows has the "
        "same one; a file of other rows of the same persons has it by --ledger"
    )


def look_first(data: Path, file: FileFormat, screen: ScreenOptions, **asked: Any) -> None:
    """Show the owner of a file in short what is read otherwise than it seems meant, and ask.

    The question is asked on a terminal, if something was found that costs the owner.

    Args:
        data: the file.
        file: how it is written.
        screen: whether to go on without a question, and say nothing if nothing was found.
        asked: as for :func:`bdpvi.tables.look`.

    Raises:
        typer.Abort: if the owner does not go on.
    """
    from bdpvi.datasets.looks import ReadingWarning
    from bdpvi.datasets.table import Table
    from bdpvi.tables import look

    Table.of(data, file=file)  # refuses what is not readable

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of reading come when the command itself reads
        found = look(data, **asked, file=file)
    warnings.simplefilter("ignore", ReadingWarning)
    if found.findings or screen.bars:
        outputs.say(*found.short, error=bool(found.findings))
    if found.costly and not screen.yes and _terminal():
        typer.confirm("Nothing is charged yet. Continue?", abort=True, err=True)


def _terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
