"""Declared types of columns: how a cell is read, and which values are possible.

A declared type alone decides how each cell is read: levels are as written, blanks are those that
are declared. A cell that does not fit the type is a blank, whatever the other cells hold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo

from bdpvi._ground import validate
from bdpvi.score.reading import ANY, KINDS, NAMES, NUMBERS, TIMES, CellType
from bdpvi.score.spelling import day_of, printable_label, spell

DECLARED, DTYPE, ESTIMATED, ROWS = ORIGINS = ("declared", "dtype", "estimated", "rows")
"""Where levels and bounds are from: their owner, a data frame's dtype, private estimates, rows."""
MOST_LEVELS = 1000
_OTHER_SPELLING = re.compile(r"[+-]?(0\d+\.?\d*|[\d.]+[eE][+-]?\d+)|\+\d.*")
"""Numbers that are not in their usual spelling, such as codes may have."""
_FITS: dict[str, tuple[str, ...]] = {
    "levels": (*NAMES, ANY),
    "low": (*NUMBERS, ANY),
    "high": (*NUMBERS, ANY),
    "whole": ("number", "datetime", ANY),
    "decimal": ("number", "integer", ANY),
    "thousands": ("number", "integer", ANY),
    "symbol": ("number", "integer"),
    "measure": NUMBERS,
    "step": ("number", "integer"),
    "date_format": TIMES,
    "since": TIMES,
    "zone": ("datetime",),
    "spellings": NAMES,
}
"""The kinds that each field goes with."""


def _absent(value: Any, **more: Any) -> Any:
    """Return a field that JSON omits while it has this value."""
    given = {"default_factory": dict} if value == {} else {"default": value}
    return field(**given, metadata={"absent": value}, **more)


@dataclass(frozen=True, kw_only=True)
class ColumnType(CellType):
    """The declared type of a column. All of it is public, unless it is from the rows.

    Attributes:
        kind: ``number``; ``integer``; ``date``, a number of days; ``datetime``, a number of
            seconds; ``category``, a name, where a number has its shortest spelling unless another
            one is a level; ``code``, text as written; ``boolean``; ``ordered``, a category with
            ordered levels; ``identifier`` and ``text``, which are left out; ``any``, a number or a
            name, whichever the cell is.
        levels: the names, as written; of a Boolean that for no and that for yes. A number is the
            level 007 if no other level is that number. Of kind ``any``, 1 and 1.0 are the same.
        low, high: bounds of numbers; of dates, days since ``since``; of instants, seconds.
        blank: what a blank looks like, as written; an empty cell always is one. By default the
            usual signs, such as ``NA`` and ``?``, that are not among the levels.
        missing: codes of further blanks, such as 9999, and what each means.
        decimal: the decimal sign in text, ``.`` or ``,``; by default that of the file.
        thousands: the sign between groups of three digits in text; by default that of the file.
        symbol: a sign that text may bear before or after a number, such as ``$`` or ``%``; then
            (5) is -5.
        measure: the unit of a number, in words. It has no effect.
        step: unit of the last digit, such as 0.01, which released values are rounded to.
        date_format: how dates are written, such as ``%d.%m.%Y``; by default year, month, day.
        since: the day that counts as 0.
        zone: that of clock times, such as ``Europe/Berlin``; by default UTC.
        spellings: further spellings of a level.
        whole: whether numbers are whole, as of ``integer`` and ``date``; cells are rounded.
        origin: where levels or bounds are from: ``declared``; ``dtype``, that of a data frame;
            ``estimated``, privately, so that only another release's ε covers them; ``rows``, which
            no ε covers.

    Raises:
        ValueError: naming the field at fault.

    >>> weight = ColumnType(kind="number", decimal=",", step=0.1)
    >>> weight.of_text("27,3"), weight.of_text("27.3")
    ((27.3, '27.3', 0), (nan, '', 2))
    >>> land = ColumnType(kind="category", levels=("NA", "DE"))
    >>> land.of_text("NA"), land.of_text("FR"), ColumnType(kind="code").of_text("01002")
    ((nan, 'NA', 0), (nan, 'FR', 3), (nan, '01002', 0))
    """

    kind: str = ANY
    levels: tuple[str, ...] | None = _absent(None)
    low: float | None = _absent(None)
    high: float | None = _absent(None)
    blank: tuple[str, ...] | None = _absent(None)
    decimal: str | None = _absent(None)
    thousands: str | None = _absent(None)
    step: float | None = _absent(None)
    date_format: str | None = _absent(None)
    since: str = _absent("1970-01-01")
    spellings: Mapping[str, tuple[str, ...]] = _absent({}, hash=False)
    missing: Mapping[str, str] = _absent({}, hash=False)
    symbol: str | None = _absent(None)
    measure: str | None = _absent(None)
    zone: str | None = _absent(None)
    whole: bool = _absent(False)
    origin: str = _absent(DECLARED)

    def __post_init__(self) -> None:
        validate.choice("kind", self.kind, KINDS)
        validate.choice("origin", self.origin, ORIGINS)
        for one in fields(self):
            value, kinds = getattr(self, one.name), _FITS.get(one.name, KINDS)
            if self.kind not in kinds and value != one.metadata["absent"]:
                raise ValueError(f"{one.name}={value!r:.80} does not go with kind={self.kind}")
        if self.levels is not None:
            self._check_levels(self.levels)
            if self.kind == "boolean" and len(self.levels) != 2:
                raise ValueError(f"levels of a boolean must be two, got {self.levels!r:.200}")
        if self.blank is not None:
            self._check_names("blank", tuple(one for one in self.blank if one), least=0)
        self._check_names("missing", tuple(self.missing), least=0)
        self._check_numbers()
        self._check_dates()
        self._check_spellings()

    @staticmethod
    def _check_names(name: str, values: tuple[str, ...], least: int = 1) -> None:
        good = all(
            isinstance(value, str) and value and printable_label(value.strip()) == value
            for value in values
        )
        if not good or len(values) < least or len(set(values)) != len(values):
            raise ValueError(
                f"{name} must be different printable texts without blanks around them, got "
                f"{values!r:.200}"
            )

    def _check_levels(self, levels: tuple[str, ...]) -> None:
        if not 1 <= len(levels) <= MOST_LEVELS:
            raise ValueError(f"levels must be 1 to {MOST_LEVELS} names, got {len(levels)}")
        if self.kind != ANY:
            return self._check_names("levels", levels)
        type_ = self.reading or ColumnType()
        labels = {type_.of_text(spell(level))[1] for level in levels}
        if len(labels) != len(levels) or "" in labels:
            raise ValueError(
                f"levels must differ and not be blank, got {levels!r:.200}; a declared kind, such "
                "as category, takes them as written"
            )

    def _check_numbers(self) -> None:
        low, high = self.low, self.high
        if (low is None) != (high is None) or (self.levels and (low is not None or self.whole)):
            raise ValueError(
                f"give levels, or low and high, got levels={self.levels!r:.200}, low={low}, "
                f"high={high}, whole={self.whole}"
            )
        if low is not None and high is not None:
            if not -math.inf < low <= high < math.inf:
                raise ValueError(f"low={low} must be at most high={high}, both finite")
            if self.integer and not (float(low).is_integer() and float(high).is_integer()):
                raise ValueError(f"low={low} and high={high} must be whole, as the numbers are")
        check_signs(*self.signs)
        if self.symbol is not None and not re.fullmatch(r"[^\s\d.,'_()+-]+", self.symbol):
            raise ValueError(f"symbol={self.symbol!r} must be a sign such as $ or %")
        if self.step is not None:
            validate.positive("step", self.step)
            if self.kind == "integer" and not float(self.step).is_integer():
                raise ValueError(f"step={self.step} must be whole for kind=integer")

    def _check_dates(self) -> None:
        check_date_format(self.date_format)
        try:
            date.fromisoformat(self.since)
        except ValueError:
            raise ValueError(f"since={self.since!r} must be a day such as 1970-01-01") from None
        try:
            ZoneInfo(self.zone or "UTC")
        except (KeyError, ValueError, OSError):
            raise ValueError(f"zone={self.zone!r} must be a name such as Europe/Berlin") from None

    def _check_spellings(self) -> None:
        taken = set(self.names or ())
        for level, some in self.spellings.items():
            if self.names is not None and level not in self.names:
                raise ValueError(f"spellings has {level!r}, which is not a level")
            self._check_names(f"spellings of {level!r}", tuple(some))
            if both := sorted(taken & {*some}):
                raise ValueError(f"spellings has {both[0]!r} more than once")
            taken |= {*some}
        for name, codes in (("blank", self.blank or ()), ("missing", self.missing)):
            if both := sorted(taken & {*codes}):
                raise ValueError(f"{name} has {both[0]!r}, which is a level or its spelling")

    @property
    def integer(self) -> bool:
        """Whether all numbers are whole."""
        return self.whole or self.kind in ("integer", "date")

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Both bounds, if there are any."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def bounded(self) -> bool:
        """Whether the possible values are known: levels, or numbers between two bounds."""
        return self.names is not None or self.low is not None

    @cached_property
    def reading(self) -> ColumnType | None:
        """The type by which cells are read, None where they are guessed.

        Of kind ``any`` it is that of names if levels differ in their spelling only, such as 7 and
        007: guessed as numbers they would be one.
        """
        if self.kind != ANY:
            return self if self.origin == DECLARED else replace(self, origin=DECLARED)
        plain = ColumnType()
        levels = self.levels or ()
        bare = replace(self, levels=None, low=None, high=None, whole=False, origin=DECLARED)
        if bare != plain or not any(_OTHER_SPELLING.fullmatch(level.strip()) for level in levels):
            return None if bare == plain else bare
        labels = [plain.of_text(spell(level))[1] for level in levels]
        distinct = len({*labels}) == len(labels) or not all(labels)
        return None if distinct else ColumnType(kind="category", levels=levels)

    def in_file(self, decimal: str, thousands: str, date_format: str) -> ColumnType:
        """Return the type with a file's signs and date format where it has none of its own."""
        if self.kind == "date":
            return replace(self, date_format=self.date_format or date_format or None)
        if self.kind not in _FITS["decimal"] or self.decimal is not None:
            return self
        groups = self.thousands if self.thousands is not None else thousands or None
        return replace(
            self, decimal=decimal if groups or decimal != "." else None, thousands=groups
        )


def check_signs(decimal: str, thousands: str) -> None:
    """Raise ValueError unless numbers can be written with these signs."""
    validate.choice("decimal", decimal, (".", ","))
    validate.choice("thousands", thousands, ("", ".", ",", " ", "'", "_"))
    if decimal == thousands:
        raise ValueError(f"thousands={thousands!r} is the decimal sign too: is decimal missing?")


def check_date_format(date_format: str | None) -> None:
    """Raise ValueError unless a day can be written and read in this format."""
    if date_format:
        day = date(2001, 12, 31)
        if day_of(_strftime(day, date_format), date_format) != day:
            raise ValueError(
                f"date_format={date_format!r} must have a year, a month and a day, such as %d.%m.%Y"
            )


def _strftime(day: date, date_format: str) -> str:
    try:
        return day.strftime(date_format)
    except ValueError:
        return ""


def types_of(
    categorical: Sequence[str], declared: Mapping[str, ColumnType] | None = None
) -> dict[str, ColumnType]:
    """Return the types of columns that are declared to be names: a code keeps its spelling.

    Args:
        categorical: these columns.
        declared: types of some columns, which are kept if they say what the column is.

    >>> [types_of(["ward"])["ward"].of_text(one)[1] for one in ("01", "1.0")]
    ['01', '1']
    """
    declared = declared or {}
    open_ones = [n for n in categorical if n not in declared or declared[n].kind == ANY]
    return {**declared, **dict.fromkeys(open_ones, ColumnType(kind="category"))}
