"""The owner's report of ``bdpvi synthesize``: its held-out rows and its files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdpvi._ground import validate

if TYPE_CHECKING:
    import pandas as pd

    from bdpvi.datasets.types import ColumnType
    from bdpvi.noise.keys import Key
    from bdpvi.synthesis import Synthetic

NUMBERS, PAGE, SPLIT = "report.json", "report.html", "report.rows"
NO_PAGE = "No page: it needs `pip install 'bdpvi[report]'`."


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The owner's report."""

    test_fraction: Annotated[
        float, typer.Option(help="Fraction of the rows held out for the report.")
    ] = 0.1
    no_report: Annotated[
        bool,
        typer.Option("--no-report", help="No report for the owner; all rows are then counted."),
    ] = False
    groups: Annotated[
        list[str] | None,
        typer.Option(
            help="Column for whose values the report scores apart; once for every column."
        ),
    ] = None

    def check(self, columns: Sequence[str]) -> None:
        """Check the options before anything is charged.

        Raises:
            ValueError: if an option, which it names, is invalid.
        """
        if self.no_report:
            return
        validate.probability("test_fraction", self.test_fraction)
        if unknown := [one for one in self.groups or () if one not in columns]:
            raise ValueError(
                f"groups={unknown[0]!r} must be a column of the schema: {list(columns)}"
            )

    def check_in_memory(self) -> None:
        """Refuse options of the report for a table in blocks, which has none.

        Raises:
            ValueError: naming the option.
        """
        if self.groups:
            raise ValueError(
                f"groups={self.groups[0]!r}: a table in blocks has no report, which needs its rows "
                "in memory; leave --groups out"
            )


def hold_out(
    frame: pd.DataFrame, fraction: float, key: Key, unit: str, person: ColumnType | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows to count, and those held out for the report.

    Each row has its own secret coin, or all rows of a person share one. Which other rows are
    counted does not depend on the presence of a row, so the guarantee for the counted rows holds
    for all. No output depends on held-out rows.

    Args:
        frame: all rows.
        fraction: probability of each row to be held out.
        key: secret, used for nothing else. A repetition with the same noise needs the same key.
        unit: "row", or the column that names persons.
        person: declared type of that column.
    """
    from bdpvi.datasets.units import persons_of
    from bdpvi.privacy.book import ROW

    if unit == ROW or unit not in frame:  # counting refuses a missing column
        out = key.coins(len(frame)) < fraction
    else:
        out = key.coins_of(persons_of(frame[unit], person)) < fraction
    return frame[~out], frame[out]


def keep(folder: Path, train: pd.DataFrame, held_out: pd.DataFrame) -> None:
    """Write to the secret folder which rows were counted and held out: a report needs both."""
    from bdpvi._ground import store

    places = [one.index.to_list() for one in (train, held_out)]
    store.write(folder / SPLIT, json.dumps(places).encode())


def read_split(folder: Path, frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the counted and the held-out rows among all rows.

    Raises:
        OSError: if the owner's folder lacks the file about them.
    """
    train, held_out = json.loads((folder / SPLIT).read_bytes())
    return frame.iloc[train], frame.iloc[held_out]


def report(
    made: Synthetic,
    train: pd.DataFrame,
    held_out: pd.DataFrame,
    rows: pd.DataFrame,
    groups: Sequence[str],
    folder: Path,
) -> tuple[str, ...]:
    """Write report.json and the page to the owner's folder; return the verdict as lines.

    Args:
        made: the release, already written.
        train: the counted rows.
        held_out: the held-out rows that would otherwise have been counted.
        rows: the shared synthetic rows.
        groups: columns with separate scores for each value.
        folder: the owner's secret folder.
    """
    from bdpvi._ground import store
    from bdpvi.synthesis.quality import evaluate

    try:
        found = evaluate(made, train=train, held_out=held_out, rows=rows, groups=groups)
        store.make_folder(folder)
        store.write(folder / NUMBERS, store.json_text(found.to_dict(), indent=1).encode())
        said = ("For the owner only:", *(f"  {one}" for one in found.verdict))
        with contextlib.suppress(ImportError):
            found.html(folder / PAGE)
            return (*said, f"Report: {folder / PAGE}, secret")
    except KeyboardInterrupt:
        whole = "the shared files are complete; only the report is missing"
        raise KeyboardInterrupt(f"{whole}: the same command makes it") from None
    return (*said, f"Report: {folder / NUMBERS}, secret. {NO_PAGE}")
