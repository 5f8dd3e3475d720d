"""Training records and the panel, as tensors or as a torch ``Dataset``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from bdpvi._ground import validate
from bdpvi._ground.halving import by_halves
from bdpvi._ground.host import HOST, onto
from bdpvi._ground.outputs import several
from bdpvi.networks.gradients import Batch

Source = Sequence[Any] | Dataset[Any]
"""Inputs and targets, (x, y), or ids as well, (x, y, ids); or a torch Dataset of pairs (x, y). For
a module with several inputs x is a tuple of tensors, or a mapping by input names."""

LEAST_PANEL = 100
_FIRST = 64


@dataclass(frozen=True, eq=False)
class IndexedRecords:
    """Records by position. A Dataset is read again for every batch, so it may augment records.

    Attributes:
        source: (x, y), or a Dataset with a length.
        ids: identities, (N,) int64.
        of: the Dataset that ``ids`` index, for example the parent of a Subset. None if ids are just
            positions.
    """

    source: tuple[Any, Tensor] | Dataset[Any]
    ids: Tensor
    of: object = None

    @classmethod
    def of_source(cls, name: str, source: Source) -> IndexedRecords:
        """Return the records of ``source``.

        Raises:
            ValueError: naming ``name``, if lengths differ, ids repeat, or
                there is no length.

        >>> IndexedRecords.of_source("data", (torch.zeros(3, 2), torch.zeros(3))).ids
        tensor([0, 1, 2])
        """
        ids: Tensor | None = None
        of: object = None
        kept: Any = source
        if isinstance(source, TensorDataset):
            source = list(source.tensors)
        if isinstance(source, (tuple, list)):
            leaves = tree_leaves(source)
            if len(source) not in (2, 3) or not all(isinstance(t, Tensor) for t in leaves):
                raise ValueError(
                    f"{name} must be tensors (x, y) or (x, y, ids), or a Dataset, got "
                    f"{len(source)} of {', '.join(type(t).__name__ for t in source)}"
                )
            x, y, *rest = source
            for part in tree_leaves(x):
                validate.same_length(f"{name}: y", y, "x", part)
            if rest:
                ids, of = rest[0].cpu(), "ids"
                validate.same_length(f"{name}: ids", ids, "x", y)
            kept = (x, y)
        elif isinstance(source, Dataset) and hasattr(source, "__len__"):
            if isinstance(source, Subset):
                ids, of = torch.as_tensor(list(source.indices)), source.dataset
        else:
            raise ValueError(
                f"{name} must be tensors (x, y) or a torch Dataset with a length, as N must be "
                f"fixed; got {type(source).__name__}"
            )
        ids = torch.arange(_length(kept)) if ids is None else ids
        if len(ids.unique()) != _length(kept):
            raise ValueError(f"{name} has a record twice; its clip would count twice as well")
        return cls(kept, ids, of)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of records in memory, by names for their owner; none if they are read."""
        if not isinstance(self.source, tuple):
            return {}
        x, y = self.source
        leaves = tree_leaves(x)
        names = ["x"] if len(leaves) == 1 else [f"x[{at}]" for at in range(len(leaves))]
        return {**dict(zip(names, leaves, strict=True)), "y": y}

    def check_length(self, name: str) -> None:
        """Raise ValueError if the length of the source has changed."""
        found = _length(self.source)
        if found != len(self):
            raise ValueError(
                f"{name} has {several(found, 'record')} and had {len(self)}; N must be fixed, as "
                "the sum is divided by rate · N"
            )

    def some(self) -> list[Tensor]:
        """Return tensors of records by which they are known again: all in memory, or the first.

        Those that cannot be read, or have other shapes than record 0, are left out.
        """
        if self.tensors or not len(self):
            return [*self.tensors.values()]
        shapes = [one.shape[1:] for one in tree_leaves(self._first())]

        def read(positions: Tensor) -> list[Tensor]:
            result: list[Tensor] = tree_leaves(self.take(positions, HOST))
            if [one.shape[1:] for one in result] != shapes:
                raise ValueError("a record has another shape than the first")
            return result

        tried = by_halves(read, torch.arange(min(len(self), _FIRST)))
        parts = [one for _, one in tried if one is not None]
        return [torch.cat(each) for each in zip(*parts, strict=True)]

    def made_up(self, rows: int, below: int, device: torch.device) -> Batch:
        """Return made-up records of the same shapes and dtypes: refusing a network must not depend
        on anybody's record, as no charge covers looking at one.

        Numbers lie between 0 and 1. Integer inputs run from 0 to ``below`` − 1, both included;
        integer targets are 0 and 1.

        Args:
            rows: number of records, at least 2.
            below: number of values of integer inputs.
            device: device of the records.

        Raises:
            ValueError: if an item of a Dataset is not a pair (x, y) of tensors or numbers.
        """
        generator = torch.Generator().manual_seed(rows)

        def like(one: Tensor, below: int) -> Tensor:
            shape = (rows, *one.shape[1:])
            if one.is_floating_point() or one.is_complex():
                return torch.rand(shape, generator=generator, device=HOST).to(device, one.dtype)
            most = 1 if one.dtype is torch.bool else min(below - 1, torch.iinfo(one.dtype).max)
            some = torch.randint(most + 1, shape, generator=generator, device=HOST)
            some[0], some[1] = 0, some.new_tensor(most)
            return some.to(device, one.dtype)

        x, y = self._first()
        return tree_map(lambda one: like(one, below), x), like(y, 2)

    def _first(self) -> Batch:
        """Return records that show the shapes and dtypes of all records."""
        if isinstance(self.source, tuple):
            return self.source
        if not len(self):
            raise ValueError("data is a Dataset of 0 records, which has no shape; give tensors")
        item = self.source[0]
        if isinstance(item, (tuple, list)) and len(item) == 2:
            x, y = default_collate([item])
            if all(isinstance(one, Tensor) for one in tree_leaves((x, y))):
                return x, y
        raise ValueError(
            f"data has items of {type(item).__name__}, and needs pairs (x, y) of tensors or "
            "numbers; x may be a tuple of them, or a mapping by the names of the module's inputs"
        )

    def take(self, positions: Tensor, device: torch.device) -> Batch:
        """Return the records at ``positions``, (B,), on ``device``; two empty tensors if B is 0."""
        x: Any
        if isinstance(self.source, tuple):
            x, y = tree_map(lambda one: one[onto(positions, one.device)], self.source)
        elif len(positions):
            x, y = default_collate([self.source[i] for i in positions.tolist()])
        else:
            x = y = torch.zeros(0)
        return tree_map(lambda one: onto(one, device), x), onto(y, device)


def check_panel_size(panel: IndexedRecords) -> None:
    """Refuse a panel that is too small for an estimate.

    Raises:
        ValueError: naming ``panel``.
    """
    if len(panel) < LEAST_PANEL:
        raise ValueError(
            f"panel has {several(len(panel), 'record')}; an estimate needs at least "
            f"{LEAST_PANEL}, kept out of the training data"
        )


def check_panel(panel: IndexedRecords, data: IndexedRecords) -> None:
    """Refuse a panel that is too small, or that the network is trained on.

    Records are compared by id where both have ids, as subsets of one Dataset do. Where both are
    plain tensors, a panel is refused if more than half of its records occur in the data, value for
    value; a few may be genuine duplicates.

    Raises:
        ValueError: naming ``panel``.
    """
    check_panel_size(panel)
    if panel.source is data.source:
        raise ValueError("panel is the training data; keep records apart for it")
    if panel.of is not None and panel.of is data.of:
        both = panel.ids[torch.isin(panel.ids, data.ids)]
        if len(both):
            raise ValueError(
                f"panel has {several(len(both), 'record')} of the training data, such as id "
                f"{int(both[0])}; the panel must not be trained on"
            )
    elif panel.tensors and data.tensors:
        known = set(_contents(data))
        found = sum(one in known for one in _contents(panel))
        if 2 * found > len(panel):
            raise ValueError(
                f"panel has {several(found, 'record')} of {len(panel)} in the training data, "
                "value for value; the panel must not be trained on"
            )


def _contents(records: IndexedRecords) -> list[int]:
    parts = [tensor.detach().cpu().numpy() for tensor in records.tensors.values()]
    return [hash(tuple(one.tobytes() for one in row)) for row in zip(*parts, strict=True)]


def _length(source: Any) -> int:
    return len(source[1]) if isinstance(source, tuple) else len(source)
