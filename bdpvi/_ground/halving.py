"""Bisection for the records that a computation fails on; the others keep their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def by_halves(work: Callable[[Tensor], T], records: Tensor) -> Iterator[tuple[Tensor, T | None]]:
    """Yield parts of records with their results, None for a record that ``work`` fails on.

    There is one part if it fails on none. A lack of memory is raised, as no record causes it.

    Args:
        work: maps positions of records, (B,), to a result; users' models may raise any error.
        records: positions, (N,).

    >>> def inverse(records):
    ...     return [1 // one for one in records.tolist()]
    >>> [(part.tolist(), one) for part, one in by_halves(inverse, torch.tensor([1, 0, 2]))]
    [([1], [1]), ([0], None), ([2], [0])]
    """
    try:
        found = work(records)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # from a user's model
        if len(records) < 2:
            yield records, None
            return
    else:
        yield records, found
        return
    for half in records.tensor_split(2):
        yield from by_halves(work, half)
