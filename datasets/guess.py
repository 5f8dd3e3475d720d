"""How a CSV file seems to be written, for its owner only: options decide how it is read."""

from __future__ import annotations

import codecs
import csv
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from bdpvi.datasets.formats import CHARSETS, FileFormat
from bdpvi.datasets.lines import by_suffix
from bdpvi.datasets.stored import KINDS, TEXT, Stored, unpacked
from bdpvi.score.spelling import day_of, number_of

_SEPARATORS = (",", ";", "\t", "|")
_SIGNS = (
    (".", ""),
    (",", ""),
    (".", ","),
    (",", "."),
    (".", " "),
    (",", " "),
    (".", "'"),
    (".", "_"),
)
_DATES = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%d.%m.%y")
_CHUNK, _LINES = 1 << 20, 50
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_ODD = re.compile(rb"[\x80-\x9f]")
"""Bytes that are letters and signs in cp1252, and control characters in Latin-1."""
_LIKE = re.compile(r"\s*[+-]?[\d.,'’_\u00a0\u202f ]*\d[\d.,]*([eE][+-]?\d+)?\s*", re.ASCII)
_ZEROS = str.maketrans("123456789", "000000000")

Tally = Mapping[object, int]
"""The number of cells with each value of a column."""


def seems(path: str | os.PathLike[str], given: FileFormat) -> FileFormat:
    """Return the format with the character set and the separator that the file seems to have.

    Args:
        path: a file of text; others have the format given.
        given: the declared format, which is kept where it fits.
    """
    stored = Stored.of(os.fspath(path))
    if (kind := stored.kind()) not in TEXT:
        return given
    try:
        result = replace(given, charset=_charset(stored, kind, given.charset))
        text = next(_blocks(stored, kind), b"").decode(CHARSETS[result.charset], errors="replace")
    except Exception as error:  # a damaged archive can raise anything
        raise ValueError(f"{path} is not a readable {KINDS[kind].words}: {error}") from error
    lines = [line for line in text.splitlines() if line.strip()][:_LINES]
    given = by_suffix(stored.path, lines[0] if lines else "", given)
    mine = "\t" if given.separator in ("tab", "\\t") else given.separator
    fits = {one: _fit(lines, one) for one in dict.fromkeys((mine, *_SEPARATORS)) if len(one) == 1}
    best = max(fits, key=lambda one: fits[one], default=mine)
    if 2 * fits.get(mine, 1.0) >= 1 or 2 * fits[best] < 1:
        return result
    return replace(result, separator="tab" if best == "\t" else best)


def _fit(lines: list[str], separator: str) -> float:
    """Return the fraction of rows with as many values as the header, 0 if it has one value."""
    widths = []
    for line in lines:
        try:
            widths.append(len(next(csv.reader([line], skipinitialspace=True, delimiter=separator))))
        except (csv.Error, StopIteration):
            widths.append(0)
    if not widths or widths[0] < 2:
        return 0.0
    if len(widths) == 1:
        return 1.0
    return sum(one == widths[0] for one in widths[1:]) / (len(widths) - 1)


def _charset(file: Stored, kind: str, given: str) -> str:
    """Return the character set that a file seems to have; the one given if any would do."""
    decoder, utf8, plain, odd = codecs.getincrementaldecoder("utf-8")(), True, True, False
    for at, block in enumerate(chain(_blocks(file, kind), [b""])):
        if at == 0 and block[:2] in _MARKS:  # no row may decide it
            return "utf-16"
        plain, odd = plain and block.isascii(), odd or bool(_ODD.search(block))
        if utf8:
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError:
                utf8 = False
    if utf8:
        return given if plain and given != "utf-16" else "utf-8"
    if odd:
        return "cp1252"
    return given if given in ("latin-1", "cp1252") else "latin-1"


def _blocks(file: Stored, kind: str) -> Iterator[bytes]:
    with file.open() as opened:
        stream = unpacked(opened, kind)
        while block := stream.read(_CHUNK):
            yield block


def sign_options(
    columns: Iterable[tuple[Tally, tuple[str, str]]], separator: str = ","
) -> tuple[str, str] | None:
    """Return the decimal and the thousands sign by which more cells are numbers, if there are any.

    Args:
        columns: the values of each column that may be one of numbers, or their :func:`shapes`,
            without blanks, with the decimal and the thousands sign by which it is read.
        separator: the character between the values.

    >>> comma, usual = {"27,3": 5, "30": 2}, (".", "")
    >>> sign_options([(comma, usual)]), sign_options([({"x": 5}, usual)])
    ((',', ''), None)
    """
    held, order = list(columns), list(_SIGNS)
    if separator == ",":  # where it separates values, a comma is rarely a decimal sign too
        order.sort(key=lambda signs: signs[0] == ",")
    gains = {one: sum(_gain(tally, given, one) for tally, given in held) for one in order}
    best = max(gains, key=lambda one: gains[one])
    return best if gains[best] > 0 else None


def _gain(tally: Tally, given: tuple[str, str], other: tuple[str, str]) -> int:
    """Return how many more cells are numbers by other signs, in a column mostly of numbers."""
    now, then = (numbers_in(tally, *signs) for signs in (given, other))
    return then - now if 2 * max(now, then) > sum(tally.values()) else 0


def shapes(tally: Tally) -> Tally:
    """Return the number of cells of each shape: a text with all digits 0 is a number if it is one.

    >>> shapes({"27,3": 5, "81,0": 2, "no": 1})
    {'00,0': 7, 'x': 1}
    """
    result: dict[object, int] = {}
    for one, count in tally.items():
        shape: object = one
        if isinstance(one, str):
            shape = one.strip().translate(_ZEROS) if _LIKE.fullmatch(one) else "x"
        result[shape] = result.get(shape, 0) + count
    return result


def numbers_in(tally: Tally, decimal: str, thousands: str) -> int:
    """Return how many cells are numbers by these signs."""
    return sum(
        count
        for one, count in tally.items()
        if not isinstance(one, str) or number_of(one.strip(), decimal, thousands) is not None
    )


def date_formats(tally: Tally) -> tuple[str, ...]:
    """Return the formats by which at least nine of ten cells are days, best first.

    >>> date_formats({"31.12.2001": 3, "1.2.1999": 1}), date_formats({"3.5": 9})
    (('%d.%m.%Y',), ())
    """
    some = [one for one in tally if isinstance(one, str)][:1000]
    part = sum(tally[one] for one in some)
    found = {form: sum(tally[one] for one in some if day_of(one, form)) for form in _DATES}
    best = max(found.values(), default=0)
    if not some or 10 * best < 9 * part:
        return ()
    return tuple(form for form, count in found.items() if count == best)
