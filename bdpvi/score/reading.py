"""How a cell is read: by its own text and its column's declared type, and by nothing else.

:func:`read_cell` is the law; :mod:`bdpvi.datasets.cells` reads whole columns by it.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime, timezone
from functools import cached_property
from typing import Any

from .spelling import (
    BLANKS,
    EXACT,
    INEXACT,
    day_of,
    digits,
    instant_of,
    plain_of,
    printable_label,
    spell,
)

OK, BLANK, UNFIT, UNKNOWN = range(4)
"""The status of a cell: a value, a blank, no value of its type, none of the declared levels."""
ANY = "any"
TIMES = ("date", "datetime")
NUMBERS = ("number", "integer", *TIMES)
NAMES = ("category", "code", "boolean", "ordered")
UNUSED = ("identifier", "text")
KINDS = (*NUMBERS, *NAMES, *UNUSED, ANY)
BOOLEAN = ("False", "True")
WORDS = (("false", "no", "n", "f", "0"), ("true", "yes", "y", "t", "1"))
"""What a cell of kind boolean may say, in lower case, unless spellings are declared."""
_PLAIN = re.compile(r"-?(0|[1-9]\d*)(\.\d*)?", re.ASCII)
_LEVEL = re.compile(r"-?\d+(\.\d*)?", re.ASCII)
_DOUBLE = re.compile(r"-?\d+(\.\d+)?e[+-]\d+|-?\d{16,}\.0", re.ASCII)


class CellType:
    """The part of a column's type by which its cells are read.

    Args:
        declared: fields that :class:`bdpvi.datasets.types.ColumnType` describes and checks; others
            of its fields have no effect on a cell.

    >>> CellType(kind="number", thousands=",").of_text("1,234.5")
    (1234.5, '1234.5', 0)
    """

    kind: str = ANY
    levels: tuple[str, ...] | None = None
    blank: tuple[str, ...] | None = None
    decimal: str | None = None
    thousands: str | None = None
    date_format: str | None = None
    since: str = "1970-01-01"
    spellings: Mapping[str, tuple[str, ...]] = {}
    missing: Mapping[str, str] = {}
    symbol: str | None = None
    zone: str | None = None

    def __init__(self, **declared: Any) -> None:
        vars(self).update(declared)

    @property
    def signs(self) -> tuple[str, str]:
        """The decimal sign and the sign between groups of digits."""
        groups = self.thousands or ""
        return self.decimal or ("," if groups == "." else "."), groups

    @property
    def names(self) -> tuple[str, ...] | None:
        """The levels; those of a Boolean are False and True unless it has its own."""
        return BOOLEAN if self.levels is None and self.kind == "boolean" else self.levels

    @cached_property
    def _spelt(self) -> dict[str, str]:
        """The level of each declared text."""
        result = {one: one for one in self.names or ()}
        for level, some in self.spellings.items():
            result |= dict.fromkeys(some, level) | {level: level}
        return result

    @cached_property
    def _by_number(self) -> dict[str, str]:
        """The level of a number, where one level alone is that number."""
        at = [(digits(one), one) for one in self.names or () if _LEVEL.fullmatch(one)]
        counts = Counter(number for number, _ in at)
        return {number: one for number, one in at if counts[number] == 1}

    @cached_property
    def declared_blanks(self) -> frozenset[str]:
        """Declared blanks, as written, and as labels of numbers or names."""
        codes = {*(self.blank or ()), *self.missing}
        found = [] if self.kind in TIMES else [self._value(code) for code in codes if code]
        labels = {one[1] for one in found if one is not None}
        return frozenset(codes) | (labels - self._spelt.keys())

    @cached_property
    def codes(self) -> tuple[float, ...]:
        """The numbers among the declared blanks, in a column of numbers."""
        found = (self._number(one) for one in {*(self.blank or ()), *self.missing} if one)
        return tuple(one[0] for one in found if one is not None and math.isfinite(one[0]))

    def of_text(
        self, text: str | None, declared: Collection[str] = frozenset()
    ) -> tuple[float, str, int]:
        """Return the number, the label and the status of a cell by its canonical text.

        A number is NaN unless the kind is that of numbers or ``any``; a label is "" for a blank and
        for what does not fit.

        Args:
            text: the text, by :func:`.spelling.spell`.
            declared: texts that are values although they look like blanks.
        """
        bare = (text or "").removeprefix(EXACT)
        if not text or not bare or bare in self.declared_blanks:
            return math.nan, "", BLANK
        values = bare in self._spelt or bare in declared
        if self.blank is None and not values and bare.lower() in BLANKS:
            return math.nan, "", BLANK
        found = self._value(text)
        if found is None:
            return math.nan, "", UNFIT
        number, label = found
        if self.kind not in TIMES and label in self.declared_blanks:
            return math.nan, "", BLANK
        unknown = self.levels is not None and label not in self._spelt
        return number, printable_label(label), UNKNOWN if unknown else OK

    def _value(self, text: str) -> tuple[float, str] | None:
        """Return the number and the label of a text; None if it does not fit."""
        if self.kind in TIMES:
            number = self._time(text)
            return None if number is None else (number, digits(repr(number)))
        if self.kind in NUMBERS or self.kind == ANY:
            return self._number(text)
        name = self._name(text.removeprefix(EXACT))
        return None if name is None else (math.nan, name)

    def _number(self, text: str) -> tuple[float, str] | None:
        if self.kind != ANY and text in BOOLEAN:
            return float(text == BOOLEAN[1]), "01"[text == BOOLEAN[1]]
        plain = plain_of(text, *self.signs, self.symbol or "")
        number = math.inf if plain is None else float(plain)
        if plain is not None and math.isfinite(number):
            if self.kind == "integer" and not number.is_integer():
                return None
            return number, (INEXACT if text[0] == INEXACT else "") + digits(plain)
        return (math.nan, text.removeprefix(EXACT)) if self.kind == ANY else None

    def _time(self, text: str) -> float | None:
        first = date.fromisoformat(self.since)
        if self.kind == "date":
            day = day_of(text, self.date_format)
            return None if day is None else float((day - first).days)
        at = instant_of(text, self.date_format, self.zone)
        start = datetime(first.year, first.month, first.day, tzinfo=timezone.utc)
        return None if at is None else (at - start).total_seconds()

    def _name(self, text: str) -> str | None:
        if text in self._spelt:
            return self._spelt[text]
        short = digits(text) if _PLAIN.fullmatch(text) else text
        if self.kind == "boolean":
            assert self.names is not None
            if text in BOOLEAN or not self.spellings:
                for at, words in enumerate(WORDS):
                    if short.casefold() in words:
                        return self.names[at]
            return None
        if text[0] == INEXACT and plain_of(text) is not None and self.kind != "text":
            return None  # several whole numbers
        if self.kind in UNUSED:
            return text
        if self.kind != "code" and short in self._spelt:
            return self._spelt[short]
        return self._by_number.get(short) or (text if self.kind == "code" else short)


_ANY = CellType()


def read_cell(
    value: object, type: CellType | None = None, *, declared: Collection[str] = frozenset()
) -> tuple[float, str, bool]:
    """Return a cell's number, its label and whether it is blank: the law.

    Args:
        value: the raw cell.
        type: the column's declared type; by default the kind ``any``.
        declared: texts that are values although they look like blanks.

    >>> read_cell(" 1.50 "), read_cell(7), read_cell("M"), read_cell("n/a")
    ((1.5, '1.5', False), (7.0, '7', False), (nan, 'M', False), (nan, '', True))
    """
    number, label, status = (type or _ANY).of_text(spell(value), declared)
    return number, label, status in (BLANK, UNFIT)


def places_of(
    names: Sequence[str], type: CellType | None, declared: Collection[str] = frozenset()
) -> dict[str, int]:
    """Return the index of each name by its label, "" left out.

    Earlier releases wrote whole numbers from 10¹⁵ and small ones as doubles: those are found too.

    >>> places_of(["1.0", "1e+16", "M"], CellType(kind="category"))
    {'1': 0, '1e+16': 1, 'M': 2, '10000000000000000': 1}
    """
    places = {read_cell(one, type, declared=declared)[1]: at for at, one in enumerate(names)}
    for at, name in enumerate(names):
        if _DOUBLE.fullmatch(name):
            places.setdefault(digits(name), at)
    return {label: at for label, at in places.items() if label}


def levels_of(
    names: Sequence[str], type: CellType | None
) -> tuple[CellType | None, dict[str, int]]:
    """Return the type by which a column of named levels is read, and each level's index.

    Levels are looked up by :func:`common` labels. Without a type names that are one number are read
    as names.

    >>> levels_of(("7", "07", "NA"), None)[1]
    {'7': 0, '07': 1, 'NA': 2}
    """
    if type is None and len({read_cell(name, declared=names)[1] for name in names}) < len(names):
        type = CellType(kind="category")  # 7 and 07 would be one number
    places = places_of(names, type, names)
    return type, {common(label, type): at for label, at in places.items()}


def common(label: str, type: CellType | None) -> str:
    """Return a label in a common spelling: files may have TRUE where pandas has True."""
    return label.capitalize() if type is None and label.lower() in ("true", "false") else label


def buckets_of(label: str, buckets: int) -> tuple[int, int]:
    """Return the two features of a hashed label, by SHA-256 of its text.

    >>> buckets_of("nurse", 64)
    (52, 41)
    """
    digest = hashlib.sha256(label.encode()).digest()
    first, second = (int.from_bytes(part, "big") for part in (digest[:8], digest[8:16]))
    return first % buckets, second % buckets
