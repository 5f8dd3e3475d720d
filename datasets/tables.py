"""User tables: data frames and files with a yes/no column."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from bdpvi._ground.types import tell_owner
from bdpvi.datasets.cells import read_cell, read_cells, series_of
from bdpvi.datasets.columns import blanks, words_of_counts
from bdpvi.datasets.dataset import Dataset, People, Split
from bdpvi.datasets.encoding import Encoding, with_text_names
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.looks import misread, tell_of_misread
from bdpvi.datasets.measuring import TableOptions, measure_encoding, outcome, whole
from bdpvi.datasets.origin import DECLARED, MULTILINE, declarations
from bdpvi.datasets.schema import Schema, in_file
from bdpvi.datasets.split import add_note, by_coins, experiment, shuffled
from bdpvi.datasets.table import Table
from bdpvi.datasets.types import types_of
from bdpvi.datasets.units import at_most, persons_of
from bdpvi.noise.keys import Key
from bdpvi.score.reading import NAMES, UNUSED

_SHOWN = 20
"""Largest number of columns listed in a message."""


def from_frame(
    frame: pd.DataFrame,
    target: str,
    *,
    test_fraction: float = 0.2,
    seed: int | Key | None = None,
    coins: Tensor | None = None,
    unit: str | None = None,
    rows_per_unit: int = 1,
    **options: Any,
) -> Split:
    """Turn a table with a yes/no column into training and test records.

    Each row is for testing with probability ``test_fraction``, by its own secret coin: removing a
    row moves no other row, as a release's guarantee requires.

    Args:
        frame: one row for each record.
        target: the yes/no column.
        test_fraction: strictly between 0 and 1.
        seed: a number makes an experiment, from which nothing may be released: the rows are
            permuted with it, and exactly this fraction is for testing. Or the key of the coins; by
            default a new one from the operating system's cryptographic generator.
        coins: (N,) instead of a seed: uniform on [0, 1), one for each row; see :func:`by_coins`.
        unit: column that identifies persons, not used as a feature, if a guarantee is to be about
            all rows of one person, which then share one coin.
        rows_per_unit: largest number of rows used for each person, the first ones.
        options: fields of :class:`TableOptions`.

    Raises:
        ValueError: as in :func:`dataset_from_frame`, or if a seeded split leaves one side empty.

    >>> frame = pd.DataFrame({"age": range(20, 30), "sick": ["no", "yes"] * 5})
    >>> split = from_frame(frame, target="sick", seed=0)
    >>> len(split.train), len(split.test), split.train.preprocessing["target"]["positive"]
    (8, 2, 'yes')
    """
    if seed is not None and coins is not None:
        raise ValueError(f"seed={seed!r} and coins were both given; give one")
    if unit is not None:
        given: Schema | None = options.get("types")
        type_, types = (None, None) if given is None else given.of_unit(unit)
        frame = at_most(with_text_names(frame), unit, rows_per_unit, type=type_)
        people = People(unit=unit, rows_per_unit=rows_per_unit)
        data = dataset_from_frame(frame.drop(columns=unit), target, **{**options, "types": types})
        secret = Key.of_seed(seed) if isinstance(seed, int) else seed or Key.fresh()
        own = torch.from_numpy(secret.coins_of(persons_of(frame[unit], type_)))
        split = by_coins(data.of_people(people), own, test_fraction)
        return experiment(split) if secret.experiment else split
    data = dataset_from_frame(frame, target, **options)
    if isinstance(seed, int):
        return experiment(shuffled(data, test_fraction, seed))
    if coins is None:
        secret = seed or Key.fresh()
        split = by_coins(data, torch.from_numpy(secret.coins(len(frame))), test_fraction)
        return experiment(split) if secret.experiment else split
    return by_coins(data, coins, test_fraction)


def from_csv(
    path: str | os.PathLike[str],
    target: str,
    *,
    file: FileFormat | None = None,
    **options: Any,
) -> Split:
    """Read a file by :meth:`bdpvi.Table.frame` and split it by :func:`from_frame`.

    Args:
        path: the file.
        target: the yes/no column.
        file: how it is written; its fields may be given instead, as ``separator=";"``. Every
            guarantee names the assumption that ``multiline`` makes.
        options: see :func:`from_frame`; ``name`` is by default the file's name.

    Raises:
        ValueError: as in :meth:`bdpvi.Table.of` and :func:`from_frame`.
    """
    given = {one.name: options.pop(one.name) for one in fields(FileFormat) if one.name in options}
    file = replace(file or FileFormat(), **given)
    constants = options.get("constants") is not None  # each value is then read by itself
    categorical = options.get("categorical", ())
    named = (options.get("unit"), *categorical)
    frame, types = read_file(path, file, constants, options.get("types"), named)
    if not constants:
        types = _with_categories(types, [one for one in categorical if one in frame])
    options = {"name": Path(path).stem, **options, "types": types}
    split = from_frame(frame, target, **options)
    if file.differences:
        said = {**split.train.preprocessing[DECLARED], **declarations(**file.differences)}
        split = add_note(split, DECLARED, said)
    return add_note(split, MULTILINE) if file.multiline else split


def read_file(
    path: str | os.PathLike[str],
    file: FileFormat,
    text: bool,
    types: Schema | None,
    named: Sequence[str | None],
) -> tuple[pd.DataFrame, Schema | None]:
    """Return the rows of a file, and the types of its columns with the file's signs.

    Args:
        path: the file.
        file: how it is written.
        text: whether each value is read by itself, so that all are returned as written.
        types: declared types of columns.
        named: columns of names, which are returned as written, as those with a type are.
    """
    table = Table.of(path, file=file)
    if text or types is not None:
        types = in_file(types, list(table.header), file)
    written = {*named, *(() if types is None else types.read_by)}
    return table.frame(text=text, least=0 if text else 1, written=written), types


def _with_categories(types: Schema | None, categorical: Sequence[str]) -> Schema | None:
    """Return the types with these columns as categories, unless they say what these are."""
    if types is None:
        types_ = types_of(categorical)
        return Schema(types_, "") if types_ else None
    more = [name for name in categorical if name not in types.bounded]
    return replace(types, columns=types_of(more, types.columns))


def dataset_from_frame(frame: pd.DataFrame, target: str, **options: Any) -> Dataset:
    """Turn a table with a yes/no column into records; a record's id is its row number.

    Without ``constants``, means, standard deviations and categories are computed from all rows of
    the table. Releasing a model releases them, and no ε covers that: they are treated as public,
    and ``preprocessing`` says so. If they are not public, pass an :class:`Encoding` made from
    public knowledge.

    Args:
        frame: one row for each record.
        target: the yes/no column: two values.
        options: fields of :class:`TableOptions`.

    Warns:
        UserWarning: with the number of values that ``unknown="base"`` set to 0 in each column.
        PrivacyUtilityWarning: with the number of rows that ``constants`` leave out. For the owner.

    Raises:
        ValueError: naming unknown or repeated column names, or a column or ``positive`` required by
            ``constants``. Without ``constants``, with one line for each problem of the table and
            the option that solves it: blanks; infinite values; a target without exactly two values;
            constant columns; text where most values are numbers; text with more than 100 distinct
            values, or with more than 10 that are half as many as the rows; integers that look like
            identifiers, see below; no row or no feature.

    The names of categories are published, so a column that identifies rows must not become
    categories. If its values are harmless, list it in ``categorical``.

    Integers count as identifiers if the number of distinct values is at least 95 % of the number of
    rows, none is negative, and they nearly fill a range, rise or fall from row to row, all have the
    same number of digits, at least six, or have a name such as "id" or "patient_id". If they are
    measurements, convert them to floats.

    >>> frame = pd.DataFrame({"age": [20.0, 40.0], "sex": ["F", "M"], "sick": [0, 1]})
    >>> data = dataset_from_frame(frame, target="sick")
    >>> data.feature_names, data.x.tolist()
    (('age', 'sex=F', 'sex=M'), [[-1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    >>> data.preprocessing["encoding"]["source"]
    'Computed from the rows of the data; treated as public.'
    """
    chosen = TableOptions(**options)
    frame = with_text_names(frame)
    types = {} if chosen.types is None else chosen.types.of_header(list(frame.columns))
    tell_of_misread(misread(frame, types), types)
    if target in types and chosen.positive is not None:
        chosen = replace(chosen, positive=read_cell(chosen.positive, types[target])[1])
    used = _feature_columns(frame, target, chosen)
    if chosen.constants is not None:
        return _by_constants(frame, target, chosen, chosen.constants.typed(types))
    named = [name for name in used if name in types and types[name].kind in NAMES]
    typed = {name: series_of(frame[name], types.get(name)) for name in (*used, target)}
    raw, frame = frame, pd.DataFrame({name: whole(one) for name, one in typed.items()})
    rows = np.arange(len(frame))
    if chosen.missing == "drop":
        rows = np.flatnonzero(frame.notna().all(axis=1))
        frame = frame.iloc[rows]
    if not len(frame):
        raise ValueError("the table has no rows" + " without a blank" * (chosen.missing == "drop"))
    problems = _blank_lines(frame, target, chosen)
    with _collect_errors(problems):
        y, meaning = outcome(frame[target].dropna(), chosen.positive)
    with _collect_errors(problems):
        encoding = measure_encoding(
            frame[used],
            encoding=chosen.encoding,
            categorical=[*chosen.categorical, *named],
            level=chosen.missing == "level",
            unknown=chosen.unknown or "refuse",
        )
        if not problems:
            encoding = encoding.typed(types)
            x, counts = encoding.encode_and_count(raw.iloc[rows])
    if problems:
        raise ValueError("\n".join(problems))
    if counts:
        warnings.warn(
            f"not known, features are 0: {words_of_counts(counts)}", UserWarning, stacklevel=2
        )
    return _make_dataset(torch.from_numpy(x), y, rows, encoding, meaning, chosen)


def _make_dataset(
    x: Tensor,
    y: NDArray[np.float64],
    rows: NDArray[np.int64],
    encoding: Encoding,
    meaning: dict[str, str],
    chosen: TableOptions,
) -> Dataset:
    return Dataset(
        x,
        torch.from_numpy(y),
        ids=torch.from_numpy(rows),
        feature_names=encoding.feature_names,
        name=chosen.name,
        preprocessing={
            "encoding": encoding.to_dict(),
            "target": meaning,
            DECLARED: chosen.declarations,
        },
    )


def _by_constants(
    frame: pd.DataFrame, target: str, chosen: TableOptions, constants: Encoding
) -> Dataset:
    """Return the records of a table by public constants: each depends on its own row only."""
    if chosen.positive is None:
        raise ValueError(
            f"positive: say which value of target {target!r} counts as 1 (--positive): public "
            "preprocessing must not depend on the rows"
        )
    encoding = _adapted(constants, chosen)
    of_target = None if chosen.types is None else chosen.types.read_by.get(target)
    cells = read_cells(frame[target], of_target)
    positive = read_cell(chosen.positive, of_target)[1]
    names = np.array([*(name == positive for name in cells.names), False], dtype=np.float64)
    x, good, counts = encoding.row_by_row(frame)
    good &= ~cells.blank
    if chosen.missing == "drop":
        there = [c for c in encoding.columns if c.name in frame]
        blank = [read_cells(frame[c.name], c.type).blank for c in there]
        good &= ~np.any([cells.blank, *blank], axis=0)
    tell_owner(
        int((~good).sum()),
        "record",
        "a blank, an unknown value, or a number that is not finite",
        4,
    )
    if counts:
        why = f"for the owner only: not known, features are 0: {words_of_counts(counts)}"
        warnings.warn(why, UserWarning, stacklevel=3)
    rows = np.flatnonzero(good)
    meaning = {"column": target, "positive": positive, "negative": f"not {positive}"}
    return _make_dataset(x[rows], names[cells.codes][rows], rows, encoding, meaning, chosen)


def _feature_columns(frame: pd.DataFrame, target: str, chosen: TableOptions) -> list[str]:
    """Return the columns of the table that become features."""
    _check_columns("target", [target], frame)
    _check_columns("drop", chosen.drop, frame)
    _check_columns("categorical", chosen.categorical, frame)
    if chosen.constants is None:
        out = {target, *chosen.drop, *_unused_columns(chosen)}
        used = [str(c) for c in frame if c not in out]
        if not used:
            raise ValueError("no column is left to be a feature")
        return used
    listed = [c.name for c in chosen.constants.columns]
    for argument, names in (("target", [target]), ("drop", chosen.drop)):
        if both := [name for name in names if name in listed]:
            raise ValueError(f"{argument}={both[0]!r} is among the columns of constants")
    return [name for name in listed if name in frame.columns]


def _unused_columns(chosen: TableOptions) -> list[str]:
    types = {} if chosen.types is None else chosen.types.read_by
    return [name for name, one in types.items() if one.kind in UNUSED]


def _adapted(constants: Encoding, chosen: TableOptions) -> Encoding:
    columns = constants.columns
    if chosen.missing == "level":
        # In all columns, because the positions of blanks are not public.
        columns = tuple(replace(column, missing=True) for column in columns)
    return replace(constants, columns=columns, unknown=chosen.unknown or constants.unknown)


def _blank_lines(frame: pd.DataFrame, target: str, chosen: TableOptions) -> list[str]:
    """Return a line for each column with blanks that no option handles, the target last."""
    lines = []
    for name in frame if chosen.missing == "refuse" else [target]:
        blank = frame[name].isna().to_numpy()
        if blank.any():
            rest = "" if name == target else ", 'level' makes a blank a value (--missing level)"
            lines.append(
                f"{blanks(frame[name], blank)}; missing='drop' leaves those rows out "
                f"(--missing drop){rest}"
            )
    return lines


@contextmanager
def _collect_errors(problems: list[str]) -> Iterator[None]:
    """Collect an error in ``problems``, so that all of a table's problems are listed at once."""
    try:
        yield
    except ValueError as error:
        problems += str(error).splitlines()


def _check_columns(argument: str, names: Sequence[str], frame: pd.DataFrame) -> None:
    unknown = [n for n in names if n not in frame.columns]
    if unknown:
        has = ", ".join(map(repr, frame.columns[:_SHOWN]))
        has += ", …" if len(frame.columns) > _SHOWN else ""
        raise ValueError(f"{argument}: no column {', '.join(map(repr, unknown))} among {has}")
