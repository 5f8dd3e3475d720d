"""``bdpvi table``: the public file of a table, drafted and edited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdpvi._ground import outputs, store
from bdpvi._ground.outputs import several
from bdpvi.commands.options import Data, TableOption, UnitOptions, of_fields

if TYPE_CHECKING:
    from bdpvi.tables.draft import Draft


@of_fields
def table(
    data: Data,
    whom: UnitOptions,
    sheet: Annotated[str, typer.Option(help="Sheet of an Excel workbook that has several.")] = "",
    account: Annotated[
        str,
        typer.Option(
            help="Name of the ledger beside it, where tables of the same people have one."
        ),
    ] = "",
    budget: Annotated[
        float | None,
        typer.Option(help="Limit on the total ε spent on the table."),
    ] = None,
    delta: Annotated[float, typer.Option(help="δ of that limit.")] = 1e-5,
    declared_in: TableOption = None,
) -> None:
    """Draft the public file of a table: how it is read, its columns, whom ε protects, its account.

    The file is TABLE.table.json beside the table, and all other commands find it there. What it
    declares already stays; what it lacks is drafted from the rows and marked "from_data": true.
    Of a folder, a glob or a URL the first 200,000 rows are read.
    Marks are refused by every release: write what is known without the rows, and delete them. Keep
    the file secret until then. Each entry was tried on the cells. For the owner only.

    Example: bdpvi table patients.xlsx --one-row-per-person
    """
    from bdpvi._ground import schema
    from bdpvi.releases import table_file
    from bdpvi.releases.table_file import TableFile
    from bdpvi.tables.draft import Draft

    path = declared_in or table_file.place_of(data)
    if path is None:
        raise ValueError(f"table: none can be beside the URL {data!r}; give --table FILE")
    content: dict[str, Any] = {}
    if not store.nothing_at(path):
        TableFile.beside(data, declared_in)
        content = schema.parsed(store.read_shared(path))
    before = dict(content)
    if sheet:
        content["file"] = {**content.get("file", {}), "sheet": sheet}
    if whom.unit or whom.one_row_per_person:
        people = {"unit": whom.unit, "rows_per_unit": whom.rows_per_unit}
        content = {n: one for n, one in content.items() if n not in table_file.PEOPLE}
        content |= people if whom.unit else {}
        content |= {"one_row_per_person": True} if whom.one_row_per_person else {}
    content |= {"account": account} if account else {}
    content |= {"budget": {"epsilon": budget, "delta": delta}} if budget is not None else {}
    made = Draft.of(data, content, path)
    if made.content != before:
        store.write(path, _text(made.content).encode())
    _report(made, path, made.content != before)


def _text(content: dict[str, Any]) -> str:
    """Return a file for people to edit: one line for each column."""
    columns = content.get("columns", {})
    each = ",\n".join(f"  {json.dumps(n)}: {store.json_text(one)}" for n, one in columns.items())
    rest = [f"{json.dumps(n)}: {store.json_text(v)}" for n, v in content.items() if n != "columns"]
    return "{" + ",\n ".join([*rest, *([f'"columns": {{\n{each}}}'] if columns else [])]) + "}\n"


def _report(made: Draft, path: Path, written: bool) -> None:
    drafted = [column for column in made.columns if column.lacks]
    lacking = [
        f"{what} of {', '.join(one.name for one in drafted if one.lacks == what)}"
        for what in dict.fromkeys(one.lacks for one in drafted)
    ]
    outputs.show(
        f"{path}: "
        + (f"{several(len(made.columns), 'column')} drafted" if written else "as it was"),
        *(f"  {column.words}" for column in made.columns),
        *(
            f"  {name}: blank, or nothing reads it: declare it, or --drop it"
            for name in made.unread
        ),
        *made.look.short,
    )
    if lacking:
        outputs.show(
            f"Not declared: {'; '.join(lacking)}. Each release estimates them privately, unless "
            'public ones are written there, as "low" and "high" or "levels"'
        )
    if made.marked:
        outputs.show(
            f"{several(made.marked, 'entry', 'entries')} marked from_data, as read from the rows. "
            'Compare them with what is known without the rows, such as a form, say in "source" '
            "what that is, and delete the marks. Keep the file secret until then"
        )
