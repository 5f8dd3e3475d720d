"""Declared types of columns: how a cell is read, and how a released value is written.

A declared type alone decides how each cell is read: levels are as written, blanks are those that
are declared. A cell that does not fit the type is a blank, whatever the other cells hold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bdpvi._ground import validate
from bdpvi.datasets.cells import BLANK, read_cell, read_cells, shown, spelt, text_of
from bdpvi.datasets.spelling import check_date_format, check_signs, day_of, later, number_of

if TYPE_CHECKING:
    import pandas as pd

ANY = "any"
NUMBERS = ("number", "integer", "date")
NAMES = ("category", "code", "boolean", "ordered")
UNUSED = ("identifier", "text")
KINDS = (*NUMBERS, *NAMES, *UNUSED, ANY)
BOOLEAN = ("False", "True")
_WORDS = (("false", "no", "n", "f", "0"), ("true", "yes", "y", "t", "1"))
"""What a cell of kind boolean may say, in lower case, unless spellings are declared."""
_PLAIN = re.compile(r"-?(0|[1-9]\d*)(\.\d*)?")
_NOTHING = (math.nan, "", True)
_FITS: dict[str, tuple[str, ...]] = {
    "levels": NAMES,
    "low": NUMBERS,
    "high": NUMBERS,
    "decimal": ("number", "integer", ANY),
    "thousands": ("number", "integer", ANY),
    "step": ("number", "integer"),
    "date_format": ("date",),
    "since": ("date",),
    "spellings": NAMES,
}
"""The kinds that each field goes with."""


def _absent(value: Any, **more: Any) -> Any:
    """Return a field that JSON omits while it has this value."""
    given = {"default_factory": dict} if value == {} else {"default": value}
    return field(**given, metadata={"absent": value}, **more)


@dataclass(frozen=True, kw_only=True)
class ColumnType:
    """The declared type of a column. All of it is public.

    Attributes:
        kind: ``number``; ``integer``; ``date``, a number of days; ``category``, a name, where a
            number has its shortest spelling unless another one is a level; ``code``, text as
            written; ``boolean``; ``ordered``, a category with ordered levels; ``identifier`` and
            ``text``, which are left out; ``any``, a number or a name, whichever the cell is.
        levels: the names, as written; of a Boolean that for no and that for yes.
        low, high: bounds of numbers; of dates, days since ``since``.
        blank: what a blank looks like, as written; an empty cell always is one. By default the
            usual signs, such as ``NA`` and ``?``, that are not among the levels.
        decimal: the decimal sign in text, ``.`` or ``,``; by default that of the file.
        thousands: the sign between groups of three digits in text; by default that of the file.
        step: unit of the last digit, such as 0.01, which released values are rounded to.
        date_format: how dates are written, such as ``%d.%m.%Y``; by default year, month, day.
        since: the day that counts as 0.
        spellings: further spellings of a level.

    Raises:
        ValueError: naming the field at fault.

    >>> weight = ColumnType(kind="number", decimal=",", step=0.1)
    >>> weight.read("27,3"), weight.read("27.3")
    ((27.3, '27.3', False), (nan, '', True))
    >>> land = ColumnType(kind="category", levels=("NA", "DE"))
    >>> land.read("NA"), ColumnType(kind="code").read("01002")
    ((nan, 'NA', False), (nan, '01002', False))
    """

    kind: str
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

    def __post_init__(self) -> None:
        validate.choice("kind", self.kind, KINDS)
        for one in fields(self):
            value, kinds = getattr(self, one.name), _FITS.get(one.name, KINDS)
            if self.kind not in kinds and value != one.metadata["absent"]:
                raise ValueError(f"{one.name}={value!r:.80} does not go with kind={self.kind}")
        if self.levels is not None:
            self._check_names("levels", self.levels)
            if self.kind == "boolean" and len(self.levels) != 2:
                raise ValueError(f"levels of a boolean must be two, got {self.levels!r:.200}")
        if self.blank is not None:
            self._check_names("blank", tuple(one for one in self.blank if one), least=0)
        self._check_numbers()
        self._check_dates()
        self._check_spellings()

    @staticmethod
    def _check_names(name: str, values: tuple[str, ...], least: int = 1) -> None:
        good = all(isinstance(one, str) and one and shown(one.strip()) == one for one in values)
        if not good or len(values) < least or len(set(values)) != len(values):
            raise ValueError(
                f"{name} must be different printable texts without blanks around them, got "
                f"{values!r:.200}"
            )

    def _check_numbers(self) -> None:
        low, high = self.low, self.high
        if (low is None) != (high is None):
            raise ValueError(f"give low and high, or none, got low={low}, high={high}")
        if low is not None and high is not None:
            if not -math.inf < low <= high < math.inf:
                raise ValueError(f"low={low} must be at most high={high}, both finite")
            if self.whole and not (float(low).is_integer() and float(high).is_integer()):
                raise ValueError(f"low={low} and high={high} must be whole for kind={self.kind}")
        check_signs(*self.signs)
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

    def _check_spellings(self) -> None:
        taken = set(self.names or ())
        for level, some in self.spellings.items():
            if self.names is not None and level not in self.names:
                raise ValueError(f"spellings has {level!r}, which is not a level")
            self._check_names(f"spellings of {level!r}", tuple(some))
            if both := sorted(taken & {*some}):
                raise ValueError(f"spellings has {both[0]!r} more than once")
            taken |= {*some}
        if both := sorted(taken & {*(self.blank or ())}):
            raise ValueError(f"blank has {both[0]!r}, which is a level or its spelling")

    @property
    def numeric(self) -> bool:
        """Whether the column is one of numbers."""
        return self.kind in NUMBERS

    @property
    def whole(self) -> bool:
        """Whether all numbers are whole."""
        return self.kind in ("integer", "date")

    @property
    def plain(self) -> bool:
        """Whether a finite number in a cell is read as itself, if it is whole where it must be."""
        return self.kind in ("number", "integer") and self.blank is None

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
        found = {one: one for one in self.names or ()}
        for level, some in self.spellings.items():
            found |= dict.fromkeys(some, level) | {level: level}
        return found

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

    def read(self, value: object) -> tuple[float, str, bool]:
        """Return a cell's number, its label and whether it is blank: declared so, or not fitting.

        A cell's number is NaN unless the kind is that of numbers.
        """
        return _NOTHING if self._blank(value) else self._read(value) or _NOTHING

    def fits(self, value: object) -> bool:
        """Return whether a cell is a declared blank or a value of this type."""
        return self._blank(value) or self._read(value) is not None

    def _blank(self, value: object) -> bool:
        if isinstance(value, float | np.floating) and math.isnan(value):
            return True
        text = _text(value)
        if self.blank is not None:
            return not text or text in self.blank
        return not text or (text.lower() in BLANK and text not in self._spelt)

    def _read(self, value: object) -> tuple[float, str, bool] | None:
        if self.kind == "date":
            return self._date(value)
        if self.kind in NUMBERS:
            number = None if _is_bool(value) else self._number(value)
            if number is None or not math.isfinite(number):
                return None
            if self.kind == "integer" and not number.is_integer():
                return None
            label = spelt(number)
            return _NOTHING if label in (self.blank or ()) else (number, label, False)
        if self.kind == ANY:
            return self._any(value)
        name = self._name(value)
        return None if name is None else (math.nan, name, False)

    def _number(self, value: object) -> float | None:
        if isinstance(value, int | float | np.number | Decimal):
            try:
                return float(value)
            except (OverflowError, TypeError, ValueError):
                return None
        return number_of(_text(value), *self.signs)

    def _any(self, value: object) -> tuple[float, str, bool]:
        """Return a cell as without a type, but for the decimal sign."""
        if not isinstance(value, str):
            return read_cell(value)
        number = self._number(value)
        if number is None or not math.isfinite(number):
            return math.nan, shown(_text(value)), False
        return number, spelt(number), False

    def _date(self, value: object) -> tuple[float, str, bool] | None:
        day = day_of(value, self.date_format)
        if day is None:
            return None
        days = float((day - date.fromisoformat(self.since)).days)
        return _NOTHING if _text(value) in (self.blank or ()) else (days, spelt(days), False)

    def _name(self, value: object) -> str | None:
        text = _text(value)
        if text in self._spelt:
            return self._spelt[text]
        if self.kind == "boolean":
            assert self.names is not None
            said = text.casefold()
            if _is_bool(value) or not self.spellings:
                for at, words in enumerate(_WORDS):
                    if said in words:
                        return self.names[at]
            return None
        if self.kind != "code" and _PLAIN.fullmatch(text):
            short = spelt(float(text)) if math.isfinite(float(text)) else text
            return self._spelt.get(short, shown(short))
        return shown(text)

    def written(self, numbers: NDArray[np.float64], low: float, high: float) -> pd.Series[Any]:
        """Return released numbers, (N,), NaN for a blank, as what the column held.

        Args:
            numbers: the numbers, between the bounds.
            low, high: the bounds.

        >>> ColumnType(kind="number", step=0.01).written(np.array([1.2345]), 0, 9).tolist()
        [1.23]
        >>> day = ColumnType(kind="date", date_format="%d.%m.%Y")
        >>> day.written(np.array([0.0, np.nan]), 0, 9).tolist()
        ['01.01.1970', None]
        """
        import pandas as pd

        if self.kind == "date":
            first = date.fromisoformat(self.since)
            days = [None if math.isnan(n) else later(first, round(n)) for n in numbers.tolist()]
            if self.date_format is None:
                return pd.Series(pd.to_datetime(pd.Series(days, dtype=object)))
            texts = [None if one is None else one.strftime(self.date_format) for one in days]
            return pd.Series(texts, dtype=object)
        if self.step is None:
            return pd.Series(numbers)
        first_, last = math.ceil(low / self.step - 1e-9), math.floor(high / self.step + 1e-9)
        steps = np.round(numbers / self.step)
        steps = np.clip(steps, first_, last) if first_ <= last else steps
        exponent = Decimal(repr(float(self.step))).normalize().as_tuple().exponent
        return pd.Series(np.round(steps * self.step, max(0, -int(exponent))))


def _is_bool(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


def _text(value: object) -> str:
    """Return a cell as text; a number in its shortest spelling."""
    if isinstance(value, int | float | np.number) and not _is_bool(value):
        number = float(value) if abs(value) < 1e300 else math.inf  # type: ignore[operator]
        return spelt(number) if math.isfinite(number) else "∞"
    return text_of(value)


def types_of(
    categorical: Sequence[str], declared: Mapping[str, ColumnType] | None = None
) -> dict[str, ColumnType]:
    """Return the types of columns that are declared to be names: a code keeps its spelling.

    Args:
        categorical: these columns.
        declared: types of some columns, which are kept if they say what the column is.

    >>> types_of(["ward"])["ward"].read("01")[1], types_of(["ward"])["ward"].read("1.0")[1]
    ('01', '1')
    """
    declared = declared or {}
    open_ones = [n for n in categorical if n not in declared or declared[n].kind == ANY]
    return {**declared, **dict.fromkeys(open_ones, ColumnType(kind="category"))}


def series_of(values: pd.Series[Any], type: ColumnType | None) -> pd.Series[Any]:
    """Return a column as its type reads it: numbers, or names with None for a blank.

    >>> import pandas as pd
    >>> series_of(pd.Series(["1,5", "?"]), ColumnType(kind="number", decimal=",")).tolist()
    [1.5, nan]
    """
    import pandas as pd

    if type is None:
        return values
    cells = read_cells(values, type)
    given: dict[str, Any] = {"index": values.index, "name": values.name}
    unread = np.isnan(cells.numbers) & ~cells.blank
    if type.kind in NUMBERS or (type.kind == ANY and not unread.any()):
        return pd.Series(cells.numbers, dtype=np.float64, **given)
    names = np.array([*cells.names, None], dtype=object)
    return pd.Series(names[cells.codes], dtype=object, **given)


def unfit(values: pd.Series[Any], type: ColumnType) -> int:
    """Return how many cells do not fit a type, and so count as blank. For the owner only."""
    known: dict[tuple[Any, Any], bool] = {}
    count = 0
    for value in values.tolist():
        try:
            key = (value.__class__, value)
            fits = known.get(key)
            if fits is None:
                fits = known[key] = type.fits(value)
        except TypeError:  # lists and dictionaries are not hashable
            fits = type.fits(str(value))
        count += not fits
    return count
