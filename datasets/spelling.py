"""How numbers and days are spelled in a file."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from functools import lru_cache

import numpy as np

from bdpvi._ground import validate
from bdpvi.datasets.cells import text_of

_GROUPS = {"": "", " ": "[ \u00a0\u202f]", "'": "['\u2019]"}
_ISO = "%Y-%m-%d"


def check_signs(decimal: str, thousands: str) -> None:
    """Raise ValueError unless numbers can be written with these signs."""
    validate.choice("decimal", decimal, (".", ","))
    validate.choice("thousands", thousands, ("", ".", ",", " ", "'", "_"))
    if decimal == thousands:
        raise ValueError(f"thousands={thousands!r} is the decimal sign too: is --decimal missing?")


def check_date_format(date_format: str | None) -> None:
    """Raise ValueError unless a day can be written and read in this format."""
    if date_format:
        day = date(2001, 12, 31)
        if day_of(_strftime(day, date_format), date_format) != day:
            raise ValueError(
                f"date_format={date_format!r} must have a year, a month and a day, such as %d.%m.%Y"
            )


def number_of(text: str, decimal: str = ".", thousands: str = "") -> float | None:
    """Return the number that a text is, None if it is none.

    >>> number_of("1.234,5", ",", "."), number_of("1.2", ","), number_of("1,23", ".", ",")
    (1234.5, None, None)
    """
    if not _pattern(decimal, thousands).fullmatch(text):
        return None
    if thousands:
        text = re.sub(_group(thousands), "", text)
    return float(text.replace(decimal, "."))


@lru_cache(maxsize=64)
def _pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    whole = r"\d+" + (rf"|\d{{1,3}}(?:{_group(thousands)}\d{{3}})+" if thousands else "")
    sign = re.escape(decimal)
    return re.compile(rf"[+-]?(?:(?:{whole})(?:{sign}\d*)?|{sign}\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def _group(thousands: str) -> str:
    return _GROUPS.get(thousands, re.escape(thousands))


def day_of(value: object, date_format: str | None) -> date | None:
    """Return the day that a cell is, None if it is none."""
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[D]").item()
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    text = text_of(value)
    if date_format is None and text[10:11] in (" ", "T"):
        text = text[:10]
    try:
        return datetime.strptime(text, date_format or _ISO).date()
    except (ValueError, re.error):
        return None


def _strftime(day: date, date_format: str) -> str:
    try:
        return day.strftime(date_format)
    except ValueError:
        return ""


def later(first: date, days: int) -> date:
    """Return the day so much later, or the first or last that the calendar has."""
    try:
        return first + timedelta(days=days)
    except OverflowError:
        return date.max if days > 0 else date.min
