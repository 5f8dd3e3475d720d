"""The features of one row: those of each column from its own cell, as :mod:`bdpvi.datasets` has it.

A column writes its features into a row of zeros, and says what is unclear about its cell.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from .reading import (
    BLANK,
    UNFIT,
    CellType,
    buckets_of,
    common,
    levels_of,
    places_of,
)
from .spelling import spell

FARTHEST = 1e12
"""Numbers are clipped at this many standard deviations, far beyond any model's limit."""
UNLISTED = "unlisted level"
"""What is unclear about a cell with a level that is not among those of training."""


class RowColumn:
    """One column.

    Args:
        entry: the column's entry in the encoding of a release's file.
        unknown: how blanks and unlisted levels are treated, as in
            :class:`bdpvi.datasets.encoding.Encoding`.
        start: the number of its first feature.

    Raises:
        ValueError: if the entry has a field that this version does not know.
        KeyError: if it lacks one.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    number: ClassVar[bool] = False
    """Whether a cell that is no number is refused or blank."""
    named: ClassVar[bool] = False
    """Whether it has an additional feature for unlisted levels, if ``unknown`` is "other"."""
    width = 1

    def __init__(self, entry: Mapping[str, Any], unknown: str, start: int) -> None:
        known = {"kind", "name", "missing", "type", *self.fields}
        if more := sorted(entry.keys() - known):
            raise ValueError(f"column {entry['name']!r} has {more[0]!r}: a later version made it")
        self.name = str(entry["name"])
        self.type = None if entry.get("type") is None else CellType(**entry["type"])
        self.unknown, self.start = unknown, start
        self.declared: Collection[str] = frozenset()
        self._set(entry)
        self.end = start + self.width
        whole = unknown == "other"
        self.other = self.missing = -1
        """Numbers of the features of unlisted levels and of blanks; -1 if there is none."""
        if whole and self.named:
            self.other, self.end = self.end, self.end + 1
        if whole or entry["missing"]:
            self.missing, self.end = self.end, self.end + 1
        self.read_by = self.type or CellType()

    def _set(self, entry: Mapping[str, Any]) -> None:
        """Read the constants of its kind."""

    def own(self, number: float, label: str) -> Mapping[int, float] | None:
        """Return the features of a value by their numbers; None if it is unknown."""
        raise NotImplementedError

    def fill(self, row: Any, cell: object) -> str:
        """Write a cell's features into a row of zeros; return what is unclear about it, or "".

        Raises:
            ValueError: if ``unknown`` refuses the cell.
        """
        number, label, status = self.read_by.of_text(spell(cell), self.declared)
        blank = status in (BLANK, UNFIT)
        known = None if blank else self.own(number, label)
        if known is not None:
            for place, value in known.items():
                row[place] = value
            return ""
        place = self.missing if blank or self.number else self.other
        if self.unknown == "other" or (blank and place >= 0):
            row[place] = 1.0
        elif self.unknown == "refuse" or (self.number and not blank):
            self._refuse(cell, blank)
        if status == BLANK:
            return "blank"
        return "unfit" if blank or self.number else UNLISTED

    def _refuse(self, cell: object, blank: bool) -> None:
        if self.number and not blank:
            raise ValueError(f"column {self.name!r} has {cell!r:.80}, which is no finite number")
        what = "is blank" if blank else f"has {cell!r:.80}, which is not among its levels"
        raise ValueError(
            f"column {self.name!r} {what}; load(…, unknown='base') would make its features 0"
        )


class NumberColumn(RowColumn):
    """A standardised number, (value − mean)/sd."""

    fields = ("mean", "sd")
    number = True

    def _set(self, entry: Mapping[str, Any]) -> None:
        self.mean, self.sd = float(entry["mean"]), float(entry["sd"])
        if not (math.isfinite(self.mean) and 0 < self.sd < math.inf):
            raise ValueError(f"column {self.name!r} has mean {self.mean!r} and sd {self.sd!r}")

    def own(self, number: float, label: str) -> Mapping[int, float] | None:
        """Return the feature; None for no number."""
        value = (number - self.mean) / self.sd
        if self.unknown == "other":
            value = min(max(value, -FARTHEST), FARTHEST) if value == value else value
        return {self.start: value} if math.isfinite(value) else None


class LevelColumn(RowColumn):
    """A category as one 0/1 feature for each level."""

    fields: ClassVar[tuple[str, ...]] = ("categories",)
    named = True

    def _set(self, entry: Mapping[str, Any]) -> None:
        self.levels: Sequence[str] = tuple(entry["categories"])
        self.width = len(self.levels)
        if self.unknown == "other":
            self.places = places_of(self.levels, self.type)
            self.guessed = False
        else:
            self.guessed = self.type is None
            self.declared = frozenset(self.levels)
            self.type, self.places = levels_of(self.levels, self.type)

    def place(self, label: str) -> int | None:
        """Return the index of a level by the label of a cell; None if it is not listed."""
        return self.places.get(common(label, self.type) if self.guessed else label)

    def own(self, number: float, label: str) -> Mapping[int, float] | None:
        """Return the feature of the level."""
        place = self.place(label)
        return None if place is None else self.at(place)

    def at(self, place: int) -> Mapping[int, float]:
        """Return the features of a level by its index."""
        return {self.start + place: 1.0}


class RankColumn(LevelColumn):
    """A category as its index in a list, standardised."""

    fields = ("categories", "mean", "sd")

    def _set(self, entry: Mapping[str, Any]) -> None:
        if self.unknown == "other":
            raise ValueError(f"column {self.name!r} is ordinal, which has no level for others")
        super()._set(entry)
        self.width, self.mean, self.sd = 1, float(entry["mean"]), float(entry["sd"])

    def at(self, place: int) -> Mapping[int, float]:
        """Return the standardised index."""
        return {self.start: (place - self.mean) / self.sd}


class HashColumn(RowColumn):
    """A category by its hash, which sets two features."""

    fields = ("buckets",)

    def _set(self, entry: Mapping[str, Any]) -> None:
        self.width = int(entry["buckets"])

    def own(self, number: float, label: str) -> Mapping[int, float] | None:
        """Return √½ at both features, or twice that where they are one."""
        first, second = buckets_of(label, self.width)
        if first == second:
            return {self.start + first: 2 * math.sqrt(0.5)}
        return dict.fromkeys((self.start + first, self.start + second), math.sqrt(0.5))


COLUMNS: dict[str, type[RowColumn]] = {
    "numeric": NumberColumn,
    "onehot": LevelColumn,
    "ordinal": RankColumn,
    "hashed": HashColumn,
}
"""Columns by the kinds that files name."""


def columns_of(encoding: Mapping[str, Any], unknown: str) -> list[RowColumn]:
    """Return the columns of a release's encoding.

    Raises:
        ValueError: if there is a kind or a field that this version does not know.
        KeyError, TypeError: if an entry is missing or wrong.
    """
    known = {"columns", "source", "unknown", "origin", "besides", "purchases", "terms"}
    if more := sorted(encoding.keys() - known):
        raise ValueError(f"the encoding has {more[0]!r}: a later version made it")
    found: list[RowColumn] = []
    for entry in encoding["columns"]:
        if entry["kind"] not in COLUMNS:
            raise ValueError(f"column {entry['name']!r} is of the unknown kind {entry['kind']!r}")
        start = found[-1].end if found else 0
        found.append(COLUMNS[entry["kind"]](entry, unknown, start))
    return found
