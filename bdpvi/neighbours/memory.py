"""How many rows fit into memory at once, found by counting what two and three of them take."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


def live_bytes(work: Callable[[], object]) -> list[int]:
    """Run ``work``; return the bytes of the tensors it holds after each of its operations.

    Counts storages that an operation of torch returned and that something still refers to, on every
    device. What one operation needs inside itself and gives back is not seen.

    >>> live_bytes(lambda: torch.zeros(2, dtype=torch.float64) + 1)
    [16, 32]
    """
    ledger = _Ledger()
    with ledger:
        work()
    return ledger.history


def rows_within(budget: float, work: Callable[[int], object]) -> int:
    """Return how many rows ``work(rows)`` can take while its tensors stay within ``budget`` bytes.

    A tensor has a size that is affine in the rows, so the bytes that live after any one operation
    are a + b·rows; runs with two and with three rows give a and b of every operation, and the
    tightest operation decides. Where the two runs do not do the same operations, a is taken as 0,
    which can only overstate what more rows take.

    Not one is 0.

    >>> rows_within(1000, lambda rows: torch.zeros(rows, 10, dtype=torch.float64))
    12
    """
    two, three = (_history(work, rows) for rows in (2, 3))
    if len(two) != len(three):
        two = [2 * size / 3 for size in three]
    most = float("inf")
    least = 0.0
    for at_two, at_three in zip(two, three, strict=True):
        row = at_three - at_two
        shared = at_two - 2 * row
        least = max(least, shared + row)
        if row > 0:
            most = min(most, (budget - shared) / row)
    return 0 if least > budget else int(min(most, 2**62))


def _history(work: Callable[[int], object], rows: int) -> Sequence[float]:
    return live_bytes(lambda: work(rows))


class _Ledger(TorchDispatchMode):
    """Adds up storages as operations return them, and takes them off as they are dropped."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.history: list[int] = []
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        operation: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self._count(value.untyped_storage())
        self.history.append(self.live)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.live += size
            weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size
