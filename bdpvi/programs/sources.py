"""Batches of records that are tensors in memory, are read by index, or lie in blocks on a disk.

Every step has its own Poisson batch: each record is in it by its own secret coin. The coins follow
from the mechanism's key, the step and the record's position alone, so that a table has the same
batches wherever it lies. Of a table in blocks the batches of many steps are read in one pass, as
many as fit in a public amount of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bdpvi._ground.host import onto
from bdpvi.datasets.dataset import BlockData, Data
from bdpvi.datasets.items import Items
from bdpvi.datasets.records import Spread
from bdpvi.releases.noisy_sum import NoisySum

Rows = tuple[Tensor, ...]
BYTES = 1 << 28
"""Memory for the batches of one pass; a batch may be larger, and is then read alone."""
_STEPS = 1000
"""Most steps whose batches are read in one pass."""
_AHEAD = 4
"""Most blocks from workers that are in memory."""


class RecordBatch(NamedTuple):
    """Records that are read when they are needed.

    Attributes:
        read: returns the records at positions, (B, ...) for each tensor of a record.
        positions: of all records of the batch, (B,).
    """

    read: Callable[[Tensor], Rows]
    positions: Tensor

    @classmethod
    def of(cls, rows: Rows) -> RecordBatch:
        """Return the batch of these records."""
        return cls(partial(at, rows), torch.arange(len(rows[0])))


def latents_like(data: Data) -> Tensor:
    """Return a tensor of the type of all latents: the records', unless they are whole numbers."""
    found = (one for one in data.like if one.is_floating_point())
    return next(found, torch.empty(0, device=data.like[0].device))


@dataclass(eq=False)
class ByPosition:
    """Records that are read by position: tensors in memory, or items.

    Attributes:
        read: returns the records at positions.
        length: N.
        holds: what holds the records.
        place: two calls with the same objects have the same.
        some: returns records by which they are known again: all in memory, or the first few.
        in_memory: whether nothing is read.
        names: by which a model gets the tensors of a record; () by position.
    """

    read: Callable[[Tensor], Rows]
    length: int
    holds: tuple[Any, ...]
    place: object
    some: Callable[[], Sequence[Tensor]]
    in_memory: bool = False
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, rows: Rows) -> ByPosition:
        """Return records in memory."""
        place = [(row.data_ptr(), row.shape) for row in rows]
        return cls(partial(at, rows), len(rows[0]), rows, place, lambda: rows, True)

    @classmethod
    def of_items(cls, items: Items) -> ByPosition:
        """Return records by index."""
        place, names = id(items.source), items.names if items.by_name else ()
        return cls(items.rows, len(items), (items,), place, items.some, names=names)

    def is_same(self, other: ByPosition | Windows) -> bool:
        """Whether these are the same records, in the same memory or copied."""
        if self.place == other.place:
            return True
        if not (self.in_memory and other.in_memory):
            return False
        pairs = zip(self.some(), other.some(), strict=True)
        return all(_equal(one, another) for one, another in pairs)

    def batch(self, mechanism: NoisySum, step: int) -> RecordBatch:
        """Return the Poisson batch of a step."""
        return RecordBatch(self.read, mechanism.batch(step))

    def every(self) -> Iterator[RecordBatch]:
        """Yield all records."""
        yield RecordBatch(self.read, torch.arange(self.length))


def source_of(data: BlockData, like: Rows, steps: int | None = None) -> ByPosition | Windows:
    """Return what reads these records, as ``like`` in type and place, for a number of steps."""
    if data.items is None:
        return Windows(data, like, steps)
    return ByPosition.of_items(replace(data.items, like=like))


@dataclass(eq=False)
class Windows:
    """The batches of records in blocks; those of some steps at a time are in memory.

    Attributes:
        data: the records.
        like: a record of ones, of the type and on the device of the batches.
        steps: the number of steps of the training, if it is known: no batch beyond is read.
    """

    data: BlockData
    like: Rows
    steps: int | None = None
    in_memory: ClassVar[bool] = False
    names: ClassVar[tuple[str, ...]] = ()
    _held: dict[int, list[Rows]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.length, self.place = len(self.data), id(self.data.parts)
        self.holds, self.some = (self,), self.data.some

    def is_same(self, other: ByPosition | Windows) -> bool:
        """Whether these are the same blocks."""
        return self.place == other.place

    def batch(self, mechanism: NoisySum, step: int) -> RecordBatch:
        """Return the batch of a step, after a pass over the blocks unless it is in memory.

        Raises:
            ValueError: naming a block that cannot be read, or the table if it has other records
                than before. The same step has the same batch when the cause is removed.
        """
        if step not in self._held:
            self._held = {}
            size = sum(one.numel() * one.element_size() for one in self.like)
            most = int(BYTES / (size * max(mechanism.rate * len(self.data), 1)))
            end = step + min(max(most, 1), _STEPS)
            last = end if self.steps is None else max(self.steps, step + 1)
            self._read(mechanism, range(step, min(end, last)))
        pieces = self._held.pop(step)
        return RecordBatch.of(tuple(map(torch.cat, zip(*pieces, strict=True))))

    def _read(self, mechanism: NoisySum, steps: range) -> None:
        """Hold the batches of these steps."""
        none = tuple(one[:0] for one in self.like)
        held = {step: [none] for step in steps}
        coins, found = [mechanism.coins(step) for step in steps], 0
        for part in self._parts():
            count = len(part[0])
            chosen = [following(count) for following in coins]
            rows = at(part, torch.from_numpy(np.concatenate(chosen)))
            sizes = [len(one) for one in chosen]
            each = [one.to(like).split(sizes) for one, like in zip(rows, self.like, strict=True)]
            for step, size, piece in zip(steps, sizes, zip(*each, strict=True), strict=True):
                if size:
                    held[step].append(piece)
            found += count
        if found != len(self.data):
            raise ValueError(
                f"data: {self.data.name!r} had {len(self.data)} records, and has {found} now; a "
                "table must stay as it is until training ends"
            )
        self._held = held

    def every(self) -> Iterator[RecordBatch]:
        """Yield all records, a few at a time."""
        for part in self._parts():
            yield RecordBatch.of(
                tuple(one.to(like) for one, like in zip(part, self.like, strict=True))
            )

    def _parts(self) -> Iterator[Rows]:
        parts = self.data.parts
        if isinstance(parts, Spread):  # whole blocks come back; the bar is that of the steps
            parts = replace(parts, ahead=_AHEAD, track=None)
        for block in parts.each(_alone):
            yield from block


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same values, where NaN equals NaN; on any two devices."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    other = other.to(one.device)
    return torch.equal(one, other) or bool(
        ((one == other) | ((one != one) & (other != other))).all()
    )


def _alone(part: Rows) -> list[Rows]:
    return [part]


def at(rows: Rows, positions: Tensor) -> Rows:
    """Return the records at these positions, (B, ...) for each tensor of a record."""
    return tuple(row[onto(positions, row.device)] for row in rows)
