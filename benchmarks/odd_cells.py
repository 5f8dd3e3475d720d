"""A million odd cells: what reads a column must read each of its cells as the law does.

    nice python benchmarks/odd_cells.py [--cells 1000000] [--seed 1]

Cells are fuzzed, put into a carrier (a list, a frame, a file, ...), which may change what they are,
and read by :class:`bdpvi.Table` and :func:`bdpvi.datasets.cells.read_columns`, by a type drawn at
random. The law is :meth:`bdpvi.datasets.types.ColumnType.of_text` of the canonical text of each
cell as the carrier itself gives it. Any difference or exception makes the exit status 1.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import platform
import random
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from datetime import time as clock
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
from printed import command
from pyarrow import feather, parquet

from bdpvi._ground.outputs import GUARDED
from bdpvi.datasets.cells import Cells, read_columns
from bdpvi.datasets.table import Table
from bdpvi.datasets.types import ColumnType
from bdpvi.score.reading import BLANK, UNFIT
from bdpvi.score.spelling import spell

TYPES: dict[str, ColumnType | None] = {
    "none": None,
    "any": ColumnType(kind="any", decimal=",", missing={"9999": "not asked"}),
    "number": ColumnType(kind="number"),
    "number-de": ColumnType(kind="number", decimal=",", thousands="."),
    "dollar": ColumnType(kind="number", symbol="$", thousands=",", missing={"9999": ""}),
    "integer": ColumnType(kind="integer", missing={"9999": "", "-1": "refused"}),
    "category": ColumnType(kind="category"),
    "levels": ColumnType(
        kind="category", levels=("007", "012", "F", "M", "NA"), spellings={"F": ("female", "f")}
    ),
    "ordered": ColumnType(kind="ordered", levels=("1", "2", "3")),
    "code": ColumnType(kind="code"),
    "boolean": ColumnType(kind="boolean"),
    "date": ColumnType(kind="date"),
    "german date": ColumnType(kind="date", date_format="%d.%m.%Y"),
    "datetime": ColumnType(kind="datetime", zone="Europe/Berlin"),
    "text": ColumnType(kind="text"),
    "identifier": ColumnType(kind="identifier"),
}
BERLIN = ZoneInfo("Europe/Berlin")
TEXTS = [
    "", " ", "x", "1", "1.0", "1e5", "1e400", "1e-400", "0e99999999999", "1e-99999999999", "-0",
    "+5", "5.", ".5", "007", "7", "nan", "NaN", "inf", "-inf", "None", "null", "NA", "N/A", "?",
    "-", ".", "True", "true", "FALSE", "yes", "no", "t", "1_000", "1,000", "1.000", "1.234,5",
    "1 000", "1'000", "$5", "5$", "($5)", "-$5", "-$-5", "(5)", "5%", "€5", "0x10", "0b1", "1e",
    "e1", "--1", "٣", "½", "1/2", "9007199254740993", "9007199254740993.0", "1" * 19, "1" * 400,
    "x" * 300, "x" * 299 + "y", "2020-01-02", "2020-1-2", "2020-01-02 00:00:00", "20200102",
    "2020-01-02T09:00+01:00", "2020-01-02 09:00Z", "2020-13-01", "01.02.2020", "09:00", "a,b",
    'a"b', '"', "'", "'=x", "=1+1", "@x", "+x", "-x", "\t", "a\tb", "a\nb", "a\rb", "\0", "a\0b",
    "\x1f", "\x1a", "\ufeff", "\ufffd", "é", "e\u0301", "İ", "ß", "\u202e", "\U0001f600", "≈",
    "≈1e300", "\ue000", "\ue0001.5", "row", "sex=F", "other", "F", "M", "9999", "9999.0", "-1",
    "[1]", "{}", "b'yes'", "0." + "0" * 40 + "1", "\u20037", "7\x85",
]  # fmt: skip
ODD: list[Any] = [
    *TEXTS, None, np.nan, pd.NA, pd.NaT, math.inf, -math.inf, 0, 1, -1, 7, 7.0, 7.5, -0.0, 1e300,
    5e-324, 2**53, 2**53 + 1, float(2**53), 2**63, -(2**63), 2**64, 10**50, 10**400, 10**5000,
    1e16, 1e15, 1e22, True, False, np.True_, np.int8(3), np.uint64(2**64 - 1), np.float16(0.1),
    np.float32(0.1), np.longdouble(1.5), 1j, 1 + 0j, np.complex64(2), Decimal("1.10"),
    Decimal("NaN"), Decimal("Infinity"), Decimal("1E+400"), Decimal("1E+9999"), Decimal("0E-9999"),
    b"yes", b"\xff", bytearray(b"a"), memoryview(b"a"), date(2020, 1, 2), datetime(2020, 1, 2),
    datetime(2020, 1, 2, 3), datetime(2020, 1, 1, 8, tzinfo=timezone.utc),
    datetime(2020, 1, 1, 9, tzinfo=BERLIN), datetime.min, datetime.max,
    pd.Timestamp("2020-01-01 08:00", tz="UTC"), pd.Timestamp("1969-01-02 00:00:00.000000001"),
    np.datetime64("2020-01-02"), np.datetime64("NaT"), np.datetime64("30000-01-01"),
    np.timedelta64(1, "s"), clock(9), timedelta(1), timedelta(microseconds=-1), pd.Timedelta("1ns"),
    pd.Period("2020-01"), pd.Interval(0, 1), (1,), (True,), [1], [None, np.int64(2)], {"a": 1},
    {1: 2}, {1: 2, "a": date.max}, set("ab"), object, object(), ..., np.array([1.5]), print,
]  # fmt: skip
ODD += [
    first + last
    for first, last in itertools.product(
        ("1", "x", "007", "true", "2020-01-02", "$5", "F", "-9999", "1e", '"'),
        ("", " ", "\xa0", ".0", "e5", ",", ";", "%", "$", "'", '"', "\0", "Z", "+01:00", "\ud800"),
    )
]


def alone(cell: object, type_: ColumnType | None) -> tuple[float, str, bool, int]:
    """Return a cell's number, its label, whether it has no value, and its status: the law."""
    number, label, status = (type_ or ColumnType()).of_text(spell(cell))
    return number, label, status in (BLANK, UNFIT), status


def each(cells: Cells) -> list[tuple[float, str, bool, int]]:
    """Return the cells of a column as :func:`alone` does."""
    labels = [cells.names[code] if code >= 0 else "" for code in cells.codes.tolist()]
    rows = (cells.numbers.tolist(), labels, cells.blank.tolist(), cells.status.tolist())
    return list(zip(*rows, strict=True))


def differ(found: Sequence[Any], right: Sequence[Any]) -> Iterator[int]:
    """Yield where two lists of cells are not the same; NaN is NaN."""
    for at, (one, other) in enumerate(zip(found, right, strict=True)):
        same_number = one[0] == other[0] or (one[0] != one[0] and other[0] != other[0])
        if not same_number or one[1:] != other[1:]:
            yield at


def as_objects(cells: Sequence[Any]) -> pd.Series[Any]:
    """Return a column of objects."""
    held = np.empty(len(cells), dtype=object)
    for at, one in enumerate(cells):
        held[at] = one
    return pd.Series(held, dtype=object)


def guessed(cells: Sequence[Any], dtype: Any) -> pd.Series[Any]:
    """Return a column as pandas makes it where a dtype cannot hold the cells."""
    for kind in (dtype, None):
        try:
            return pd.Series(cells, dtype=kind)
        except Exception:  # whatever pandas raises
            continue
    return as_objects(cells)


def texts_of(cells: Sequence[Any]) -> list[str | None]:
    """Return the cells as text."""
    return [spell(cell) for cell in cells]


Carried = tuple[Any, list[Any]]
"""What :class:`bdpvi.Table` takes, a number beside each cell, and the cells as they are in it."""


def frame(column: pd.Series[Any]) -> Carried:
    """Return a frame."""
    return pd.DataFrame({"n": range(len(column)), "c": column}), column.tolist()


def category(cells: Sequence[Any], _: Path) -> Carried:
    """Return a frame with a category, if its cells can be some."""
    column = as_objects(cells)
    with suppress(TypeError, ValueError, OverflowError):
        column = column.astype("category")
    return frame(column)


def converted(backend: Any) -> Callable[[Sequence[Any], Path], Carried]:
    """Return what makes a frame of pandas' other types."""

    def made(cells: Sequence[Any], _: Path) -> Carried:
        try:
            return frame(guessed(cells, None).convert_dtypes(dtype_backend=backend))
        except Exception:  # of what has no such type
            return frame(pd.Series(texts_of(cells), dtype=object).convert_dtypes())

    return made


def array(cells: Sequence[Any], _: Path) -> Carried:
    """Return an array of records."""
    column = guessed(cells, None)
    kind = column.dtype if isinstance(column.dtype, np.dtype) else np.dtype(object)
    held = np.empty(len(column), [("n", "i8"), ("c", kind)])
    held["n"] = range(len(column))
    for at, one in enumerate(column.to_numpy(kind)):
        held["c"][at] = one
    return held, held["c"].tolist() if kind.kind not in "mM" else column.tolist()


def polars(cells: Sequence[Any], _: Path) -> Carried:
    """Return a frame of Polars."""
    import polars as pl

    try:
        if any(isinstance(cell, int) and cell.bit_length() > 63 for cell in cells):
            raise OverflowError
        column = pl.Series("c", cells)
        column.to_list()
    except BaseException:  # of cells of several types, and Polars' own panics
        column = pl.Series("c", texts_of(cells), pl.String)
    return pl.DataFrame({"n": range(len(cells)), "c": column}), column.to_list()


def arrow(cells: Sequence[Any]) -> tuple[pa.Table, list[Any]]:
    """Return a table of Arrow, its texts coded at times."""
    try:
        column = pa.array(cells)
        column.validate(full=True)
        column.to_pylist()
    except Exception:  # of cells of several types
        column = pa.array(texts_of(cells), pa.string())
    if len(cells) % 2 and not pa.types.is_nested(column.type):
        with suppress(pa.ArrowException):
            column = column.dictionary_encode()
    return pa.table({"n": range(len(cells)), "c": column}), column.to_pylist()


def stored(write: Callable[[pa.Table, Path], None]) -> Callable[[Sequence[Any], Path], Carried]:
    """Return what writes a file of a table of Arrow."""

    def made(cells: Sequence[Any], folder: Path) -> Carried:
        path = folder / "cells"
        found, own = arrow(cells)
        try:
            write(found, path)
        except pa.ArrowException:  # of a type that the file lacks
            found, own = arrow(["" if one is None else one for one in texts_of(own)])
            write(found, path)
        return path, own

    return made


def lines(cells: Sequence[Any], folder: Path) -> Carried:
    """Return a CSV file; it has no line breaks, no NUL and no separator of units in a cell."""
    path = folder / "cells.csv"
    texts = [re.sub("[\r\n]", " ", one or "") for one in texts_of(cells)]
    texts = [re.sub("[\0\x1f]", "\ufffd", text) for text in texts]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("n", "c"), *enumerate(texts)])
    return path, [re.sub(rf"\A'({GUARDED})", r"\1", text.lstrip(" ")) for text in texts]


CARRIERS: dict[str, Callable[[Sequence[Any], Path], Carried]] = {
    "list of rows": lambda cells, _: ([[*one] for one in enumerate(cells)], [*cells]),
    "mapping": lambda cells, _: ({"n": range(len(cells)), "c": [*cells]}, [*cells]),
    "object": lambda cells, _: frame(as_objects(cells)),
    "typed pandas": lambda cells, _: frame(guessed(cells, None)),
    "category": category,
    "nullable pandas": converted("numpy_nullable"),
    "pandas of pyarrow": converted("pyarrow"),
    "array": array,
    "Polars": polars,
    "Arrow": lambda cells, _: arrow(cells),
    "Parquet": stored(parquet.write_table),
    "Feather": stored(feather.write_feather),
    "CSV": lines,
}


@dataclass
class Counts:
    """What was found of a carrier.

    Attributes:
        cells: the number of cells read.
        differences: the number of those that are not read as the law does.
        exceptions: the number of columns that could not be read.
        examples: some of both.
    """

    cells: int = 0
    differences: int = 0
    exceptions: int = 0
    examples: list[Any] = field(default_factory=list)


def column_of(chance: random.Random) -> list[Any]:
    """Return some odd cells."""
    parts = TEXTS + list("0123456789.,eE+-$% ")
    makers: list[Callable[[], Any]] = [
        lambda: "".join(chance.choices(parts, k=chance.randint(1, 3))),
        lambda: "".join(chance.choices("0123456789.,e-+ $", k=chance.randint(1, 9))),
        lambda: chance.choice(ODD),
        lambda: chance.randint(-(2**70), 2**70) >> chance.randint(0, 70),
        lambda: chance.randint(-(2**70), 2**70) >> chance.randint(20, 70),
        lambda: math.ldexp(chance.random(), chance.randint(-1070, 1000)),
        lambda: round(chance.uniform(-99, 99), chance.randint(0, 4)),
        lambda: datetime(1, 1, 1) + timedelta(microseconds=chance.randrange(3 * 10**17)),
        lambda: date(1970, 1, 1) + timedelta(days=chance.randrange(-(10**5), 10**5)),
        lambda: chr(chance.randrange(0x110000)) + chance.choice(TEXTS),
        lambda: chance.choice((True, False, None)),
        lambda: Decimal(chance.randrange(10**6)).scaleb(-2),
    ]
    few = chance.sample(makers, chance.choice((1, 1, 2, 3)))
    return [chance.choice(few)() for _ in range(chance.choice((3, 40, 3000)))]


def wrong(carrier: str, cells: Sequence[Any], name: str, folder: Path) -> list[Any]:
    """Return the cells that are not read as the law does: what each is, is read as, and should."""
    source, own = CARRIERS[carrier](cells, folder)
    rows = next(Table.of(source).records().rows())
    type_, column = TYPES[name], rows.columns[1]
    found = each(read_columns(rows, {} if type_ is None else {column: type_})[column])
    right = [alone(one, type_) for one in own]
    return [(repr(own[at]), found[at], right[at]) for at in differ(found, right)]


def fuzzed(carrier: str, cells: int, chance: random.Random, folder: Path) -> Counts:
    """Read so many odd cells, or a few more, from a carrier."""
    counts = Counts()
    while counts.cells < cells:
        made, name = column_of(chance), chance.choice([*TYPES])
        try:
            found = wrong(carrier, made, name, folder)
            counts.differences += len(found)
            counts.examples += [(name, *one) for one in found[:3]]
        except Exception as error:  # counted
            counts.exceptions += 1
            counts.examples.append((name, made[:3], repr(error)[:300]))
        counts.cells += len(made)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=float, default=1e6)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(command())
    packages = ", ".join(f"{name} {version(name)}" for name in ("pandas", "pyarrow", "polars"))
    print(f"{platform.machine()}, Python {platform.python_version()}, {packages}\n")
    print("| carrier | cells | differences | exceptions |\n| --- | --- | --- | --- |", flush=True)
    chance, began, total = random.Random(given.seed), time.process_time(), Counts()
    with tempfile.TemporaryDirectory() as folder:
        for carrier in CARRIERS:
            one = fuzzed(carrier, -(-int(given.cells) // len(CARRIERS)), chance, Path(folder))
            print(f"| {carrier} | {one.cells} | {one.differences} | {one.exceptions} |", flush=True)
            for example in one.examples[:20]:
                print(example, file=sys.stderr)
            total.cells += one.cells
            total.differences += one.differences
            total.exceptions += one.exceptions
    print(
        f"\n{total.cells} cells, {len(TYPES)} types, {total.differences} differences, "
        f"{total.exceptions} exceptions; {time.process_time() - began:.0f} CPU seconds"
    )
    sys.exit(bool(total.differences or total.exceptions))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
