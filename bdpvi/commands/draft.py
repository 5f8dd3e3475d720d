"""``bdpvi schema``: a draft of the kinds, bounds and levels of a table's columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdpvi._ground import outputs
from bdpvi._ground.outputs import several
from bdpvi.commands.options import Charset, DateFormat, Decimal, Multiline, Separator, Thousands

if TYPE_CHECKING:
    import pandas as pd

Drop = Annotated[
    list[str] | None,
    typer.Option(help="Column to leave out; once for every column.", show_default=False),
]
Categorical = Annotated[
    list[str] | None,
    typer.Option(
        help="Column whose numbers are categories; once for every column.", show_default=False
    ),
]


def schema(
    data: Annotated[
        str,
        typer.Argument(
            help="A file, such as CSV, Parquet or Excel; or a folder, a glob or a URL of files of "
            "one kind, whose first 200,000 rows are read."
        ),
    ],
    out: Annotated[Path, typer.Option(help="New file for the schema.")],
    drop: Drop = None,
    categorical: Categorical = None,
    separator: Separator = ",",
    multiline: Multiline = False,
    charset: Charset = "utf-8",
    decimal: Decimal = ".",
    thousands: Thousands = "",
    date_format: DateFormat = "",
) -> None:
    """Draft a schema from a table, for the owner to replace what is read from its rows.

    Every column is marked "origin": "rows". Write public bounds and levels in, and "declared".
    Identifiers, free text, and dates without --date-format are listed under "left_out", with the
    reason. Keep the draft secret until then. The same file is that of --types.
    """
    from bdpvi._ground.types import tell_owner
    from bdpvi.datasets.encoding import with_text_names
    from bdpvi.datasets.formats import FileFormat
    from bdpvi.datasets.schema import measured
    from bdpvi.datasets.table import ODD, Table, in_blocks

    file = FileFormat(
        separator=separator, multiline=multiline, charset=charset, decimal=decimal,
        thousands=thousands, date_format=date_format,
    )  # fmt: skip
    said, table = "", Table.of(data, file=file)
    if in_blocks(data):
        frame, whole, odd = table.first()
        tell_owner(odd, "line", ODD)
        said = "" if whole else f"the draft is of the first {len(frame)} rows"
    else:
        frame = with_text_names(table.frame(text=True))
    source = "Write here where these bounds are from."
    drafted = measured(without(frame, drop), source, categorical or (), file)
    drafted.save(out)
    outputs.say(
        f"{out}: {several(len(drafted.columns), 'column')}, all with bounds or levels read from "
        "the rows; replace these by public ones",
        *filter(None, [said]),
        *(f"  left out: {why}" for why in drafted.left_out.values()),
    )


def without(frame: pd.DataFrame, drop: Sequence[str] | None) -> pd.DataFrame:
    """Return the table without these columns.

    Raises:
        ValueError: naming one that it lacks.
    """
    remaining(list(frame.columns), drop)
    return frame.drop(columns=list(drop or ()))


def remaining(header: Sequence[str], drop: Sequence[str] | None) -> list[str]:
    """Return a header without these columns.

    Raises:
        ValueError: naming one that it lacks.
    """
    if unknown := [one for one in drop or () if one not in header]:
        raise ValueError(f"drop={unknown[0]!r} must be a column of the table")
    return [one for one in header if one not in (drop or ())]
