"""How the cells of a table are read by its owner's options, column by column."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.guess import Tally, date_formats, shapes
from bdpvi.datasets.measuring import MOST_CATEGORIES, called_identifier, objection
from bdpvi.datasets.table import LEFT_OUT
from bdpvi.datasets.types import ColumnType
from bdpvi.score.reading import BLANK, BOOLEAN, NUMBERS, UNFIT
from bdpvi.score.spelling import spell
from bdpvi.tables.looks import ColumnLook, Finding, PersonsLook
from bdpvi.tables.request import Public, Request

FEW = 10
"""A column with at most this number of values names nobody."""
_NEARLY_ALL = 0.95
_ANY = ColumnType()
_PEOPLE = frozenset({"patient", "person", "subject", "customer", "client", "member", "user"})
_LABELS = 1000
"""Most labels of a block that are counted."""
READ = ("numbers", "names", "blank", "unread")
"""How a cell is read."""


@dataclass(frozen=True)
class Column:
    """A column's distinct values that are no blanks, and how they are read.

    Attributes:
        look: what is shown.
        tally: number of cells with each value.
        labels: number of cells with each label.
        free: whether no option says what the column is.
        dates: formats that its cells have, if it seems to be one of days.
        type: the type by which it is read.
        codes: a text with leading zeros, and the number as which it is read, if there is one.
    """

    look: ColumnLook
    tally: Tally
    labels: Mapping[str, int]
    free: bool
    dates: tuple[str, ...]
    type: ColumnType | None
    codes: tuple[str, str] | None

    @cached_property
    def shapes(self) -> Tally:
        """The number of cells with each shape of a number."""
        return shapes(self.tally)

    def signs(self, file: FileFormat) -> tuple[str, str]:
        """Return the decimal and the thousands sign by which it is read."""
        return file.signs[:2] if self.type is None else self.type.signs

    @classmethod
    def of(cls, values: pd.Series[Any], type: ColumnType | None, public: Public) -> Column:
        """Return the column by its type."""
        name = str(values.name)
        declared = public.kinds.get(name, "")
        number = declared in NUMBERS
        filled: dict[object, int] = {}
        labels: Counter[str] = Counter()
        counts = dict.fromkeys(READ, 0)
        whole, codes = True, None
        for value, count, one, label, how in _each(values, type, number):
            counts[how] += count
            if how == "blank":
                continue
            filled[value] = count
            if how == "unread":
                continue
            labels[label] += count
            read = how == "numbers"
            whole = whole and (not read or one.is_integer())
            if read and codes is None and isinstance(value, str) and _coded(value.strip()):
                codes = (value.strip(), label)
        look = ColumnLook(name, declared, bool(declared), **counts, levels=len(labels))
        named = 2 * look.numbers <= look.filled
        dates = date_formats(filled) if (named and not declared) or declared == "date" else ()
        if not declared:
            kind = "date" if dates else _drafted(look, labels, values, whole, codes is not None)
            look = replace(look, kind=kind)
        return cls(look, filled, labels, not declared, dates, type, None if number else codes)

    def in_all(self, counts: Mapping[str, int], labels: Mapping[str, int]) -> Column:
        """Return the column of a longer table, whose first rows it has.

        Args:
            counts: its cells, by how they are read.
            labels: its cells with each label, none if these are too many.
        """
        numbers, names, blank, unread = (counts[how] for how in READ)
        look = replace(
            self.look,
            numbers=numbers,
            names=names,
            blank=blank,
            unread=unread,
            levels=len(labels) or self.look.levels,
        )
        return replace(self, look=look, labels=labels or self.labels)


Totals = tuple[int, int, dict[str, dict[str, int]], dict[str, dict[str, int]], dict[str, int]]
"""Numbers of rows and of lines left out; by column the cells, by how they are read, those with each
label, and the number of blocks that have too many labels to count."""


def totals(frame: pd.DataFrame, types: Mapping[str, ColumnType], numbers: Sequence[str]) -> Totals:
    """Return what is counted of some rows; the sum over blocks counts all rows.

    Args:
        frame: the rows.
        types: the types by which columns are read.
        numbers: columns that are declared to be numbers.
    """
    cells: dict[str, dict[str, int]] = {}
    labels: dict[str, dict[str, int]] = {}
    for name, values in frame.items():
        found = cells[str(name)] = dict.fromkeys(READ, 0)
        named: Counter[str] = Counter()
        for _, count, _, label, how in _each(values, types.get(str(name)), name in numbers):
            found[how] += count
            if how in READ[:2]:
                named[label] += count
        labels[str(name)] = dict(named)
    many = {name: int(len(some) > _LABELS) for name, some in labels.items()}
    few = {name: {} if many[name] else some for name, some in labels.items()}
    return len(frame), int(frame.attrs.get(LEFT_OUT, 0)), cells, few, many


def _each(
    values: pd.Series[Any], type: ColumnType | None, number: bool
) -> Iterator[tuple[object, int, float, str, str]]:
    """Yield each value, its number of cells, its number and its label, and how it is read."""
    for value, count in _tally(values).items():
        one, label, status = (type or _ANY).of_text(spell(value))
        finite = math.isfinite(one)
        if status == BLANK:
            how = "blank"
        elif status == UNFIT or (number and not finite):
            how = "unread"
        else:
            how = "numbers" if finite else "names"
        yield value, count, one, label, how


def _tally(values: pd.Series[Any]) -> Tally:
    try:
        return Counter(values.tolist())
    except TypeError:  # lists and dictionaries are not hashable
        return Counter(map(str, values.tolist()))


def _coded(text: str) -> bool:
    return len(text) > 1 and text[0] == "0" and text.isdigit()


def _drafted(
    look: ColumnLook, labels: Mapping[str, int], values: pd.Series[Any], whole: bool, coded: bool
) -> str:
    """Return the kind that a column's cells look like."""
    nearly_all = look.levels > FEW and look.levels >= _NEARLY_ALL * look.filled
    if not look.filled:
        return "blank"
    if 2 * look.numbers > look.filled:
        if coded:
            return "identifier" if nearly_all else "code"
        if whole and nearly_all:
            numbers = pd.to_numeric(values, errors="coerce").dropna()
            if numbers.abs().max() < 2**53 and objection(numbers.astype("int64")):
                return "identifier"
        return "integer" if whole else "number"
    if nearly_all:
        return "identifier"
    if look.levels > FEW and (2 * look.levels >= look.filled or look.levels > MOST_CATEGORIES):
        return "text"
    return "boolean" if {*labels} == {*BOOLEAN} else "category"


def persons_of(
    sheet: Mapping[str, Column], asked: Request
) -> tuple[tuple[PersonsLook, ...], list[Finding]]:
    """Return the columns that may name persons, and what should be said about them."""
    if asked.person:
        unit = _repeats(sheet[asked.person])
        few = Finding(
            f"{unit}. The noise grows with --rows-per-unit {asked.rows_of_person}",
            f"--rows-per-unit {unit.most}",
        )
        return (unit,), [few] * (asked.rows_of_person > unit.most > 0)
    named, others = [], []
    for name, one in sheet.items():
        found = _repeats(one)
        if name == asked.target or one.look.kind == "date" or found.most <= 1:
            continue
        parts = {word.lower() for word in name.replace("-", "_").split("_")}
        if called_identifier(name) or (parts & _PEOPLE and found.persons > FEW):
            named.append(found)
        elif one.free and name not in asked.public.drop and _likepersons_of(one, found):
            others.append(found)
    shown = (*named, *([] if asked.one_row_per_person else others))
    if not shown and not asked.one_row_per_person:
        words = "nothing looks like a person with several rows. If everybody has one"
        return (), [Finding(words, "--one-row-per-person")]
    return shown, [
        Finding(
            f"{one}. If it names persons, protect all rows of a person",
            f"--unit {shlex.quote(one.name)} --rows-per-unit {one.usual}",
            costly=bool(named),
        )
        for one in (named or shown[:1])
    ]


def _repeats(one: Column) -> PersonsLook:
    """Return how often the values of a column repeat."""
    sizes = sorted(one.labels.values())
    half, usual, most = (
        sizes[math.ceil(q * len(sizes)) - 1] if sizes else 0 for q in (0.5, 0.95, 1.0)
    )
    return PersonsLook(one.look.name, len(sizes), half, usual, most, sum(sizes))


def _likepersons_of(one: Column, found: PersonsLook) -> bool:
    """Return whether a column that is not called an identifier repeats like persons."""
    digits = {len(label) for label in one.labels if label.isdigit()}
    coded = one.look.numbers and len(digits) == 1 and min(digits) >= 6
    many = found.persons > MOST_CATEGORIES and 10 * found.persons >= found.rows
    return many and (one.look.kind in ("code", "text", "category") or bool(coded))


def model_for(one: Column, counts: Mapping[str, int]) -> str:
    """Return the options for a target of these values that none has been given for."""
    if len(counts) <= 2:
        return "--positive VALUE"
    if one.look.numbers > _NEARLY_ALL * one.look.filled:
        whole = all(label.isdecimal() for label in counts)
        return "--model poisson --largest N" if whole else "--model linear --target-bounds LOW HIGH"
    classes = " ".join(f"--classes {shlex.quote(label)}" for label in counts)
    named = f", or --model multinomial {classes}" if len(counts) <= FEW else ""
    return f"--positive VALUE{named}"
