"""``bdpvi schema``, ``synthesize`` and ``sample``: a table to rows that may be shared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdpvi.commands.options import Delta, LedgerFile, RowsPerUnit, Separator, Unit

if TYPE_CHECKING:
    from bdpvi.synthesis import Synthetic

ROWS, COUNTS = "synthetic.csv", "synthetic.json"

Drop = Annotated[
    list[str] | None,
    typer.Option(help="Column to leave out; once for every column.", show_default=False),
]
Out = Annotated[Path, typer.Option(help="New folder for what may be shared.")]
Number = Annotated[
    int | None,
    typer.Option("--rows", help="Rows; by default as many as are estimated.", show_default=False),
]
Tables = Annotated[
    int, typer.Option(help="Tables that differ as those of other samples and noise would.")
]


def schema(
    data: Annotated[Path, typer.Argument(help="A CSV or Parquet file.")],
    out: Annotated[Path, typer.Option(help="New file for the schema.")],
    drop: Drop = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option(help="Column whose numbers are names; once for every column."),
    ] = None,
    separator: Separator = ",",
) -> None:
    """Draft a schema from a table, for the owner to replace what is read from its rows.

    Every column is marked "from_data": true. Write public bounds and levels in, and false. Keep
    the draft secret until then.
    """
    from bdpvi.datasets import read_table
    from bdpvi.datasets.schema import measured

    frame = read_table(data, separator=separator, text=True).drop(columns=drop or [])
    drafted = measured(frame, "Write here where these bounds are from.", categorical or ())
    drafted.save(out)
    print(f"{out}: {len(drafted.columns)} columns, all read from the rows; make them public ones")


def synthesize(
    data: Annotated[Path, typer.Option(help="A CSV or Parquet file.")],
    schema: Annotated[Path, typer.Option(help="File with bounds and levels of the columns.")],
    epsilon: Annotated[float, typer.Option(help="ε of this release, worst-case.")],
    out: Out,
    target: Annotated[
        str, typer.Option(help="Column that matters most, as a label.", show_default=False)
    ] = "",
    delta: Delta = 1e-6,
    also: Annotated[
        list[str] | None,
        typer.Option(help="Columns a,b,c that are counted together too.", show_default=False),
    ] = None,
    from_data: Annotated[
        bool, typer.Option("--from-data", help="Take what the schema has from the rows as public.")
    ] = False,
    drop: Drop = None,
    rows: Number = None,
    tables: Tables = 1,
    unit: Unit = "row",
    rows_per_unit: RowsPerUnit = 1,
    ledger: LedgerFile = None,
    separator: Separator = ",",
) -> None:
    """Turn a table into synthetic rows that may be shared, under a worst-case ε.

    OUT gets synthetic.csv, and synthetic.json, from which `bdpvi sample` makes more rows. What is
    spent on the table is written to its ledger before anything is drawn.
    """
    import bdpvi
    from bdpvi._runtime import store
    from bdpvi.datasets import read_table
    from bdpvi.datasets.schema import Schema
    from bdpvi.recipes.private import beside
    from bdpvi.synthesis import Counts

    known = Schema.load(schema)
    if known.marked and not from_data:
        raise ValueError(
            f"schema={str(schema)!r} has {len(known.marked)} columns that were read from the rows, "
            f"such as {known.marked[0]!r}; write public bounds and levels there, or give "
            "--from-data if these are public"
        )
    settings = Counts(
        also=tuple(tuple(one.split(",")) for one in also or ()),
        unit=unit,
        rows_per_unit=rows_per_unit,
    )
    frame = read_table(data, separator=separator, text=True, least=0)
    if unknown := [one for one in drop or () if one not in frame]:
        raise ValueError(f"drop={unknown[0]!r} must be a column of the table")
    _check(out, rows, tables)
    with store.claimed_folder(out) as folder:
        kept = bdpvi.Ledger.at(
            ledger or beside(data),
            unit=None if unit == "row" else unit,
            rows_per_unit=None if unit == "row" else rows_per_unit,
        )
        made = bdpvi.synthesize(
            frame.drop(columns=drop or []),
            known,
            target or None,
            epsilon=epsilon,
            delta=delta,
            settings=settings,
            ledger=kept,
        )
        made.save(folder / COUNTS)
        _write(made, folder, rows, tables)
    print(made.receipt)
    print(f"{out}: about {made.rows} rows; may be shared. Ledger: {kept.path}, secret")
    print(f"Everything spent on this table: {kept.worst_case(delta)}")


def sample(
    shared: Annotated[Path, typer.Argument(help="File synthetic.json.")],
    out: Out,
    rows: Number = None,
    tables: Tables = 1,
) -> None:
    """Make more synthetic rows, which costs nothing."""
    from bdpvi._runtime import store
    from bdpvi.synthesis import load

    made = load(shared)
    _check(out, rows, tables)
    with store.claimed_folder(out) as folder:
        _write(made, folder, rows, tables)
    print(f"{out}: {tables} × {rows or made.rows} rows; {made.receipt}")


def _check(out: Path, rows: int | None, tables: int) -> None:
    """Say what is wrong with the options before anything is charged."""
    from bdpvi.synthesis.released import checked_rows

    checked_rows("tables", tables)
    if rows is not None:
        checked_rows("rows", rows)
    if out.exists() or out.is_symlink():
        raise ValueError(f"out={str(out)!r} exists already; choose another, nothing is replaced")


def _write(made: Synthetic, folder: Path, rows: int | None, tables: int) -> None:
    from bdpvi._runtime import store

    if tables == 1:
        frames = {ROWS: made.sample(rows)}
    else:
        found = made.tables(tables, rows)
        frames = {f"synthetic-{at}.csv": one for at, one in enumerate(found, 1)}
    for name, one in frames.items():
        store.write(folder / name, one.to_csv(index=False).encode())
