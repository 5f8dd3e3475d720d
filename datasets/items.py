"""Records as callers give them: in pairs, or by index, as a torch map-style ``Dataset``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from bdpvi._ground.halving import by_halves
from bdpvi._ground.outputs import several

_AT_ONCE = 1024
"""Records of a block, which is read item by item."""
_FIRST = 256
"""Records by which they are known again, which are read once."""
_NESTED = (Tensor, np.ndarray, tuple, list, str, bytes, Mapping)


def pair(data: object) -> tuple[Any, Any]:
    """Return features and targets that were given as a pair.

    Raises:
        ValueError: if they were not.
    """
    if not (isinstance(data, tuple) and len(data) == 2):
        more = ""
        if isinstance(data, Mapping | tuple) or hasattr(data, "columns"):
            more = "; bdpvi.fit_private takes a tensor for each argument of a model"
        if not isinstance(data, tuple):
            more += "; of a table of numbers bdpvi.Table.of(table).numbers(target) makes records"
        raise ValueError(
            "data must be a Dataset, records in blocks or a pair (x, y), got "
            f"{type(data).__name__}{more}"
        )
    return data


def of_arrow(value: Any) -> Any:
    """Return a frame or a column of Arrow's kind as one of pandas, anything else as it is."""
    stream = hasattr(value, "__arrow_c_stream__") or type(value).__name__ == "LazyFrame"
    if hasattr(value, "iloc") or not (stream or hasattr(value, "__arrow_c_array__")):
        return value
    from bdpvi.datasets.objects import column, in_memory  # late: they load pandas

    one = len(getattr(value, "shape", (0,))) == 1 and not hasattr(type(value), "schema")
    return column(value) if one else in_memory(value)


def by_index(value: object) -> bool:
    """Return whether a value is a sequence of records, neither an array nor a frame nor a list.

    >>> by_index([torch.zeros(2)]), by_index(torch.utils.data.TensorDataset(torch.zeros(2, 1)))
    (False, True)
    >>> from signal import SIGINT
    >>> by_index(SIGINT), len(type(SIGINT)) > 0  # the class of an enum has entries, not its members
    (False, True)
    """
    if isinstance(value, Dataset):
        return True
    line = type(value).__mro__
    reads = all(any(name in vars(k) for k in line) for name in ("__len__", "__getitem__"))
    return reads and not (isinstance(value, _NESTED) or callable(value) or hasattr(value, "loc"))


@dataclass(frozen=True, eq=False)
class Items:
    """Records by index, each a tensor, a number, or a tuple or mapping of them.

    Attributes:
        source: has a length, and the same record at an index each time.
        like: a record of ones, (1, ...) for each tensor of a record.
        takes: says of records whether a model takes them, (B,); None takes all.
        names: names of the tensors, if they are known.
        by_name: whether a model gets them by name, as from a mapping.

    >>> items = Items.of(torch.utils.data.TensorDataset(torch.zeros(5, 2), torch.arange(5)))
    >>> len(items), [one.tolist() for one in items.rows(torch.tensor([0, 3]))]
    (5, [[[0.0, 0.0], [0.0, 0.0]], [0, 3]])
    """

    source: Any
    like: tuple[Tensor, ...] = field(repr=False)
    takes: Callable[..., Tensor] | None = field(default=None, repr=False)
    names: tuple[str, ...] = ()
    by_name: bool = False

    @classmethod
    def of(cls, source: Any) -> Items:
        """Return the records of a sequence; its first item is read for shapes and types.

        Raises:
            ValueError: if it has no length or no record, or an item holds anything but tensors and
                numbers.
        """
        if not hasattr(source, "__len__"):
            raise ValueError("data: a torch Dataset needs a length, as every record has a coin")
        if not len(source):
            raise ValueError("data has 0 records; at least 1 is needed")
        item = source[0]
        names = tuple(item) if isinstance(item, Mapping) else ()
        first = _collated(source, [0], names)
        if other := [type(one).__name__ for one in first if not isinstance(one, Tensor)]:
            raise ValueError(
                f"data has records with a {other[0]}; make each a tensor, or a tuple or mapping of "
                "tensors"
            )
        return cls(source, tuple(map(torch.ones_like, first)), names=names, by_name=bool(names))

    def __len__(self) -> int:
        return len(self.source)

    def some(self) -> tuple[Tensor, ...]:
        """Return the first records that can be read, by which they are known again."""
        tried = by_halves(self.rows, torch.arange(min(len(self), _FIRST)))
        return self.join([one for _, one in tried if one is not None])

    def rows(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the records at these positions, (B, ...) each, as ``like`` in type and place.

        Raises:
            ValueError: if a record has another shape than the first.
        """
        if not len(positions):
            return tuple(one[:0] for one in self.like)
        found = _collated(self.source, positions.tolist(), self.names if self.by_name else ())
        whole = zip(found, self.like, strict=True)
        if wrong := [tuple(a.shape[1:]) for a, b in whole if a.shape[1:] != b.shape[1:]]:
            raise ValueError(f"data has records of the shape {wrong[0]}, and others at first")
        rows = tuple(a.to(b) for a, b in zip(found, self.like, strict=True))
        return rows if self.takes is None else _only(rows, self.takes(*rows))

    def join(self, parts: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return records that were read in parts."""
        return tuple(map(torch.cat, zip(*parts, strict=True))) or self.rows(torch.arange(0))

    @property
    def header(self) -> list[str]:
        """Names of the numbers of a record, as columns of a table."""
        names = self.names or ("x", "y") if len(self.like) < 3 else ()
        if not names:
            raise ValueError(
                f"table: its records are tuples of {len(self.like)} tensors; make each a pair "
                "(x, y) or a mapping by name"
            )
        return [
            f"{name}{at}" if one.ndim > 1 else name
            for name, one in zip(names, self.like, strict=False)
            for at in range(one[0].numel())
        ]

    @property
    def blocks(self) -> tuple[ItemRange, ...]:
        """The records in blocks."""
        starts = range(0, len(self), _AT_ONCE)
        return tuple(ItemRange(self, at, min(at + _AT_ONCE, len(self))) for at in starts)


@dataclass(frozen=True)
class ItemRange:
    """Records with indices in a range."""

    items: Items
    start: int
    stop: int

    @property
    def name(self) -> str:
        """The block in words."""
        return f"{several(self.stop - self.start, 'record')} from index {self.start}"

    def compute(self, **_: object) -> Any:
        """Return those that can be read as a frame."""
        import pandas as pd  # late: models need none

        rows = [row.reshape(len(row), -1).cpu().double() for row in self._rows()]
        return pd.DataFrame(torch.cat(rows, 1).numpy(), columns=self.items.header)

    def _rows(self) -> tuple[Tensor, ...]:
        tried = by_halves(self.items.rows, torch.arange(self.start, self.stop))
        return self.items.join([one for _, one in tried if one is not None])

    def read(self) -> Iterator[tuple[Tensor, ...]]:
        """Yield those that can be read, without a number that is not finite."""
        rows = self._rows()
        good = torch.ones(len(rows[0]), dtype=torch.bool)
        for row in rows:
            good &= row.isfinite().reshape(len(row), -1).all(1)
        yield _only(rows, good)


def _only(rows: tuple[Tensor, ...], good: Tensor) -> tuple[Tensor, ...]:
    return tuple(row[good] for row in rows)


def _collated(source: Any, positions: list[int], names: tuple[str, ...]) -> tuple[Any, ...]:
    if type(source) is TensorDataset:
        return tuple(tensor[positions] for tensor in source.tensors)
    read = (source[at] for at in positions)
    if names:
        read = (tuple(one[name] for name in names) for one in read)
    return tuple(default_collate([r if isinstance(r, tuple | list) else (r,) for r in read]))
