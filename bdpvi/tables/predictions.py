"""Predictions for the rows of a table, block by block: the rows stay where they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from bdpvi._ground import schema
from bdpvi._ground.outputs import csv_text
from bdpvi._ground.progress import bar
from bdpvi._ground.store import claimed
from bdpvi._ground.types import tell_owner
from bdpvi.datasets.cells import read_cell, read_columns
from bdpvi.datasets.columns import label
from bdpvi.datasets.encoding import Encoding, with_text_names
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.looks import Unclear, tell_of_unclear, unclear
from bdpvi.datasets.records import Spread, sum_of_results
from bdpvi.datasets.table import LEFT_OUT, ODD, Table
from bdpvi.datasets.types import ColumnType
from bdpvi.score.laws import ScoreLaw, law_of
from bdpvi.score.reading import ANY
from bdpvi.score.scorer import Scorer

if TYPE_CHECKING:  # new rows are predicted without torch
    from bdpvi.releases.released import Release

_AT_ONCE = 1024
"""Most rows predicted at once."""
_PARQUET = (".parquet", ".pq")
UNEXPOSED = "the exposure is blank, no number or not positive"
"""Why a row has no prediction."""

S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions of a release for each row of a table; :meth:`of` makes them.

    A logistic regression has the columns ``class``, ``probability`` and ``spread``, a model of
    several classes ``class``, a probability of each class and ``spread``, another one ``expected``
    and ``spread``. That of a survival regression is the time until the event or the last cut,
    whichever is first; the probabilities of no event until each cut stand beside it. The spread is
    the standard deviation over the samples, NaN for one sample. Expected numbers and counts lie
    within the model's public bounds. All columns are NaN for a row whose exposure is not known or
    not positive.
    Every cell is read by itself and every row predicted by itself: it has the same prediction by
    any number of workers to the bit, and in any file and blocks to rounding.

    Attributes:
        law: what features predict.
        table: the rows.
        encoding: how they become features.
        ids: columns of the table that the predictions begin with, as text.
        guess: the type by which columns without one are read; None for the usual signs.
        executor: the workers; None for this process.
        progress: whether to show a bar.
    """

    law: ScoreLaw
    table: Table
    encoding: Encoding
    ids: tuple[str, ...] = ()
    guess: ColumnType | None = None
    executor: Executor | None = field(default=None, repr=False)
    progress: bool = True

    @classmethod
    def of(
        cls,
        release: Release | Scorer,
        table: Any,
        *,
        ids: Sequence[str] = (),
        unknown: str = "",
        file: FileFormat | None = None,
        executor: Executor | None = None,
        progress: bool = True,
    ) -> Predictions:
        """Return the predictions for a table with the raw columns of the training data.

        Args:
            release: a release of a table with raw columns, such as :func:`bdpvi.load_release`
                reads, or without torch :func:`bdpvi.score.load`.
            table: what :meth:`bdpvi.datasets.table.Table.of` takes: a file; a folder, a glob or
                a URL of files; a data frame; or its blocks.
            ids: columns that the predictions begin with.
            unknown: ``"refuse"`` or ``"base"``: see
                :class:`~bdpvi.datasets.encoding.Encoding`; by default that of the release.
            file: how CSV files are written.
            executor: workers that read and predict the blocks, as for :func:`bdpvi.private`. They
                are sent the release.
            progress: whether to show a bar.

        Raises:
            ValueError: if the release has no encoding or is of your own model, the table lacks a
                column, or an argument is invalid. No row is read.
        """
        (encoding, law), file = _read(release), file or FileFormat()
        if unknown:
            asked = replace(encoding, unknown=unknown)
            if asked.feature_names != encoding.feature_names:
                raise ValueError(
                    f"unknown={unknown!r}: the release has other features for blanks and levels "
                    "that are not listed; leave it out"
                )
            encoding = asked
        types = {name: one.in_file(*file.signs) for name, one in encoding.types.items()}
        blocks = Table.of(table, file=file)
        guess = None if file.plain else ColumnType(kind=ANY).in_file(*file.signs)
        made = cls(law, blocks, encoding.typed(types), tuple(ids), guess, executor, progress)
        made._check_ids()
        made._of(made._nothing)  # refuses a header that lacks a column
        return made

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the predictions' columns, ``ids`` first."""
        return tuple(map(str, self._of(self._nothing)[0]))

    def write(self, out: str | os.PathLike[str]) -> int:
        """Write the predictions to a new file, complete or not at all; return the number of rows.

        One block after the other is written, in the order of the table, so memory does not grow
        with it.

        Args:
            out: a Parquet file (``.parquet``, ``.pq``), or else a CSV file.

        Warns:
            PrivacyUtilityWarning: as :meth:`frame` does.

        Raises:
            ValueError: as :meth:`frame` does, or if ``out`` exists.
        """
        out = Path(out)
        store = _in_parquet if out.suffix.lower() in _PARQUET else _in_csv
        with claimed(out) as temporary:
            return store(self, temporary)

    def text(self) -> str:
        """Return the predictions as CSV, with a header; all are in memory."""
        return csv_text(self._of(self._nothing)[0]) + "".join(text for text, _ in self._each(_rows))

    def frame(self) -> pd.DataFrame:
        """Return the predictions; all are in memory.

        Warns:
            PrivacyUtilityWarning: for the owner, about lines left out, and how many cells are
                blank, unfit (no number, or not of the declared type) or of a level that is not
                listed, by column.

        Raises:
            ValueError: naming the block and its column: a value is unknown, unless ``unknown``
                says how to treat it; or a block cannot be read, or has changed.
        """
        parts = chain.from_iterable(frames for frames, _ in self._each(_listed))
        return pd.concat([self._of(self._nothing)[0], *parts], ignore_index=True)

    @property
    def _nothing(self) -> pd.DataFrame:
        return pd.DataFrame({name: pd.Series(dtype=object) for name in self.table.header})

    def _check_ids(self) -> None:
        path = self.table.path or "the table"
        taken = self.law.predictions(np.zeros((0, len(self.encoding.feature_names))))
        for name in self.ids:
            if name not in self.table.header:
                raise ValueError(f"id={name!r} is not a column of {path}")
            if name in {*taken, "receipt"}:
                raise ValueError(
                    f"id={name!r} is a column of the predictions too; rename it in {path}"
                )

    def _each(self, form: Callable[[pd.DataFrame], S]) -> Iterator[tuple[S, int]]:
        """Yield each block's predictions in a form, and their number; then tell the owner."""
        track = bar if self.progress else None
        rows: Spread[pd.DataFrame] = Spread(
            self.table.parts, executor=self.executor, track=track, what="predictions"
        )
        sent = replace(self, table=replace(self.table, parts=()), executor=None)
        total: tuple[Any, ...] = ()
        for made, *found in rows.each(_block, sent, form):
            total = sum_of_results(total, tuple(found)) if total else tuple(found)
            yield made, found[0]  # type: ignore[misc]
        _, odd, found, blank = total
        tell_owner(odd, "line", ODD)
        tell_owner(blank, "prediction", UNEXPOSED)
        tell_of_unclear(found, self.encoding, 3)

    def _of(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, Unclear]:
        """Return predictions for some rows, and numbers of unclear cells."""
        guesses = {} if self.guess is None else dict.fromkeys(frame.columns, self.guess)
        encoding = self.encoding.typed({**guesses, **self.encoding.types})
        table = read_columns(with_text_names(frame), encoding.types)
        if encoding.unknown == "other":  # each cell is read by itself anyway
            features = encoding.rows_of(table).whole()
        else:
            features, _ = self.encoding.encode_and_count(frame, self.guess)
        found = unclear(encoding, table)
        starts = range(0, max(len(features), 1), _AT_ONCE)
        parts = [self.law.predictions(features[at : at + _AT_ONCE]) for at in starts]
        ids = {
            name: frame[name].astype(object).map(_as_text).reset_index(drop=True)
            for name in self.ids
        }
        each = {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}
        return pd.DataFrame({**ids, **each}), found


def _block(
    frame: pd.DataFrame, asked: Predictions, form: Callable[[pd.DataFrame], S]
) -> tuple[S, int, int, Unclear, int]:
    """Return predictions in a form, rows, lines left out, unclear cells, and blank predictions."""
    made, found = asked._of(frame)
    blank = int(made["expected"].isna().sum()) if "expected" in made else 0
    return form(made), len(frame), int(frame.attrs.get(LEFT_OUT, 0)), found, blank


def _rows(frame: pd.DataFrame) -> str:
    """Return predictions as CSV without the header, which is one line."""
    return csv_text(frame).partition("\n")[2]


def _listed(frame: pd.DataFrame) -> list[pd.DataFrame]:
    return [frame]


def _in_csv(made: Predictions, path: Path) -> int:
    number = 0
    with path.open("wb") as file:
        file.write(csv_text(made._of(made._nothing)[0]).encode())
        for text, rows in made._each(_rows):
            file.write(text.encode())
            number += rows
    return number


def _in_parquet(made: Predictions, path: Path) -> int:
    import pyarrow
    from pyarrow import parquet

    header, number = made._of(made._nothing)[0], 0
    kinds = {
        name: pyarrow.float64() if one.dtype.kind == "f" else pyarrow.string()
        for name, one in header.items()
    }
    schema = pyarrow.schema(kinds)
    with parquet.ParquetWriter(path, schema) as file:
        for frames, rows in made._each(_listed):
            frame = pd.concat(frames, ignore_index=True)
            file.write_table(pyarrow.Table.from_pandas(frame, schema, preserve_index=False))
            number += rows
    return number


def _as_text(value: object) -> str | None:
    """Return a cell of an identifier: text as it is, a whole number without a fraction."""
    if isinstance(value, str):
        return value
    return None if read_cell(value)[2] else label(value)


def _read(release: Release | Scorer) -> tuple[Encoding, ScoreLaw]:
    """Return how a table becomes a release's features, and what they predict."""
    if isinstance(release, Scorer):
        return Encoding.from_dict(release.encoding), release.law
    if (encoding := release.encoding) is None:
        raise ValueError(
            "release: it does not say how a table becomes features; bdpvi private did not make it"
        )
    from bdpvi.models.kinds import is_regression

    if not is_regression(release.model):
        raise ValueError("release: it is of your own Pyro model: use its predict_mean(frame)")
    latents = {name: one.double().cpu().numpy() for name, one in release.latents.items()}
    target: Any = release.preprocessing.get("target") or {}
    width = len(release.feature_names)
    return encoding, law_of(schema.to_json(release.model), latents, target, width)
