"""Synthetic rows written to files: of ``bdpvi synthesize`` and ``bdpvi sample``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdpvi._ground import outputs

if TYPE_CHECKING:
    import pandas as pd

    from bdpvi.synthesis import Synthetic


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """The synthetic rows that are written."""

    rows: Annotated[
        int | None,
        typer.Option("--rows", help="Rows; by default as many as are estimated."),
    ] = None
    tables: Annotated[
        int,
        typer.Option(help="Number of tables, which vary like tables from other samples and noise."),
    ] = 1

    def check(self) -> None:
        """Check the options before anything is charged."""
        from bdpvi.synthesis.synthetic import checked_rows

        checked_rows("tables", self.tables)
        if self.rows is not None:
            checked_rows("rows", self.rows)

    def write(
        self,
        made: Synthetic,
        folder: Path,
        put: Callable[[Path, bytes], None],
        *,
        seed: int | None = None,
        bars: bool = True,
    ) -> pd.DataFrame:
        """Write the tables to a folder; return the first. A seed repeats them."""
        from bdpvi._ground import progress

        if self.tables == 1:
            frame = made.sample(self.rows, seed=seed)
            put(folder / "synthetic.csv", rows_text(made, frame))
            return frame
        track = progress.bar if bars else progress.silent
        for at in track(range(1, self.tables + 1), "tables"):
            own = None if seed is None else seed + at
            (table,) = made.tables(1, self.rows, seed=own)
            put(folder / f"synthetic-{at}.csv", rows_text(made, table))
            frame = table if at == 1 else frame
        return frame


def rows_text(made: Synthetic, rows: pd.DataFrame) -> bytes:
    """Return the content of a file of rows."""
    from bdpvi.score.reading import TIMES

    numbers = {name: one for name, one in made.schema.columns.items() if one.integer}
    whole = {name: "Int64" for name, one in numbers.items() if one.kind not in TIMES}
    return outputs.csv_text(rows.astype(whole)).encode()
