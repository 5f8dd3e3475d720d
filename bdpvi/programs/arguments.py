"""The arguments of a model: records, which are sampled, and constants, which are not."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.data import TensorDataset

from bdpvi._ground.outputs import several
from bdpvi.datasets.dataset import BlockData, Data
from bdpvi.datasets.items import Items, by_index
from bdpvi.programs.sources import ByPosition, Rows, Windows, source_of


@dataclass(frozen=True, eq=False)
class Arguments:
    """The arguments of a step: every tensor has a row for each record.

    Numbers, strings, modules and tensors without dimensions are public constants, which a later
    call may change, as a weight that is annealed. A torch
    ``Dataset``, another sequence of records or a table in blocks, as the only argument, is read a
    few records at a time, so it need not fit in memory.

    Attributes:
        leaves: the arguments, flattened.
        form: how they are nested, for ``tree_unflatten``.
        sampled: whether each leaf holds records.
        source: has the records.

    >>> found = Arguments.of((torch.zeros(5, 2), torch.ones(5), 3), {})
    >>> found.length, found.sampled
    (5, (True, True, False))
    >>> [one.shape for one in found.source.read(torch.tensor([0, 3]))]
    [torch.Size([2, 2]), torch.Size([2])]
    """

    leaves: tuple[Any, ...]
    form: Any
    sampled: tuple[bool, ...]
    source: ByPosition | Windows

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments of one call.

        Raises:
            ValueError: if no argument has rows, the numbers of rows differ, an argument is of a
                kind that may hide records, or a Dataset has no length or no record.
        """
        if len(args) == 1 and not kwargs and type(args[0]) is TensorDataset:
            args = args[0].tensors  # in memory, and the same in a new Dataset
        if len(args) == 1 and not kwargs and by_index(args[0]):
            items = Items.of(args[0])
            return cls.of_source(ByPosition.of_items(items), items.like)
        for place, one in [*enumerate(args), *kwargs.items()]:
            _check_kind(place, one)
        leaves, form = tree_flatten((args, dict(kwargs)))
        sampled = tuple(isinstance(leave, Tensor) and leave.ndim > 0 for leave in leaves)
        sized = tuple(itertools.compress(leaves, sampled))
        if not sized:
            raise ValueError("step: give the records, as tensors with a row each, or as a Dataset")
        rows = len(sized[0])
        if other := [tuple(one.shape) for one in sized if len(one) != rows]:
            raise ValueError(
                f"step: a tensor of the shape {other[0]} has not {several(rows, 'row')}, as the "
                "first. Every tensor must have a row for each record; make a public one an "
                "attribute of the model, or bind it by functools.partial"
            )
        return cls(tuple(leaves), form, sampled, ByPosition.of(sized))

    @classmethod
    def of_data(
        cls, data: Data, kind: torch.dtype | None = None, steps: int | None = None
    ) -> Arguments:
        """Return x and y, or what they are in blocks, with numbers in this type."""
        given = data.like if isinstance(data, BlockData) else (data.x, data.y)
        rows = tuple(one.to(kind or one.dtype) if one.is_floating_point() else one for one in given)
        if isinstance(data, BlockData):
            return cls.of_source(source_of(data, rows, steps), rows)
        return cls.of(rows, {})

    @classmethod
    def of_source(cls, source: ByPosition | Windows, like: Rows) -> Arguments:
        """Return the arguments of records that are not in memory, like a record of ones."""
        named = dict(zip(source.names, like, strict=False))
        leaves, form = tree_flatten(((), named) if named else (like, named))
        return cls(tuple(leaves), form, (True,) * len(leaves), source)

    @property
    def length(self) -> int:
        """N."""
        return self.source.length

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """The leaves that hold records; if they are not in memory, a record of ones."""
        return tuple(itertools.compress(self.leaves, self.sampled))

    @property
    def device(self) -> torch.device:
        """Where the records are."""
        return self.tables[0].device

    @property
    def stand_in(self) -> tuple[Tensor, ...]:
        """One record of zeros, for code that must not see real records."""
        return tuple(table.new_zeros(1, *table.shape[1:]) for table in self.tables)

    @property
    def made_up(self) -> Arguments:
        """The arguments with two made-up records, of zeros and of ones."""
        zeros = self.stand_in
        rows = tuple(torch.cat([zero, torch.ones_like(zero)]) for zero in zeros)
        return replace(self, leaves=self._with(rows), source=ByPosition.of(rows))

    def call(self, rows: Rows) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments with these rows, (n, ...) each."""
        args, kwargs = tree_unflatten(self._with(rows), self.form)
        return args, kwargs

    def _with(self, rows: Rows) -> tuple[Any, ...]:
        left, pairs = iter(rows), zip(self.leaves, self.sampled, strict=True)
        return tuple(next(left) if of_records else one for one, of_records in pairs)

    def following(self, other: Arguments) -> Arguments:
        """Return the arguments of a later call: the same records, perhaps with other constants.

        Raises:
            ValueError: if ``other`` has other records.
        """
        same = self.form == other.form and self.sampled == other.sampled
        if not same or not self.source.is_same(other.source):
            counts = self.length, other.length
            more = "" if counts[0] == counts[1] else f", {counts[1]} and not {counts[0]}"
            raise ValueError(
                f"step was called with other records than in the first call{more}: hand over all "
                "records in every step, by one object if they are read by index, and not the "
                "batches of a DataLoader. The Poisson batches, which the accounting assumes, are "
                "drawn here. Nothing was charged"
            )
        if all(self.sampled):
            return self
        pairs = zip(self.leaves, other.leaves, self.sampled, strict=True)
        leaves = tuple(old if of_records else new for old, new, of_records in pairs)
        return replace(self, leaves=leaves)

    @property
    def constants(self) -> tuple[Any, ...]:
        """What is the same for all records."""
        pairs = zip(self.leaves, self.sampled, strict=True)
        return tuple(one for one, of_records in pairs if not of_records)


def _check_kind(name: object, value: Any) -> None:
    """Refuse a value that may hold records but would count as a constant."""
    if value is None or callable(value) or isinstance(value, (Tensor, bool, int, float, str)):
        return
    if hasattr(value, "dataset") and hasattr(value, "__iter__"):
        raise ValueError(
            f"step: argument {name!r} is {type(value).__name__}: hand over its records, as by its "
            "attribute dataset, in every step. The Poisson batches are drawn here"
        )
    nested = isinstance(value, (tuple, list, dict))
    if not nested or not all(isinstance(one, Tensor) for one in tree_leaves(value)):
        raise ValueError(
            f"step: argument {name!r} is {type(value).__name__}, which may hold records that would "
            "count as public; hand tensors over, with a row for each record"
        )
