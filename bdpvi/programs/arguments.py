"""The arguments of a model: records, which are sampled, and constants, which are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi.datasets.items import Items, by_index
from bdpvi.programs.sources import Batch, Rows, Windows, at
from bdpvi.releases.noisy_sum import NoisySum


@dataclass(frozen=True, eq=False)
class Arguments:
    """The arguments of a step: every tensor has a row for each record.

    Numbers, strings, modules and tensors without dimensions are public constants. A torch
    ``Dataset``, another sequence of records or a table in blocks, as the only argument, is read a
    few records at a time, so it need not fit in memory.

    Attributes:
        leaves: the arguments, flattened.
        form: how they are nested, for ``tree_unflatten``.
        sampled: whether each leaf holds records.
        source: what reads them, or None.
        length: N.

    >>> found = Arguments.of((torch.zeros(5, 2), torch.ones(5), 3), {})
    >>> found.length, found.sampled
    (5, (True, True, False))
    >>> [one.shape for one in found.rows(torch.tensor([0, 3]))]
    [torch.Size([2, 2]), torch.Size([2])]
    """

    leaves: tuple[Any, ...]
    form: Any
    sampled: tuple[bool, ...]
    source: Items | Windows | None
    length: int

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments of one call.

        Raises:
            ValueError: if no argument has rows, the numbers of rows differ, an argument is of a
                kind that may hide records, or a Dataset has no length or no record.
        """
        if len(args) == 1 and not kwargs and by_index(args[0]):
            return cls.of_source(Items.of(args[0]))
        for place, one in enumerate(args):
            _check_kind(place, one)
        for name, one in kwargs.items():
            _check_kind(name, one)
        leaves, form = tree_flatten((args, dict(kwargs)))
        sized = [one for one in leaves if isinstance(one, Tensor) and one.ndim]
        if not sized:
            raise ValueError("step: give the records, as tensors with a row each, or as a Dataset")
        rows = len(sized[0])
        if other := [tuple(one.shape) for one in sized if len(one) != rows]:
            raise ValueError(
                f"step: a tensor of the shape {other[0]} has not {several(rows, 'row')}, as the "
                "first. Every tensor must have a row for each record; make a public one an "
                "attribute of the model, or bind it by functools.partial"
            )
        sampled = tuple(isinstance(v, Tensor) and v.ndim > 0 for v in leaves)
        return cls(tuple(leaves), form, sampled, None, rows)

    @classmethod
    def of_source(cls, source: Items | Windows) -> Arguments:
        """Return the arguments of records that are not in memory."""
        given: tuple[Rows, dict[str, Tensor]] = source.like, {}
        if isinstance(source, Items) and source.by_name:
            given = (), dict(zip(source.names, source.like, strict=True))
        leaves, form = tree_flatten(given)
        length = len(source.data) if isinstance(source, Windows) else len(source)
        return cls(tuple(leaves), form, (True,) * len(leaves), source, length)

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """The leaves that hold records; if they are not in memory, a record of ones."""
        return tuple(one for one, of in zip(self.leaves, self.sampled, strict=True) if of)

    def some(self) -> tuple[Tensor, ...]:
        """Return records by which they are known again: all in memory, or the first few."""
        if self.source is None:
            return self.tables
        if isinstance(self.source, Windows):
            return self.source.data.some()
        return self.source.some()

    @property
    def records(self) -> tuple[Any, ...]:
        """What holds the records."""
        return self.tables if self.source is None else (self.source,)

    @property
    def device(self) -> torch.device:
        """Where the records are."""
        return self.tables[0].device

    def batch(self, mechanism: NoisySum, step: int) -> Batch:
        """Return the Poisson batch of a step."""
        if isinstance(self.source, Windows):
            return self.source.batch(mechanism, step)
        return Batch(self.rows, mechanism.batch(step))

    def every(self) -> Iterator[Batch]:
        """Yield all records, a few at a time."""
        if isinstance(self.source, Windows):
            yield from self.source.every()
        else:
            yield Batch(self.rows, torch.arange(self.length))

    @property
    def rows(self) -> Callable[[Tensor], Rows]:
        """What returns records at positions, (B, ...) for each leaf that holds records."""
        assert not isinstance(self.source, Windows)
        return partial(at, self.tables) if self.source is None else self.source.rows

    @property
    def stand_in(self) -> tuple[Tensor, ...]:
        """One record of zeros, for code that must not see real records."""
        return tuple(one.new_zeros(1, *one.shape[1:]) for one in self.tables)

    @property
    def made_up(self) -> Arguments:
        """The arguments with two made-up records, of zeros and of ones."""
        leaves = [
            torch.cat([one.new_zeros(1, *one.shape[1:]), one.new_ones(1, *one.shape[1:])])
            if of_records
            else one
            for one, of_records in zip(self.leaves, self.sampled, strict=True)
        ]
        return Arguments(tuple(leaves), self.form, self.sampled, None, 2)

    def call(self, rows: tuple[Tensor, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments with these rows, (n, ...) each."""
        left = iter(rows)
        leaves = [
            next(left) if of_records else one
            for one, of_records in zip(self.leaves, self.sampled, strict=True)
        ]
        args, kwargs = tree_unflatten(leaves, self.form)
        return args, kwargs

    def check_same(self, other: Arguments) -> None:
        """Raise ValueError unless ``other`` holds the same records, not another batch."""
        here, there = self._places(), other._places()
        if here != there or self.form != other.form:
            raise ValueError(
                "step was called with other records than in the first call: hand the whole table "
                "over in every step. The Poisson batches, which the accounting assumes, are "
                "drawn here. Nothing was charged"
            )
        if self._constants() != other._constants():
            raise ValueError(
                "step was called with other non-tensor arguments than in the first call; make an "
                "argument that changes an attribute of the model. Nothing was charged"
            )
        validate.same_length("records", range(other.length), "at first", range(self.length))

    def _constants(self) -> list[str]:
        pairs = zip(self.leaves, self.sampled, strict=True)
        return [repr(one) for one, of_records in pairs if not of_records]

    def _places(self) -> list[Any]:
        if self.source is not None:
            own = self.source
            return [id(own.data.parts if isinstance(own, Windows) else own.source)]
        return [(one.data_ptr(), one.shape) for one in self.tables]


def _check_kind(name: int | str, value: Any) -> None:
    """Refuse a value that may hold records but would count as a constant."""
    if value is None or callable(value) or isinstance(value, (Tensor, bool, int, float, str)):
        return
    nested = isinstance(value, (tuple, list, dict))
    if not nested or not all(isinstance(one, Tensor) for one in tree_leaves(value)):
        raise ValueError(
            f"step: argument {name!r} is {type(value).__name__}, which may hold records that would "
            "count as public; hand tensors over, with a row for each record"
        )
