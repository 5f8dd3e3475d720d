"""Which tables hold the same rows: secret samples of what stands in their columns.

A sample is of hashes under a key of this process: those that are smallest, so that the same values
are sampled in whatever order, type or table they stand (Broder, "On the resemblance and containment
of documents", SEQUENCES 1997). Nothing of it is stored or published.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdpvi._ground.types import PrivacyUtilityWarning

Bits = NDArray[np.uint32]
KEPT = 64
"""Hashes in a sample."""
_COLUMNS, _LEAST = 4, 8
"""The most columns that are sampled one by one, and the fewest hashes that two must share."""
_COMPARED = 512
"""The most columns by which rows are compared, and rows that tell whether a column names them."""
_NAMES = 0.9
"""The least share of different values in a column that names records: of independent records at
most about a tenth then have a value that another such table has, and half is asked for."""
_MANY = 2**15
"""If there are more records, a part of them, chosen by their values, is compared as rows."""
_VARIED, _NOTABLE = 20, 0.01
_KEY = secrets.randbits(128)
_FACTOR = np.uint32(secrets.randbits(32) | 1)


@dataclass(frozen=True, eq=False)
class Sketch:
    """The smallest hashes of a column's values, or of rows.

    Attributes:
        hashes: sorted, each once.
        most: all hashes up to this are in it.
        least: the fewest that two samples must share.
    """

    hashes: NDArray[np.uint32]
    most: int
    least: int

    def shares(self, other: Sketch) -> bool:
        """Return whether more than half of the smaller table is in the other, by the samples."""
        if self.least != other.least:
            return False
        most = min(self.most, other.most)
        one, two = (each.hashes[each.hashes <= most] for each in (self, other))
        shared = len(np.intersect1d(one, two, assume_unique=True))
        return shared >= self.least and 2 * shared > min(len(one), len(two))


def samples_of(parts: Sequence[Any]) -> tuple[Sketch, ...]:
    """Return samples of records: of columns that name them, and of rows where these do not suffice.

    Args:
        parts: arrays, tensors, frames or lists with a row for each record; targets come last.

    >>> x = np.random.default_rng(0).normal(size=(500, 2))
    >>> whole, some = samples_of([x]), samples_of([x[300::-1].tolist(), [0] * 301])
    >>> any(one.shares(two) for one in whole for two in some)
    True
    """
    blocks = [one for one in map(_block, parts) if len(one) and len(one[0])]
    found: list[Sketch] = []
    most, varied = 0, blocks[0][0] if blocks else None
    for column in (one for block in blocks for one in block[:_COMPARED]):
        if len(found) == _COLUMNS:
            break
        some = _different(_bits(column[:_COMPARED]))
        if len(some) > most:
            most, varied = len(some), column
        if len(some) >= _NAMES * len(column[:_COMPARED]) and (made := _sample_of_names(column)):
            found.append(made)
    if varied is not None and (not found or len(varied) <= _MANY):
        rows = _rows(blocks[:-1] or blocks, _some(_bits(varied) * _FACTOR))
        found.append(_sample(_different(rows.astype(np.uint32)), 1))
    return tuple(found)


def copies(parts: Sequence[Any]) -> int:
    """Return how many records are copies of another, where that is no property of a population.

    Tables of categories have equal records by nature. Records count as copies if in every column
    with at least 20 values, and in at least two, most pairs that share the value share everything.

    >>> x = np.random.default_rng(0).normal(size=(60, 2))
    >>> copies([np.tile(x, (5, 1))]), copies([x]), copies([x > 0])
    (240, 0, 0)
    """
    blocks = [one for one in map(_block, parts) if len(one) and len(one[0])]
    if not blocks:
        return 0
    rows = _rows(blocks)
    found, equal = len(rows) - len(_different(rows)), _pairs(rows)
    columns = (_bits(one) for block in blocks for one in block) if found else ()
    varied = [column for column in columns if len(_different(column)) >= _VARIED]
    return found if len(varied) > 1 and all(2 * equal > _pairs(one) for one in varied) else 0


def tell_of_copies(parts: Sequence[Any], stacklevel: int = 3) -> None:
    """Tell the owner how many records are copies, if that is 1 % or more.

    Below it a mean over the records, which an ε that is not worst-case is, moves by less than 1 %
    of its range if each record is counted once.
    """
    count, records = copies(parts), len(parts[0])
    if count and count >= _NOTABLE * records:
        warnings.warn(
            f"for the owner only: {100 * count / records:.3g} % of the records are copies of "
            "others. An ε that is not worst-case assumes independent records: it says nothing of a "
            "person whose record is there several times. Keep one of each, or ask for "
            "guarantee=WorstCaseDP()",
            PrivacyUtilityWarning,
            stacklevel=stacklevel + 1,
        )


def _pairs(values: NDArray[Any]) -> int:
    """Return the number of pairs of equal values."""
    ordered = np.sort(values)
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    counts = np.diff(ends, prepend=-1).astype(float)
    return int((counts * (counts - 1) / 2).sum())


def _different(values: NDArray[Any]) -> NDArray[Any]:
    """Return the different values, sorted; several times as fast as ``np.unique``."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def _sample_of_names(column: NDArray[Any]) -> Sketch | None:
    """Return the sample of a column that names records, if it does."""
    hashes = _bits(column) * _FACTOR
    cut = len(hashes) > KEPT
    smallest = np.partition(hashes, KEPT - 1)[:KEPT] if cut else hashes
    made = _different(smallest)
    names = len(made) >= max(_NAMES * len(smallest), _LEAST)
    return _sample(made, _LEAST, cut) if names else None


def _sample(hashes: NDArray[np.uint32], least: int, cut: bool = False) -> Sketch:
    """Return the sample of different hashes, which are sorted."""
    kept = hashes[:KEPT]
    whole = len(kept) == len(hashes) and not cut
    return Sketch(kept, 2**32 - 1 if whole else int(kept[-1]), least)


def _some(hashes: Bits) -> Any:
    """Return which rows to compare: all, or of many those of the smallest hashes."""
    if len(hashes) <= _MANY:
        return slice(None)
    return np.flatnonzero(hashes <= np.partition(hashes, _MANY)[_MANY])[: 2 * _MANY]


def _rows(blocks: Sequence[Sequence[NDArray[Any]]], at: Any = slice(None)) -> NDArray[np.uint64]:
    """Return a hash of each row, (N,): a sum of the bits of all columns times random numbers."""
    random = np.random.default_rng(_KEY)
    found = np.zeros(len(blocks[0][0][at]), np.uint64)
    for block in blocks:
        for column in block[:: -(-len(block) // _COMPARED)]:
            factor = random.integers(1, 2**63, dtype=np.uint64)
            found += (_bits(column[at]).astype(np.uint64) + np.uint64(1)) * factor
        found ^= found >> np.uint64(32)
        found *= np.uint64(0x9E3779B97F4A7C15)
    return found ^ (found >> np.uint64(32))


def _block(part: Any) -> Sequence[NDArray[Any]]:
    """Return the columns of a part."""
    if hasattr(part, "detach"):
        part = part.detach().cpu()
        part = (part if part.dtype.itemsize > 2 else part.float()).numpy()
    if hasattr(part, "columns"):
        return [part.iloc[:, at].to_numpy() for at in range(len(part.columns))]
    values = np.asarray(part)
    return [*values.reshape(len(values), -1).T] if values.size else []


def _bits(column: NDArray[Any]) -> Bits:
    """Return a column's numbers in float32, as bits; a text that is a number is that number."""
    if column.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            return (column.astype(np.float32) + np.float32(0)).view(np.uint32)  # −0 becomes 0
    import pandas as pd

    places, different = pd.factorize(column.astype(object))
    texts = [str(one).strip() for one in different]
    numbers = pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce").to_numpy(float)
    hashes = np.array([hash(text) & 0xFFFFFFFF for text in texts], np.uint32)
    known = np.where(np.isnan(numbers), hashes, _bits(numbers))
    return np.append(known, np.uint32(0))[places].astype(np.uint32)
