"""What several workers do together, each with a part of the work; a lone worker has all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from torch import Tensor

Tensors = dict[str, Tensor]


class Reduction(Protocol):
    """What the workers of one job do together. Every worker must make the same calls in order."""

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""

    @property
    def size(self) -> int:
        """How many workers there are."""

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum of all workers' tensors of one shape."""

    def max(self, value: Tensor) -> Tensor:
        """Return the largest of all workers' tensors of one shape, entry by entry."""

    def join(self, value: Tensor) -> Tensor:
        """Return all workers' tensors, one after the other along the first dimension."""

    def first(self, make: Callable[[], Tensors]) -> Callable[[], Tensors]:
        """Return what gives the tensors that the first worker makes, at once.

        The others go on, and wait for them when they ask.
        """

    def turns(self, count: int) -> Iterator[int]:
        """Yield the numbers below ``count``, each to one worker only: whoever asks next."""


class Alone:
    """One worker.

    >>> import torch
    >>> Alone().sum(torch.ones(2))
    tensor([1., 1.])
    """

    rank, size = 0, 1

    def sum(self, value: Tensor) -> Tensor:
        """Return the tensor."""
        return value

    def max(self, value: Tensor) -> Tensor:
        """Return the tensor."""
        return value

    def join(self, value: Tensor) -> Tensor:
        """Return the tensor."""
        return value

    def first(self, make: Callable[[], Tensors]) -> Callable[[], Tensors]:
        """Return what gives the tensors."""
        made = make()
        return lambda: made

    def turns(self, count: int) -> Iterator[int]:
        """Yield all numbers."""
        return iter(range(count))
