"""``bdpvi partition``: a table in blocks in which each person has one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bdpvi._ground import outputs
from bdpvi._ground.outputs import several
from bdpvi.commands.options import Data, Quiet, TableOption, table_file_of


def partition(
    data: Data,
    by: Annotated[str, typer.Option(help="Column that identifies persons.")],
    out: Annotated[Path, typer.Option(help="New folder for the Parquet files. It is secret.")],
    table: TableOption = None,
    quiet: Quiet = False,
) -> None:
    """Write a table anew so that all rows of a person lie in one block, for --unit.

    The folder holds the same rows in Parquet files of one block each; cells of a CSV file stay
    text, as they are written, and those of a workbook become text. The table need not fit in
    memory. The folder is as secret as the table, and needs the same --unit, and as --table the file
    that describes the table.

    Example: bdpvi partition visits.csv --by patient --out visits
    """
    from bdpvi import datasets

    known = table_file_of(data, table, release=False)
    made = datasets.partition(
        data, by=by, out=out, types=known.schema, file=known.file, progress=not quiet
    )
    outputs.say(
        f"{out}/ (secret): {several(len(made.parts), 'file')}, each with all rows of its persons. "
        "They are the same people: releases of both belong in one ledger (bdpvi private --ledger)"
    )
