"""Independent parts of one computation in separate threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")


def slices(count: int, size: int) -> list[slice]:
    """Return slices of ``size`` that cover ``count`` rows or columns; an empty one if count is 0.

    >>> slices(5, 3)
    [slice(0, 3, None), slice(3, 6, None)]
    """
    return [slice(start, start + size) for start in range(0, max(1, count), size)]


@contextmanager
def single() -> Iterator[None]:
    """Limit torch to one thread meanwhile.

    Threads that wait for each other in every operation, as with small tables, are slow on a busy
    machine.

    >>> with single():
    ...     torch.get_num_threads()
    1
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def each(make: Callable[[S], T], parts: Iterable[S]) -> Iterator[T]:
    """Yield ``make(part)`` for every part, in order, computed in as many threads as torch has.

    Inside a part torch has one thread, as with :func:`single`. Parts are taken a few at a time, so
    they need not all fit into memory.

    >>> list(each(lambda x: x * x, range(5)))
    [0, 1, 4, 9, 16]
    """
    threads = torch.get_num_threads()
    if threads == 1:
        yield from map(make, parts)
        return
    waiting: deque[Future[T]] = deque()
    alone: dict[str, Any] = {"initializer": torch.set_num_threads, "initargs": (1,)}
    with single(), ThreadPoolExecutor(threads, **alone) as pool:
        for part in parts:
            waiting.append(pool.submit(make, part))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
