"""The arguments of a model: records, which are sampled, and constants, which are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.data import Dataset, default_collate

from bdpvi._ground import validate
from bdpvi._ground.outputs import several


@dataclass(frozen=True, eq=False)
class Arguments:
    """The arguments of a step: every tensor has a row for each record.

    Numbers, strings, modules and tensors without dimensions are public constants. A torch
    ``Dataset`` as the only argument is read record by record, so it need not fit in memory.

    Attributes:
        leaves: the arguments, flattened.
        form: how they are nested, for ``tree_unflatten``.
        sampled: whether each leaf holds records.
        source: the Dataset, or None.
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
    source: Dataset[Any] | None
    length: int

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments of one call.

        Raises:
            ValueError: if no argument has rows, the numbers of rows differ, an argument is of a
                kind that may hide records, or a Dataset has no length or no record.
        """
        source = args[0] if len(args) == 1 and isinstance(args[0], Dataset) else None
        if source is not None:
            if not hasattr(source, "__len__"):
                raise ValueError("data: a torch Dataset needs a length, as every record has a coin")
            length = len(source)
            if not length:
                raise ValueError("data has 0 records; at least 1 is needed")
            first = source[0]
            args = tuple(first) if isinstance(first, (tuple, list)) else (first,)
            args = tuple(torch.as_tensor(one)[None] for one in args)
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
        return cls(tuple(leaves), form, sampled, source, rows if source is None else length)

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """The leaves that hold records; for a Dataset, its first record."""
        return tuple(one for one, of in zip(self.leaves, self.sampled, strict=True) if of)

    @property
    def device(self) -> torch.device:
        """Where the records are."""
        return self.tables[0].device

    def rows(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the records at these positions, (B, ...) for each leaf that holds records."""
        if self.source is None:
            return tuple(one[positions.to(one.device)] for one in self.tables)
        if not len(positions):
            return tuple(torch.zeros_like(one)[:0] for one in self.stand_in)
        read = []
        for at in positions.tolist():
            item = self.source[at]
            read.append(tuple(item) if isinstance(item, (tuple, list)) else (item,))
        found = tuple(default_collate(read))
        whole = zip(found, self.stand_in, strict=True)
        if wrong := [tuple(a.shape[1:]) for a, b in whole if a.shape[1:] != b.shape[1:]]:
            raise ValueError(f"data has records of the shape {wrong[0]}, and others at first")
        return found

    @property
    def stand_in(self) -> tuple[Tensor, ...]:
        """One record of zeros, for code that must not see real records."""
        return tuple(one.new_zeros(1, *one.shape[1:]) for one in self.tables)

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
            return [id(self.source)]
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
