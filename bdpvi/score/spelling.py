"""The canonical text of a cell, and the number or the day that a text is.

Each function depends on its arguments alone: no other cell, no dtype and no file has a say.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

BLANKS = frozenset(
    {"", "na", "n/a", "#n/a", "#na", "<na>", "nan", "-nan", "null", "none", "nat", "?", "-", "."}
)
"""Texts, in lower case, that mean a missing value."""
EXACT = "\ue000"
"""Precedes a typed number with a fraction, and a typed day: a column's signs are not for them."""
BEYOND = f"{EXACT}beyond the calendar"
"""The text of a typed time that Python's calendar does not have."""
INEXACT = "≈"
"""Precedes a float of 2⁵³ or more: it stands for several whole numbers, and is no name of one."""
SPACE = "".join(one for one in map(chr, range(0x3001)) if one.isspace()) + "\ufeff"
_LONGEST, _DIGITS, _ALIKE = 200, 3000, 2.0**53
_GROUPS = {"": "", " ": "[ \u00a0\u202f]", "'": "['\u2019]"}
_DAY = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[ T].*)?", re.ASCII | re.DOTALL)
_INSTANT = re.compile(
    r"(\d{4})-(\d\d?)-(\d\d?)(?:[ T](\d\d?):(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?"
    r" ?(?:Z|([+-])(\d\d):?(\d\d)(?::?(\d\d))?)?",
    re.ASCII,
)


def spell(cell: object) -> str | None:
    """Return a cell's exact text, equal for equal values in any carrier; None for a null.

    >>> spell(7), spell(np.int64(7)), spell(Decimal("7.0")), spell(7.0), spell(" 7 ")
    ('7', '7', '7', '7', '7')
    >>> spell(2**53 + 1), spell(float(2**53)), spell(float("nan"))
    ('9007199254740993', '≈9007199254740992', None)
    """
    if isinstance(cell, str):
        return (cell if cell.isascii() else _valid(cell)).strip(SPACE)
    if isinstance(cell, np.generic):
        cell = _usual(cell)
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(cell, bool):
        return str(cell)
    if isinstance(cell, int):
        return str(int(cell)) if cell.bit_length() < 3 * _DIGITS else hex(cell)
    if isinstance(cell, float):
        if not math.isfinite(cell):
            return None if math.isnan(cell) else f"{EXACT}{float(cell)}"
        return (INEXACT if abs(cell) >= _ALIKE else "") + _typed(digits(repr(float(cell))), cell)
    if isinstance(cell, complex):
        return spell(cell.real) if not cell.imag else str(complex(cell))
    if isinstance(cell, Decimal):
        if not cell.is_finite():
            return None if cell.is_nan() else f"{EXACT}{float(cell)}"
        text = format(cell, "f") if abs(cell.adjusted()) < _DIGITS else str(cell)
        whole, _, part = text.partition(".")
        return (whole if cell else "0") if not part.strip("0") else EXACT + digits(text)
    if isinstance(cell, bytes | bytearray | memoryview):
        return bytes(cell).decode(errors="backslashreplace").strip(SPACE)
    return _of_time(cell) if isinstance(cell, date | time | timedelta) else _of_other(cell)


def _usual(cell: np.generic) -> object:
    """Return a NumPy scalar as Python's own."""
    if isinstance(cell, np.floating):
        return float(cell)
    if isinstance(cell, np.datetime64 | np.timedelta64):
        kind = "M8[us]" if isinstance(cell, np.datetime64) else "m8[us]"
        made = cell.astype(kind).item()
        return BEYOND if isinstance(made, int) else made
    return complex(cell) if isinstance(cell, np.complexfloating) else cell.item()


def _typed(text: str, number: float) -> str:
    return text if abs(number) >= _ALIKE or text.lstrip("-").isdigit() else EXACT + text


def _of_time(cell: date | time | timedelta) -> str:
    if isinstance(cell, timedelta):
        seconds = digits(f"{cell // timedelta(microseconds=1)}e-6")
        return _typed(seconds, 0.0)
    if isinstance(cell, datetime):
        at = (cell.year, cell.month, cell.day, cell.hour, cell.minute, cell.second)
        try:  # without nanoseconds
            cell = datetime(*at, cell.microsecond, cell.tzinfo, fold=cell.fold)
        except ValueError:
            return BEYOND
        midnight = cell.tzinfo is None and cell.time() == time()
        return EXACT + (cell.date().isoformat() if midnight else cell.isoformat(" "))
    return cell.isoformat() if isinstance(cell, time) else EXACT + cell.isoformat()


def _of_other(cell: object) -> str:
    """Return nested values as JSON, others as their text, or the name of their class."""

    def inner(one: object) -> Any:
        if isinstance(one, np.ndarray):
            return one.tolist()
        if isinstance(one, np.generic | date | time | timedelta | Decimal | bytes):
            return spell(one)
        return f"<{type(one).__name__}>"

    try:
        if isinstance(cell, list | tuple | dict | np.ndarray):
            text = json.dumps(cell, default=inner, sort_keys=True, ensure_ascii=False)
        else:
            text = str(cell)
    except Exception:  # whatever a class of others may raise
        text = ""
    if not text or isinstance(cell, set | frozenset) or " at 0x" in text:
        text = f"<{type(cell).__name__}>"  # an order or an address that differs between runs
    return _valid(text).strip(SPACE)


def _valid(text: str) -> str:
    """Return a text without halves of a character, which no file can hold."""
    return text.encode(errors="backslashreplace").decode()


def digits(number: str) -> str:
    """Return a decimal number in one spelling.

    >>> digits("1.50"), digits("+15e-1"), digits("-0"), digits("007"), digits("1e300")
    ('1.5', '1.5', '0', '7', '1e300')
    """
    sign = "-" if number[0] == "-" else ""
    usual, _, power = number.lstrip("+-").lower().partition("e")
    whole, _, part = usual.partition(".")
    if power or len(number) > 30:
        every = (whole + part).lstrip("0")
        kept = every.rstrip("0")
        if not kept:
            return "0"
        if len(power) > 9:
            return number.lower()
        exponent = int(power or 0) - len(part) + len(every) - len(kept)
        size = len(kept) + exponent
        if not -30 < size <= 40:
            return f"{sign}{kept}e{exponent}"
        filled = kept + "0" * exponent if exponent >= 0 else "0" * -size + kept
        whole, part = filled[: max(size, 0)], filled[max(size, 0) :]
    whole, part = whole.lstrip("0") or "0", part.rstrip("0")
    text = f"{whole}.{part}" if part else whole
    return text if text == "0" else sign + text


def printable_label(text: str) -> str:
    """Return the label of a text: at most 200 printable characters, the last a digest of more."""
    made = text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)
    if len(text) <= _LONGEST:
        return made
    return f"{made[:183]}…{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:16]}"


def number_of(text: str, decimal: str = ".", thousands: str = "", symbol: str = "") -> float | None:
    """Return the finite number that a text is, None if it is none.

    >>> number_of("1.234,5", ",", "."), number_of("1.2", ","), number_of("1,23", ".", ",")
    (1234.5, None, None)
    >>> [number_of(one, ".", ",", "$") for one in ("$2,519", "-$5", "($5)", "5 $", "€5")]
    [2519.0, -5.0, -5.0, 5.0, None]
    """
    plain = plain_of(text, decimal, thousands, symbol)
    number = math.inf if plain is None else float(plain)
    return number if math.isfinite(number) else None


def plain_of(text: str, decimal: str = ".", thousands: str = "", symbol: str = "") -> str | None:
    """Return the number that a text is in Python's spelling, None if it is none."""
    sign = ""
    if text[:1] in (EXACT, INEXACT):
        text, decimal, thousands = text[1:], ".", ""
    elif symbol:
        if text[:1] == "(" and text[-1:] == ")":  # a loss, as accountants write it
            sign, text = "-", text[1:-1]
        elif text[:1] in ("+", "-") and text[1:].lstrip(SPACE).startswith(symbol):
            sign, text = text[0], text[1:].lstrip(SPACE)
        text = text.removeprefix(symbol).removesuffix(symbol).strip(SPACE)
        if sign and text[:1] in ("+", "-"):
            return None
    if not pattern(decimal, thousands).fullmatch(text):
        return None
    if thousands:
        text = re.sub(group(thousands), "", text)
    return sign + (text if decimal == "." else text.replace(decimal, "."))


@lru_cache(maxsize=64)
def pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    """Return the pattern of a number with these signs."""
    whole = r"\d+" + (rf"|\d{{1,3}}(?:{group(thousands)}\d{{3}})+" if thousands else "")
    sign = re.escape(decimal)
    return re.compile(rf"[+-]?(?:(?:{whole})(?:{sign}\d*)?|{sign}\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def group(thousands: str) -> str:
    """Return the pattern of the sign between groups of three digits."""
    return _GROUPS.get(thousands, re.escape(thousands))


def day_of(text: str, date_format: str | None) -> date | None:
    """Return the day that a text is, None if it is none.

    >>> day_of("1970-01-02 10:00", None), day_of("2.1.1970", "%d.%m.%Y")
    (datetime.date(1970, 1, 2), datetime.date(1970, 1, 2))
    """
    try:
        if date_format and text[:1] != EXACT:
            return datetime.strptime(text, date_format).date()
        found = _DAY.fullmatch(text.removeprefix(EXACT))
        return None if found is None else date(*map(int, found.groups()))
    except (ValueError, re.error):
        return None


def instant_of(text: str, date_format: str | None, zone: str | None) -> datetime | None:
    """Return the instant that a text is, in UTC, None if it is none.

    >>> str(instant_of("2020-07-01 09:00", None, "Europe/Berlin"))
    '2020-07-01 07:00:00+00:00'
    """
    try:
        if date_format and text[:1] != EXACT:
            made = datetime.strptime(text, date_format)
        elif (found := _INSTANT.fullmatch(text.removeprefix(EXACT))) is None:
            return None
        else:
            *at, part, sign, hours, minutes, seconds = found.groups()
            year, month, day, hour, minute, second = (int(one or 0) for one in at)
            micro = int(((part or "") + "000000")[:6])
            made = datetime(year, month, day, hour, minute, second, micro)
            if sign or text.endswith("Z"):
                past = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
                past += timedelta(seconds=int(seconds or 0))
                made = made.replace(tzinfo=timezone(-past if sign == "-" else past))
        made = made if made.tzinfo else made.replace(tzinfo=ZoneInfo(zone or "UTC"))
        return made.astimezone(timezone.utc)
    except (ValueError, OverflowError, re.error):
        return None
