"""Whose rows a table holds, in whatever path, format, object and order they are given. Secret.

A hash of each row does not depend on the names and the order of columns: a number is hashed by its
double, another cell by its text. The sum of all is the table's digest; the smallest are a sample of
its rows, and so of the values of each column that names records (Broder, "On the resemblance and
containment of documents", SEQUENCES 1997). What is stored is hashed again, under a ledger's key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bdpvi.datasets.cells import array_of, coded, numbers_of
from bdpvi.datasets.digests import Bits, of_texts
from bdpvi.datasets.records import sum_of_results
from bdpvi.score.spelling import BLANKS, EXACT, INEXACT, SPACE

if TYPE_CHECKING:
    import pandas as pd

Counts = tuple[float, Mapping[str, int]]
"""The share of all hashes that a sample would have, and counts by hash."""
_ROWS, _VALUES = 256, 64
"""The most hashes in a sample of rows, and of a column's values."""
_LEAST = 8
"""The fewest hashes that two samples must share."""
_NAMES = 0.9
"""The least share of different values in what names records."""
_PROBE = 512
"""Cells of a block that show whether a column repeats its values, or has none but numbers."""
_FEW = 32
"""The hashes of so few different texts are kept for the next block."""
_CACHED = 1 << 12
"""Hashes that are mixed at once: they fit in a processor's cache."""
_CHANCE = 1e-6
"""The largest chance that rows of other people agree as much."""
_BLANK = np.uint64(0x7FF8DEADDEADBEEF)
_DAY = r"^\d{4}-\d\d-\d\d"
_TIME = r"^(\d{4}-\d\d-\d\d)[t ](\d\d:\d\d:\d\d)(?:(\.\d*[1-9])0*|\.0*)?$"


@dataclass(frozen=True, eq=False)
class Sample:
    """The smallest different hashes of some values.

    Attributes:
        most: the most that are kept.
        cells: the number of values.
        low, high: the smallest and the largest, if all are whole numbers; else infinite.
        hashes: sorted.
        counts: how often each occurs.
    """

    most: int
    cells: int
    low: float
    high: float
    hashes: Bits
    counts: Any

    @classmethod
    def of(cls, hashes: Bits, most: int, low: float = -np.inf, high: float = np.inf) -> Sample:
        """Return the sample of some hashes."""
        some = hashes
        if len(hashes) > 4 * most:  # about as many are below it, if they differ
            some = hashes[hashes <= np.uint64(4 * most * 2**64 // len(hashes))]
        found, counts = np.unique(some, return_counts=True)
        if len(found) < most and len(some) < len(hashes):
            found, counts = np.unique(hashes, return_counts=True)
        return cls(most, len(hashes), low, high, found[:most], counts[:most])

    def __add__(self, other: Sample) -> Sample:
        found, at = np.unique(np.append(self.hashes, other.hashes), return_inverse=True)
        counts = np.bincount(at, np.append(self.counts, other.counts), len(found)).astype(int)
        return Sample(
            self.most,
            self.cells + other.cells,
            min(self.low, other.low),
            max(self.high, other.high),
            found[: self.most],
            counts[: self.most],
        )

    @property
    def names(self) -> bool:
        """Whether nearly all values differ, and are not 1 to N in any order."""
        places = self.high - self.low < 2 * self.cells
        return bool(len(self.hashes) >= max(_LEAST, _NAMES * self.counts.sum()) and not places)

    @property
    def reach(self) -> float:
        """The share of all hashes, rounded up, that would be in the sample."""
        whole = len(self.hashes) < self.most
        return 1.0 if whole else (int(self.hashes[-1] >> np.uint64(48)) + 1) / 2**16

    def sealed(self, key: bytes) -> Counts:
        """Return the reach, and the counts by hash under a key, in the order of the hashes."""
        pairs = zip(self.hashes.tolist(), self.counts.tolist(), strict=True)
        return self.reach, {_sealed(one, key): count for one, count in pairs}


@dataclass(frozen=True)
class Sealed:
    """An identity as it is stored: comparable with others under its key alone.

    Attributes:
        digest: of all rows.
        rows: the number of rows.
        names: whether rows differ, so that they can be told apart.
        samples: of rows, and of columns that name records: reach, and counts by hash.
    """

    digest: str
    rows: int
    names: bool
    samples: Sequence[Counts] = field(repr=False)

    def equals(self, other: Sealed) -> bool:
        """Return whether both have the same rows, and any."""
        return self.digest == other.digest and self.rows > 0

    def shares(self, other: Sealed) -> bool:
        """Return whether more than half of the smaller table seems to be in the other."""
        (rows, *columns), (others, *more) = self.samples, other.samples
        known = _overlap if self.names and other.names else _alike
        return known(rows, others) or any(
            _overlap(column, two) for column in columns for two in more
        )


@dataclass(frozen=True, eq=False)
class Identity:
    """Whose rows a table holds; the identity of blocks is the sum of theirs.

    Attributes:
        digest: the sum of the hashes of all rows.
        rows: the smallest hashes of rows.
        columns: those of each column's values, by its place.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"id": [f"p{n}" for n in range(20)], "kg": [70.5, 81] * 10})
    >>> texts = frame[["kg", "id"]].iloc[::-1].astype(str)
    >>> one, other = (Identity.of(each).sealed(b"key") for each in (frame, texts))
    >>> one.equals(other), one.equals(Identity.of(frame[1:]).sealed(b"key"))
    (True, False)
    >>> one.shares(Identity.of(frame[1:]).sealed(b"key"))
    True
    """

    digest: int
    rows: Sample
    columns: Mapping[int, Sample]

    @classmethod
    def of(
        cls, frame: pd.DataFrame, signs: tuple[str, str] = (".", ""), unit: str = ""
    ) -> Identity:
        """Return the identity of some rows.

        Args:
            frame: the rows.
            signs: the decimal sign of numbers in text, and that between thousands.
            unit: the column of persons, if any: each is sampled once, however many rows they have.
        """
        rows, columns = np.zeros(len(frame), np.uint64), {}
        for at, (name, values) in enumerate(frame.items()):
            each, numbers, places = _hashes(array_of(values), *signs)
            rows += each
            known = each != _NONE
            some = each if known.all() else each[known]
            columns[at] = _values(np.unique(some) if name == unit else some, numbers, places)
        rows = _mixed(rows)
        return cls(int(rows.sum(dtype=np.uint64)), Sample.of(rows, _ROWS), columns)

    def __add__(self, other: Identity) -> Identity:
        digest = (self.digest + other.digest) % 2**64
        return Identity(digest, self.rows + other.rows, sum_of_results(self.columns, other.columns))

    def sealed(self, key: bytes) -> Sealed:
        """Return it under a key."""
        samples = [self.rows, *(column for column in self.columns.values() if column.names)]
        return Sealed(
            _sealed(self.digest, key),
            self.rows.cells,
            self.rows.names,
            [sample.sealed(key) for sample in samples],
        )


def _values(hashes: Bits, numbers: Any, places: Any) -> Sample:
    """Return the sample of a column's values, one value if it repeats them."""
    probe = hashes[:: len(hashes) // _PROBE + 1]
    if len(np.unique(probe)) < _NAMES * len(probe):
        count = len(hashes)
        one = np.zeros(1, np.uint64)  # the smallest hash there is: kept in any sum
        return Sample(_VALUES, count, -np.inf, np.inf, one, np.array([count]))
    known = numbers[places]
    known = known[~np.isnan(known)]
    if len(known) < len(hashes) or (np.rint(known) != known).any():
        return Sample.of(hashes, _VALUES)
    return Sample.of(hashes, _VALUES, known.min(initial=np.inf), known.max(initial=-np.inf))


def _hashes(array: Any, decimal: str, thousands: str) -> tuple[Bits, Any, Any]:
    """Return a hash of each cell, one for equal values; numbers, NaN for what is none; and where
    each cell's is."""
    import pyarrow
    from pyarrow import types

    kind = array.type
    if types.is_integer(kind) or types.is_floating(kind):
        numbers = array.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        if types.is_integer(kind) or not np.isinf(numbers).any():
            return _mixed(_doubles(numbers)), numbers, slice(None)
    if types.is_timestamp(kind) and kind.tz is None:
        array = array.cast(pyarrow.timestamp("us"), safe=False).cast(pyarrow.string())
    elif types.is_date(kind):
        array = array.cast(pyarrow.date32()).cast(pyarrow.string())
    elif (decimal, thousands) == (".", "") and (found := _all_numbers(array)) is not None:
        return _mixed(_doubles(found)), found, slice(None)
    levels, at = coded(array)
    if len(levels) < _FEW:
        names = [*levels.to_pylist(), None]
        known = _of_few(frozenset(names), decimal, thousands)
        bits = np.array([known[name][0] for name in names], np.uint64)
        numbers = np.array([known[name][1] for name in names])
    else:
        bits, numbers = _of_levels(levels, decimal, thousands)
    return bits[at], numbers, at


@lru_cache(maxsize=64)
def _of_few(
    levels: frozenset[str | None], decimal: str, thousands: str
) -> dict[str | None, tuple[int, float]]:
    """Do :func:`_of_levels` once for all blocks."""
    import pyarrow

    names = [*levels]
    found = _of_levels(pyarrow.array(names, pyarrow.large_string()), decimal, thousands)
    return dict(zip(names, zip(*(each.tolist() for each in found), strict=True), strict=False))


def _of_levels(levels: Any, decimal: str, thousands: str) -> tuple[Bits, Any]:
    """Return hashes and numbers of different texts, and at the end, for -1, of a blank."""
    import pyarrow
    from pyarrow import compute

    levels = pyarrow.concat_arrays([levels, pyarrow.nulls(1, levels.type)])
    levels = compute.utf8_ltrim(compute.utf8_lower(levels), EXACT + INEXACT)
    if compute.any(compute.match_substring_regex(levels, _DAY)).as_py():
        levels = compute.replace_substring_regex(levels, _TIME, r"\1 \2\3")
        levels = compute.replace_substring_regex(levels, f"({_DAY}) 00:00:00$", r"\1")
    numbers = numbers_of(levels, decimal, thousands)
    bits, known = of_texts(levels), np.isfinite(numbers)
    bits[known] = _doubles(numbers[known])
    blanks = pyarrow.array([None, *sorted(BLANKS)], levels.type)
    bits[compute.is_in(levels, blanks).to_numpy(False)] = _BLANK
    numbers[~known] = np.nan
    return _mixed(bits), numbers


def _doubles(numbers: Any) -> Bits:
    """Return the bits of doubles, one zero and one blank.

    A fraction is rounded to 44 of its 52 binary digits: parsers, such as those of pandas 2 and of
    Arrow, differ in the last one.
    """
    result: Bits = (numbers + 0.0).view(np.uint64)
    rounded = (result + np.uint64(1 << 7)) & ~np.uint64((1 << 8) - 1)
    result = np.where(np.rint(numbers) == numbers, result, rounded)
    result[np.isnan(numbers)] = _BLANK
    return result


def _all_numbers(array: Any) -> Any:
    """Return the numbers that texts are, NaN for a blank; None if one is anything else, or if a
    part shows that they repeat."""
    import pyarrow
    from pyarrow import compute, types

    probe = array[:: len(array) // _PROBE + 1]
    text = types.is_string(array.type) or types.is_large_string(array.type)
    if not text or compute.count_distinct(probe).as_py() < _NAMES * len(probe):
        return None
    found: Any = None
    try:
        for some in (probe, array):  # other texts take long
            texts = compute.utf8_trim(some, SPACE)
            plain = compute.if_else(compute.equal(texts, ""), None, texts)
            found = compute.cast(plain, pyarrow.float64()).to_numpy(zero_copy_only=False)
    except pyarrow.ArrowInvalid:
        return None
    return None if np.isinf(found).any() else found


def _mixed(bits: Bits) -> Bits:
    """Return 64 well mixed bits of each, written over, one to one (Steele, Lea and Flood, OOPSLA
    2014)."""
    for start in range(0, len(bits), _CACHED):
        some = bits[start : start + _CACHED]
        some += np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            some ^= some >> np.uint64(shift)
            some *= np.uint64(factor)
        some ^= some >> np.uint64(31)
    return bits


_NONE = _mixed(np.array([_BLANK]))[0]


def _sealed(bits: int, key: bytes) -> str:
    return hashlib.blake2b(bits.to_bytes(8, "big"), key=key, digest_size=8).hexdigest()


def _pair(one: Counts, other: Counts) -> list[dict[str, int]]:
    """Return the counts of two samples as far as both reach."""
    reach = min(one[0], other[0])
    return [
        dict([*counts.items()][: round(len(counts) * reach / own)]) for own, counts in (one, other)
    ]


def _overlap(one: Counts, other: Counts) -> bool:
    """Return whether more than half of the smaller table is in the other, by samples of both."""
    first, second = _pair(one, other)
    shared = len(first.keys() & second.keys())
    return shared >= _LEAST and 2 * shared > min(len(first), len(second))


def _alike(one: Counts, other: Counts) -> bool:
    """Return whether two tables with equal rows agree more than those of other people do."""
    first, second = _pair(one, other)
    pairs = [(first.get(k, 0), second.get(k, 0)) for k in {**first, **second}]
    return len(pairs) > 0 and chance(np.array(pairs, float)) < _CHANCE


def chance(pairs: NDArray[np.float64]) -> float:
    """Return the chance that counts in two tables of other people, (m, 2), agree as much.

    For independent samples of one size from one population, sum (a - b)^2 / (a + b) over m kinds of
    rows is nearly chi-squared with m degrees of freedom (Pearson 1900).
    """
    from scipy.special import gammainc  # takes a while to load

    distance = ((pairs[:, 0] - pairs[:, 1]) ** 2 / pairs.sum(1)).sum()
    return float(gammainc(len(pairs) / 2, distance / 2))
