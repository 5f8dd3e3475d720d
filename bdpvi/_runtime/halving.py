"""Records that a computation fails on, found by halves: the others have theirs all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class WorkError(ValueError):
    """A fault that is no record's: of a module that does what it did not do when it was tried."""


def by_halves(work: Callable[[Tensor], T], records: Tensor) -> Iterator[tuple[Tensor, T | None]]:
    """Yield parts of records and what a work on each returns, None for a record that it fails on.

    One part if it fails on none. That there is too little memory is raised, and so is a
    :class:`WorkError`: it is no record's doing.

    Args:
        work: on positions of records, (B,). Its errors may be of any kind, as users write models.
        records: positions, (N,).

    >>> def inverse(records):
    ...     return [1 // one for one in records.tolist()]
    >>> [(part.tolist(), one) for part, one in by_halves(inverse, torch.tensor([1, 0, 2]))]
    [([1], [1]), ([0], None), ([2], [0])]
    """
    try:
        found = work(records)
    except (MemoryError, torch.OutOfMemoryError, WorkError):
        raise
    except Exception:  # of a user's model
        if len(records) < 2:
            yield records, None
            return
    else:
        yield records, found
        return
    for half in records.tensor_split(2):
        yield from by_halves(work, half)
