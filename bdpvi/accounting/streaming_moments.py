"""The moments of records' costs, folded up block by block, so that no record has to be kept."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from bdpvi.accounting.estimators import Moments, relative, tail_size


class Folded:
    """The :class:`~bdpvi.accounting.estimators.Moments` of values that come in blocks.

    Blocks are merged by the central moments of both and the difference of their means (Chan, Golub
    and LeVeque 1983; for the third moment Pébay 2008, eq. 2.1), after both were brought to units of
    the larger maximum.

    Args:
        rows: number of leading entries, orders for instance.
        records: the number of records to come, which decides how many of the largest are kept.

    >>> folded = Folded(1, 4)
    >>> for block in (torch.tensor([[1.0, 10.0]]), torch.tensor([[2.0, 3.0]])):
    ...     folded.add(block.double().log())
    >>> round(float(folded.moments().log_mean.exp()), 4), round(float(folded.moments().skewness), 4)
    (4.0, 1.0182)
    """

    def __init__(self, rows: int, records: int) -> None:
        self._kept = tail_size(records) + 1
        self._size = 0
        self._log_max = torch.full((rows,), -math.inf, dtype=torch.float64)
        self._mean, self._second, self._third = torch.zeros(3, rows, dtype=torch.float64)
        self._tail = torch.empty(rows, 0, dtype=torch.float64)

    def moments(self) -> Moments:
        """Return the moments of all values so far."""
        sd = (self._second / self._size).sqrt()
        third = self._third / self._size / sd**3
        tail = self._tail[:, : tail_size(self._size) + 1]
        return Moments(self._size, self._log_max, self._mean, sd, third, tail)

    def add(self, log_values: Tensor) -> None:
        """Add the values of more records, (rows, n).

        Raises:
            ValueError: if one is NaN.
        """
        log_max = log_values.amax(-1)
        if bool(log_max.isnan().any()):
            raise ValueError("log_values must not be NaN, got nan")
        values = relative(log_values, log_max)
        mean = values.mean(-1)
        centred = values.sub_(mean[:, None])
        square = centred * centred
        second, third = square.sum(-1), (square.mul_(centred)).sum(-1)
        self._merge(log_values.shape[-1], log_max, mean, second, third)
        self._keep(log_values)

    def state(self) -> dict[str, Tensor]:
        """Return all that :meth:`restore` needs."""
        moments = torch.stack([self._log_max, self._mean, self._second, self._third])
        return {"size": torch.tensor(self._size), "moments": moments, "tail": self._tail}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go back to a state."""
        self._size, self._tail = int(state["size"]), state["tail"]
        self._log_max, self._mean, self._second, self._third = state["moments"].clone()

    def _merge(self, n: int, log_max: Tensor, mean: Tensor, second: Tensor, third: Tensor) -> None:
        m, total = self._size, self._size + n
        self._size = total
        if m == 0:
            self._log_max, self._mean, self._second, self._third = log_max, mean, second, third
            return
        top = torch.maximum(self._log_max, log_max)
        (a, a2, a3), (b, b2, b3) = (
            _rescaled(below, *moments)
            for below, moments in (
                (_below(self._log_max, top), (self._mean, self._second, self._third)),
                (_below(log_max, top), (mean, second, third)),
            )
        )
        gap = b - a
        self._log_max, self._mean = top, a + gap * (n / total)
        self._second = a2 + b2 + gap**2 * (m * n / total)
        self._third = (
            a3 + b3 + gap**3 * (m * n * (m - n) / total**2) + 3 * gap * (m * b2 - n * a2) / total
        )

    def _keep(self, log_values: Tensor) -> None:
        """Keep the largest values; records that are among them in no row are dropped at once."""
        if self._tail.shape[1] == self._kept:
            log_values = log_values[:, (log_values > self._tail[:, -1:]).any(0)]
        if log_values.shape[1]:
            both = torch.cat([self._tail, log_values], 1)
            self._tail = both.topk(min(self._kept, both.shape[1]), dim=1).values


def _below(log_max: Tensor, top: Tensor) -> Tensor:
    return torch.where(log_max == top, 0.0, log_max - top)


def _rescaled(
    below: Tensor, mean: Tensor, second: Tensor, third: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the moments in units that are e^-below times as large."""
    factor = below.exp()
    return mean * factor + torch.expm1(below), second * factor**2, third * factor**3
