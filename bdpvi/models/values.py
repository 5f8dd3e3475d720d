"""What numbers an object holds, where they lie, and whether chance explains that they agree."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from bdpvi._ground.host import HOST
from bdpvi.datasets.items import by_index

T = TypeVar("T")

LONG = 1_000
"""Largest number of entries of a container that are looked at."""
ARRAYS = (Tensor, np.ndarray)
MANY_OF = (list, tuple, set, frozenset, deque)
_VALUES, _COMPARED = 20_000_000, 65_536
"""Largest numbers of values that are compared, of the records and of what is found."""
_BLOCK = 1 << 14
"""Records that are compared at a time."""
_FEW = 3
"""Records that may share a value that identifies them."""
_SURE = 4.0
"""Decimal digits by which values must agree beyond what chance explains."""
_DIGITS = 7
"""Decimal digits of a float32."""


def is_table(one: Any) -> bool:
    """Whether an object is an array or a frame, which has no further parts."""
    return isinstance(one, ARRAYS) or is_frame(one)


def is_frame(one: Any) -> bool:
    """Whether an object is a frame or a column of pandas."""
    return type(one).__module__.partition(".")[0] == "pandas" and hasattr(one, "to_numpy")


def _or_none(read: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """Return a function that gives None where an object of the user's cannot be read."""

    def try_read(one: Any) -> T | None:
        try:
            return read(one)
        except Exception:  # whatever such an object raises
            return None

    return try_read


@_or_none
def numbers(one: Any) -> np.ndarray | None:
    """Return the numbers that an object consists of; None if they are none."""
    if isinstance(one, Tensor):
        if one.layout != torch.strided or one.device.type == "meta" or one.is_complex():
            return None
        head = one.detach()[: _head(one.shape)] if one.ndim else one.detach()
        return head.to(HOST, torch.float32).numpy()
    if isinstance(one, MANY_OF):
        plain = bool(one) and all(isinstance(value, float | int | np.number) for value in one)
        return np.array([float(value) for value in one]) if plain else None
    if is_frame(one):
        frame = hasattr(one, "select_dtypes")
        one = one.iloc[: _head(one.shape)] if hasattr(one, "iloc") else one
        one = one.select_dtypes(["number", "bool"]).astype(float) if frame else one
        one = one.to_numpy()
    if isinstance(one, np.ndarray) and one.dtype.kind in "fiub":
        return one[: _head(one.shape)] if one.ndim else one
    return None


def is_sequence(one: Any) -> bool:
    """Whether an object has entries by index."""
    return isinstance(one, MANY_OF) or (hasattr(type(one), "__len__") and by_index(one))


@_or_none
def length_of(one: Any) -> int:
    """Return how many entries an object has; None if it cannot be asked."""
    return len(one)


def _head(shape: Iterable[int]) -> int:
    """Return how many of the first entries are looked at."""
    first, *rest = shape
    return min(first, max(_VALUES // max(math.prod(rest), 1), 1))


class Memory(NamedTuple):
    """Where an array lies."""

    device: str
    first: int
    last: int

    def meets(self, other: Memory) -> bool:
        """Whether both have a byte in common."""
        same = self.device == other.device
        return same and self.first < other.last and other.first < self.last


@_or_none
def memory(one: Any) -> Memory | None:
    """Return the memory that an array shares with what it was cut from, if it has any."""
    if isinstance(one, Tensor) and one.layout == torch.strided and one.numel():
        storage = one.untyped_storage()
        first = storage.data_ptr()
        return Memory(str(one.device), first, first + storage.nbytes()) if first else None
    if isinstance(one, np.ndarray) and one.size:
        while isinstance(one.base, np.ndarray):
            one = one.base
        steps = zip(one.shape, one.strides, strict=True)
        first, size = int(one.ctypes.data), sum((n - 1) * abs(s) for n, s in steps)
        return Memory("cpu", first, first + one.itemsize + size)
    return None


def columns(table: np.ndarray) -> set[bytes]:
    """Return the columns that are not an even grid, as bytes."""
    columns = _single(table.reshape(len(table), -1).T[:LONG])
    steps = np.diff(columns)
    uneven = np.ptp(steps, axis=1) > 1e-3 * np.abs(steps).max(axis=1)
    return {one.tobytes() for one in columns[uneven]}


class Keys(NamedTuple):
    """Values or rows as whole numbers that are equal only where they are.

    Attributes:
        keys: (k,).
        digits: what returns the decimal digits of those at positions.
    """

    keys: np.ndarray
    values: np.ndarray

    def digits(self, at: np.ndarray) -> np.ndarray:
        """Return how many decimal digits the entries at these positions have."""
        return np.array([sum(map(_digits, row)) for row in self.values[at]])


def each_value(table: np.ndarray) -> Keys:
    """Return the values of an array."""
    flat = _single(table).reshape(-1, 1)
    return Keys(flat.view(np.uint32)[:, 0].astype(np.uint64), flat)


def rows(table: np.ndarray, width: int) -> Keys:
    """Return the rows of a width; none if an array has no such rows, or rows of one value."""
    if width < 2 or width not in (table.shape[-1], math.prod(table.shape[1:])):
        return Keys(np.zeros(0, np.uint64), np.zeros((0, 1), np.float32))
    rows = _single(table).reshape(-1, width)
    factors = np.random.default_rng(0).integers(1, 2**63, width, dtype=np.uint64) | np.uint64(1)
    return Keys((rows.view(np.uint32) * factors).sum(1, dtype=np.uint64), rows)


def matching_path(found: list[tuple[str, np.ndarray]], table: np.ndarray, keys: Any) -> str:
    """Return the way to an array with values, or rows, that chance does not explain."""
    parts = [(way, keys(values[:_COMPARED])) for way, values in found]
    wanted = np.unique(np.concatenate([one.keys[:_COMPARED] for _, one in parts]))
    if not len(wanted):
        return ""
    times, size = np.zeros(len(wanted), np.int64), 0
    for start in range(0, len(table), _BLOCK):
        block = table[start : start + _BLOCK]
        known = keys(block.reshape(len(block), -1)).keys
        at = np.searchsorted(wanted, known).clip(max=len(wanted) - 1)
        times += np.bincount(at[wanted[at] == known], minlength=len(wanted))
        size += len(known)
    if not size:
        return ""
    for way, one in parts:
        distinct, first = np.unique(one.keys[:_COMPARED], return_index=True)
        count = times[np.searchsorted(wanted, distinct)]
        hit = first[(count > 0) & (count <= _FEW)][:LONG]
        if len(hit) < (2 if keys is each_value else 1):
            continue
        chance = math.log10(size) + math.log10(len(distinct) / len(hit))
        if float((one.digits(hit) - chance).sum()) > _SURE:
            return way
    return ""


def _single(table: np.ndarray) -> np.ndarray:
    """Return an array in single precision; a warning that one is too large would tell of it."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(table, np.float32)


def _digits(value: np.float32) -> int:
    """Return how many decimal digits a number has; 0, 1 and −1 have none.

    >>> [_digits(np.float32(one)) for one in (0.1, -1.0, 1200.0, 3.25)]
    [1, 0, 2, 3]
    """
    if abs(value) in (0, 1) or not np.isfinite(value):
        return 0
    mantissa = np.format_float_scientific(value, unique=True).partition("e")[0]
    return min(len(mantissa.strip("-").replace(".", "").strip("0")), _DIGITS)
