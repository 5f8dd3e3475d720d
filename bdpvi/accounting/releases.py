"""What an accountant may know of its events beyond moments: their privacy loss, and its bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from bdpvi.accounting.hockey_stick import Deltas, Draws, deltas_of, loss_variance, variance_bound
from bdpvi.accounting.worst_case import gaussian_epsilon, gaussian_guarantee
from bdpvi.types import WorstCase

Price = tuple[Tensor, Callable[[float], float]]
"""A number per record, (m,), and the ε that it stands for, which rises with it."""


class Releases(Protocol):
    """All events of an accountant, where they are of one type whose privacy loss is known."""

    @property
    def ranged(self) -> bool:
        """Whether the cost of every conceivable record is bounded."""

    def deltas(self, direction: str, beta: float) -> Deltas:
        """Return every record's own δ as a function of ε; β is the wanted mean of δ."""

    def largest_cost(self, order: Tensor) -> Tensor | None:
        """Return a bound on the cost of every conceivable record at orders (K,), if it is known."""

    def worst_case(
        self, directions: Sequence[str], delta: float, rounding: float
    ) -> WorstCase | None:
        """Return the guarantee for every conceivable record, None where there is none."""

    def own_price(self, directions: Sequence[str], delta: float) -> Price | None:
        """Return what each record costs by itself, the larger of the directions, if known."""


@dataclass(frozen=True, eq=False)
class PosteriorReleases:
    """Draws from Gaussian guides, and the number of times that each was charged."""

    draws: Draws

    @property
    def ranged(self) -> bool:
        """Whether every panel has a bound."""
        return all(one.largest is not None for event, _ in self.draws for one in event.panels)

    def deltas(self, direction: str, beta: float) -> Deltas:
        """See :class:`Releases`."""
        return deltas_of(self.draws, direction, beta)

    def largest_cost(self, order: Tensor) -> Tensor | None:
        """Return None: the panel's bound is used by the hockey-stick conversion alone."""
        return None

    def worst_case(
        self, directions: Sequence[str], delta: float, rounding: float
    ) -> WorstCase | None:
        """Return the guarantee of the one Gaussian mechanism that the draws are."""
        if not self.ranged:
            return None
        variance = max(variance_bound(self.draws, name) or 0.0 for name in directions)
        return gaussian_guarantee(variance, delta, rounding)

    def own_price(self, directions: Sequence[str], delta: float) -> Price | None:
        """Return it where covariances are equal: ε rises with the variance of the loss."""
        variances = [loss_variance(self.draws, name) for name in directions]
        if any(v is None for v in variances):
            return None
        own = torch.stack([v for v in variances if v is not None]).amax(0)
        return own, partial(gaussian_epsilon, delta=delta)
