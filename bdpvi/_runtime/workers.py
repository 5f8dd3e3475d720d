"""Sums, maxima and joins over the workers of one job, for code that runs the same with one."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Reduction(Protocol):
    """Operations over all workers of one job. Every worker must make the same calls in order."""

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""

    @property
    def size(self) -> int:
        """Number of workers."""

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
    """Return this worker's consecutive part of ``count`` rows; sizes differ by at most one.

    >>> share(5, Alone())
    range(0, 5)
    """
    return range(count * workers.rank // workers.size, count * (workers.rank + 1) // workers.size)
