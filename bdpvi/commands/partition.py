"""``bdpvi partition``: a table in blocks in which each person has one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bdpvi._ground import outputs
from bdpvi._ground.outputs import several
from bdpvi.commands.options import (
    Charset,
    DateFormat,
    Decimal,
    Multiline,
    Quiet,
    Separator,
    Thousands,
    Types,
)


def partition(
    data: Annotated[
        str,
        typer.Argument(
            help="A file of any kind that private takes; a folder, a glob or a URL of such files."
        ),
    ],
    by: Annotated[str, typer.Option(help="Column that identifies persons.")],
    out: Annotated[Path, typer.Option(help="New folder for the Parquet files. It is secret.")],
    types: Types = None,
    separator: Separator = ",",
    multiline: Multiline = False,
    charset: Charset = "utf-8",
    decimal: Decimal = ".",
    thousands: Thousands = "",
    date_format: DateFormat = "",
    quiet: Quiet = False,
) -> None:
    """Write a table anew so that all rows of a person lie in one block, for --unit.

    The folder holds the same rows in Parquet files of one block each; cells of a CSV file stay
    text, as they are written, and those of a workbook become text. The table need not fit in
    memory. The folder is as secret as the table, and needs the same --unit, and --types if some are
    given here.

    Example: bdpvi partition visits.csv --by patient --out visits
    """
    from bdpvi import datasets
    from bdpvi.datasets.formats import FileFormat

    file = FileFormat(
        separator=separator, multiline=multiline, charset=charset, decimal=decimal,
        thousands=thousands, date_format=date_format,
    )  # fmt: skip
    schema = None if types is None else datasets.Schema.load(types)
    made = datasets.partition(data, by=by, out=out, types=schema, file=file, progress=not quiet)
    outputs.say(
        f"{out}/ (secret): {several(len(made.parts), 'file')}, each with all rows of its persons. "
        "They are the same people: releases of both belong in one ledger (bdpvi private --ledger)"
    )
