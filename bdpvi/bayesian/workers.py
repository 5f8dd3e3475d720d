"""Sums, maxima and joins over the workers of a job; the same code runs with a single one."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from bdpvi.noise.keys import Key


class Reduction(Protocol):
    """Operations over all workers of a job. Every worker must make the same calls in order."""

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
        """Return all workers' tensors, concatenated along the first dimension."""


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


def shared(key: Key, workers: Reduction) -> Key:
    """Return the key of worker 0 on all workers.

    >>> shared(Key.of_seed(0), Alone()) == Key.of_seed(0)
    True
    """
    mine = torch.tensor(list(key.secret)) * (workers.rank == 0)
    return replace(key, secret=bytes(workers.sum(mine).tolist()))


def share(count: int, workers: Reduction) -> range:
    """Return this worker's consecutive part of ``count`` rows; sizes differ by at most one.

    >>> share(5, Alone())
    range(0, 5)
    """
    return range(count * workers.rank // workers.size, count * (workers.rank + 1) // workers.size)
