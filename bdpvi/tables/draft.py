"""A draft of a table's public file, from its rows: for the owner alone.

Each entry is tried on the cells before it is named, and marked as read from the rows.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bdpvi._ground.outputs import several
from bdpvi._ground.types import Unit, tell_owner
from bdpvi.datasets.encoding import with_text_names
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.guess import shapes, sign_options
from bdpvi.datasets.measuring import called_identifier
from bdpvi.datasets.schema import type_of
from bdpvi.datasets.sheets import labels_of
from bdpvi.datasets.table import ODD, Table, in_blocks
from bdpvi.datasets.types import ColumnType
from bdpvi.releases.table_file import FROM_DATA, TableFile
from bdpvi.score.reading import BLANK, BOOLEAN, NUMBERS, OK, UNFIT, UNKNOWN, UNUSED
from bdpvi.score.spelling import EXACT, spell
from bdpvi.tables.looking import look_at_frame, seeming
from bdpvi.tables.looks import TableLook
from bdpvi.tables.request import Public, Request
from bdpvi.tables.sheet import Column

Entry = dict[str, Any]
Labels = tuple[Mapping[str, str], tuple[str, ...]]
"""What a file itself says of a column: the label of each code, and the codes for no value."""
_GONE = [float(f"{sign}{digit * n}") for digit in "789" for n in range(1, 7) for sign in ("-", "")]
_NO_VALUE = frozenset(one for one in _GONE if not 0 < one < 10)
"""Numbers that often stand for no value, such as -9, 99 and 9999."""
_NUMBER = re.compile(r"[(+-]?\s*([^\s\d.,'(){}+_-]*)\s*-?\d[\d.,'_\s]*([^\d()]*)\)?")
_CURRENCIES = ("AUD", "CAD", "CHF", "DKK", "EUR", "GBP", "JPY", "NOK", "PLN", "SEK", "USD")
_SIGNS = ("%", "‰", "°", *_CURRENCIES)
_WORDS = 3
"""Most different words among numbers that may stand for no value."""
_APART = re.compile(r"(?<!\d)[\s_-]+|[\s_-]+(?!\d)")
"""Blanks and hyphens, but not between two digits."""


@dataclass(frozen=True)
class Drafted:
    """The draft of a column.

    Attributes:
        name: its name.
        entry: its entry in the public file.
        words: what was found in the cells.
        lacks: what a release estimates privately unless it is declared: bounds, levels or nothing.
    """

    name: str
    entry: Entry
    words: str
    lacks: str = ""


@dataclass(frozen=True)
class Draft:
    """A table's public file with what it lacked.

    Attributes:
        content: the content of the file, in which new entries are marked.
        columns: drafts of the columns that it lacked.
        unread: columns for which there is none.
        look: what the owner sees of the table by this file.
        marked: the number of its entries that are marked.
    """

    content: dict[str, Any]
    columns: tuple[Drafted, ...]
    unread: tuple[str, ...]
    look: TableLook
    marked: int

    @classmethod
    def of(cls, data: str, content: Mapping[str, Any], path: Path) -> Draft:
        """Return the draft of a table.

        Args:
            data: the table, as :func:`bdpvi.tables.look` takes it; of one in blocks the first
                200,000 rows are read.
            content: what its file declares already, which stays.
            path: where the file is, or will be.

        Raises:
            ValueError: as :meth:`bdpvi.datasets.table.Table.of` does.
        """
        content = dict(content)
        known = TableFile.of(content, path)
        file = known.file
        if not {*content.get("file", {})} - {"sheet"}:
            file = seeming(data, file)
            new = {n: one for n, one in vars(file).items() if one != getattr(known.file, n)}
            if new:
                content["file"] = {**content.get("file", {}), **new, FROM_DATA: True}
        frame, labels = _rows(data, file)
        columns = dict(content.get("columns", {}))
        left = {*columns, *content.get("left_out", {}), known.unit}
        rest = [name for name in map(str, frame) if name not in left]
        made = {name: drafted(frame[name], file, labels.get(name, ({}, ()))) for name in rest}
        new_ones = {name: one for name, one in made.items() if one is not None}
        if new_ones:
            columns |= {n: one.entry | {FROM_DATA: True} for n, one in new_ones.items()}
            source = content.get("source", "Write here where these declarations are from.")
            content |= {"source": source, "columns": columns}
        known = TableFile.of(content, path)
        unit = (
            Unit(known.unit, known.rows_per_unit)
            if known.unit or known.one_row_per_person
            else None
        )
        asked = Request(epsilon=0.0, positive="", public=Public(types=known.schema), unit=unit)
        unread = tuple(name for name, one in made.items() if one is None)
        found = look_at_frame(frame, asked, file)
        return cls(content, tuple(new_ones.values()), unread, found, len(known.drafted))


def _rows(data: str, file: FileFormat) -> tuple[pd.DataFrame, dict[str, Labels]]:
    """Return the first rows of a table, and what the file itself says of its columns."""
    table = Table.of(data, file=file)
    if in_blocks(data):
        frame, _, odd = table.first()
        tell_owner(odd, "line", ODD)
        return frame, {}
    return with_text_names(table.frame(text=True, least=0)), labels_of(data)


def drafted(
    values: pd.Series[Any], file: FileFormat | None = None, labels: Labels = ({}, ())
) -> Drafted | None:
    """Return the draft of a column, None if it is blank or nothing reads it.

    Args:
        values: its cells, as text or typed.
        file: how the file is written.
        labels: what the file itself says of the column.

    >>> print(drafted(pd.Series(["$80.5", "$75", "9999"] * 3, name="cost")).words)
    cost (number, $): 6 of 9 cells read, 3 before; '9999' (3) is no value
    >>> column = pd.Series(["no", "no", "No", "n o", "yes"] * 3, name="smoker")
    >>> print(drafted(column).words)
    smoker (category): 15 of 15 cells read; 'No', 'n o' are 'no'
    """
    file, one = file or FileFormat(), Column.of(values, None, Public())
    texts: Counter[str] = Counter()
    for value, count in one.tally.items():
        texts[spell(value) or ""] += count
    for entry in _entries(one, texts, file, labels) if texts else ():
        if (made := _try_entry(entry, one, texts, file)) is not None:
            return made
    return None


def _entries(
    one: Column, texts: Mapping[str, int], file: FileFormat, labels: Labels
) -> Iterator[Entry]:
    """Yield what the column may be, most likely first."""
    named, kind, name = {n: c for n, c in labels[0].items() if c}, one.look.kind, one.look.name
    gone = {named.get(code, code): named.get(code, "no value") for code in labels[1]}
    if levels := [label for label in named.values() if label not in gone]:
        yield {"kind": "category", "levels": levels, **({"missing": gone} if gone else {})}
    if called_identifier(name):
        yield {"kind": "identifier"}
    if {*texts} == {*BOOLEAN}:
        yield {"kind": "boolean"}
    times = [value for value in one.tally if isinstance(value, date)]
    if 2 * len(times) > len(one.tally):
        clock = any(isinstance(at, datetime) and at.time() != at.time().min for at in times)
        yield {"kind": "datetime" if clock else "date"}
    if kind == "date":
        usual = one.dates[0] == "%Y-%m-%d"
        yield {"kind": "date"} if usual else {"kind": "date", "date_format": one.dates[0]}
    if one.codes is None and (kind != "identifier" or 2 * one.look.numbers <= one.look.filled):
        yield from _numbers(texts, file, gone)
    if kind in ("category", "boolean"):
        spellings = _spellings(one.labels)
        yield {"kind": kind, **({"spellings": spellings} if spellings else {})}
    yield {"kind": "category" if kind in NUMBERS else kind}


def _numbers(
    texts: Mapping[str, int], file: FileFormat, gone: Mapping[str, str]
) -> Iterator[Entry]:
    """Yield a column of numbers: its signs, its words and codes for no value, its last digit."""
    found: Counter[str] = Counter()
    for text, count in texts.items():
        found[_sign(text)] += count
    sign = max((s for s in found if s), key=lambda one: found[one], default="")
    entry: Entry = {"kind": "number", **({"symbol": sign} if sign else {})}
    bare = {text.replace(sign, "").strip("() ") if sign else text: n for text, n in texts.items()}
    typed = {text for text in bare if text.startswith(EXACT)}
    kept = shapes({text: n for text, n in bare.items() if text not in typed})
    if signs := sign_options([(kept, file.signs[:2])], file.separator):
        new = zip(("decimal", "thousands"), signs, file.signs, strict=False)
        entry |= {n: one for n, one, old in new if one != old}
    type = type_of(entry, "").in_file(*file.signs)
    numbers = {text: type.of_text(text)[0] for text in texts}
    there = {number for number in numbers.values() if np.isfinite(number)}
    words = sorted(text for text in texts if type.of_text(text)[2] == UNFIT)
    codes = [*(words if len(words) <= _WORDS else ()), *(f"{n:.0f}" for n in _far_apart(there))]
    missing = {**dict.fromkeys(codes, "no value"), **gone}
    rest = np.array([n for n in there if f"{n:.0f}" not in missing or not n.is_integer()])
    if missing:
        entry["missing"] = missing
    if bool((rest == np.round(rest)).all()):
        entry["kind"] = "integer"
    elif digits := next((n for n in range(1, 4) if (np.round(rest, n) == rest).all()), 0):
        entry["step"] = float(f"1e-{digits}")
    yield entry


def _sign(text: str) -> str:
    """Return the sign that a number bears, "" if it bears none.

    >>> [_sign(one) for one in ("$5", "(5 €)", "5 %", "72,5 kg", "EUR 5", "I10", "P7", "5")]
    ['$', '€', '%', 'kg', 'EUR', '', '', '']
    """
    if not (found := _NUMBER.fullmatch(text)):
        return ""
    before, after = found[1], found[2].strip()
    sign, apart = (
        before or after,
        not before and text.rstrip(")")[: -len(after) or None][-1:] == " ",
    )
    known = sign in _SIGNS or (sign and all(unicodedata.category(c) == "Sc" for c in sign))
    fits = not (before and after) and len(sign) < 10 and not re.search(r"[\s\d.,'_()+-]", sign)
    return sign if fits and (known or apart) else ""


def _far_apart(numbers: set[float]) -> list[float]:
    """Return codes for no value that are farther from all numbers than these are from each other.

    >>> _far_apart({18.0, 93.0, 99.0, 999.0, 9999.0}), _far_apart({0.0, 5000.0, 9999.0})
    ([999.0, 9999.0], [])
    """
    rest = numbers - _NO_VALUE
    if len(rest) < 2:
        return []
    low, high = min(rest), max(rest)
    return sorted(n for n in numbers & _NO_VALUE if max(n - high, low - n) > high - low)


def _spellings(labels: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the rarer spellings of names that differ in case, blanks or hyphens alone.

    >>> _spellings({"type 1-2": 3, "Type 12": 1, "no": 5, "No": 2, "n o": 1})
    {'no': ['No', 'n o']}
    """
    alike: dict[str, list[str]] = {}
    for label in sorted(labels, key=lambda one: (-labels[one], one)):
        alike.setdefault(_APART.sub("", label.casefold()), []).append(label)
    return {first: some for first, *some in alike.values() if some}


def _try_entry(
    entry: Entry, one: Column, texts: Mapping[str, int], file: FileFormat
) -> Drafted | None:
    """Return the draft if the cells are read by this entry; what it changes is said of them."""
    try:
        type = type_of(entry, one.look.name).in_file(*file.signs)
    except ValueError:  # such as a label that is not printable
        return None
    fewer = {n: v for n, v in entry.items() if n not in ("missing", "spellings")}
    plain = type_of(fewer, one.look.name).in_file(*file.signs)
    found: Counter[int] = Counter()
    gone: Counter[str] = Counter()
    merged: dict[str, list[str]] = {}
    for text, count in texts.items():
        _, label, status = type.of_text(text)
        _, other, before = plain.of_text(text)
        found[status] += count
        if status == BLANK != before:
            gone[text.removeprefix(EXACT)] += count
        elif status == OK and label != other:
            merged.setdefault(label, []).append(other)
    cells = sum(texts.values())
    if found[UNKNOWN] or 2 * found[UNFIT] >= cells or not found[OK]:
        return None
    return Drafted(
        one.look.name, entry, _words(type, one, cells, found, gone, merged), _lacking(type)
    )


def _words(
    type: ColumnType,
    one: Column,
    cells: int,
    found: Mapping[int, int],
    gone: Mapping[str, int],
    merged: Mapping[str, list[str]],
) -> str:
    named = {"decimal": (type.decimal or ".").strip("."), "thousands": type.thousands}
    signs = [f"{what} {sign!r}" for what, sign in named.items() if sign]
    kind = ", ".join(filter(None, [type.kind, type.symbol, *signs, type.date_format]))
    if type.kind in UNUSED:
        return f"{one.look.name} ({kind}): left out, with {several(one.look.levels, 'value')}"
    more = type.kind in ("integer", "number") and one.look.numbers < found[OK]
    said = f"{found[OK]} of {cells} cells read" + f", {one.look.numbers} before" * more
    parts = [f"{code!r} ({count}) is no value" for code, count in gone.items()]
    parts += [
        f"{', '.join(map(repr, sorted(some)))} {'are' if some[1:] else 'is'} {level!r}"
        for level, some in merged.items()
    ]
    parts += [f"{found[UNFIT]} do not fit, and count as blank"] * bool(found[UNFIT])
    return f"{one.look.name} ({kind}): {'; '.join([said, *parts])}"


def _lacking(type: ColumnType) -> str:
    if type.kind in NUMBERS:
        return "bounds"
    return "" if type.kind in UNUSED or type.names is not None else "levels"
