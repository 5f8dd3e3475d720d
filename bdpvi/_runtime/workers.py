"""What several workers do together, each with a part of the work; a lone worker has all of it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


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


class Alone:
    """One worker.

    >>> import torch
    >>> Alone().sum(torch.ones(2))
    tensor([1., 1.])
    """

    rank: int = 0
    size: int = 1

    def sum(self, value: Tensor) -> Tensor:
        """Return the tensor."""
        return value

    def max(self, value: Tensor) -> Tensor:
        """Return the tensor."""
        return value

    def join(self, value: Tensor) -> Tensor:
        """Return the tensor."""
        return value


def share(count: int, workers: Reduction) -> range:
    """Return this worker's part of ``count`` rows: consecutive ones, as many as the others have.

    >>> share(5, Alone())
    range(0, 5)
    """
    return range(count * workers.rank // workers.size, count * (workers.rank + 1) // workers.size)
