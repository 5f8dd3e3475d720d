"""What runs of DP-SGD cost: every record by itself, and every conceivable one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from bdpvi.accounting import worst_case
from bdpvi.accounting.conversions import position
from bdpvi.accounting.events import SampledGaussian
from bdpvi.accounting.gaussian import equal_covariance
from bdpvi.accounting.hockey_stick import Deltas
from bdpvi.accounting.loss_distribution import deltas_on_grid, least_epsilons
from bdpvi.accounting.record_costs import seen_coin_cost, subsampled_gaussian_cost
from bdpvi.accounting.releases import Price
from bdpvi.accounting.worst_case import gaussian_epsilon
from bdpvi.types import WorstCase


@dataclass(frozen=True, eq=False)
class SampledRuns:
    """Runs of the same records, and the number of times that each was charged.

    Attributes:
        runs: the runs; of one relation and one unit.
    """

    runs: Sequence[tuple[SampledGaussian, int]]

    @property
    def ranged(self) -> bool:
        """True: clipping bounds every record."""
        return True

    @property
    def largest(self) -> list[SampledGaussian]:
        """The runs of a record that is at the largest norm in every step."""
        return [event.at(event.largest, event.steps * n) for event, n in self.runs]

    def deltas(self, direction: str, beta: float) -> Deltas:
        """Return every record's own δ as a function of ε, at most that of the largest cost."""
        variance = self._variance()
        if variance is not None:
            top, own = variance[-1:], variance[:-1].minimum(variance[-1:])
            return Deltas(
                partial(equal_covariance, own),
                bound=lambda epsilon: float(equal_covariance(top, epsilon)),
            )
        composed = self._composed(direction, beta)
        # Below the grid, at position -1, every δ counts as 1.
        found = torch.cat([composed.minimum(composed[-1]), torch.ones(len(composed), 1)], 1)
        return Deltas(
            lambda epsilon: found[:-1, position(epsilon)],
            bound=lambda epsilon: float(found[-1, position(epsilon)]),
        )

    def _composed(self, direction: str, beta: float) -> Tensor:
        """Return δ at all of ``EPSILONS``, (m + 1, ·): of each record, and of the largest cost."""
        kinds = [event.at(float(level)) for event, _ in self.runs for level in _levels(event)]
        return deltas_on_grid(kinds, self._counts(), self.largest, direction, beta)

    def _counts(self) -> Tensor:
        """Return counts of all runs side by side, (m + 1, ΣL); the last at the largest level."""
        parts = []
        for event, n in self.runs:
            largest = torch.zeros(1, len(_levels(event)), dtype=torch.int64)
            largest[0, -1] = event.steps
            own = largest[:0] if event.norms is None else event.norms.counts.cpu()
            parts.append(n * torch.cat([own, largest]))
        return torch.cat(parts, 1)

    def _variance(self) -> Tensor | None:
        """Return the variance of the privacy loss, (m + 1,), where every step uses all records.

        It is Σ_t d_t²/z², and the loss is Gaussian. The last is the largest there is.
        """
        if not all(event.rate == event.presence == 1 for event, _ in self.runs):
            return None
        each = [(_levels(event) / event.noise_multiplier).square() for event, _ in self.runs]
        return self._counts().double() @ torch.cat(each)

    def largest_cost(self, order: Tensor) -> Tensor:
        """Return the cost of a record that is at the largest sensitivity in every step, (K,)."""
        each = []
        for run in self.largest:
            one = subsampled_gaussian_cost(1.0, run.noise_multiplier, run.rate, order)
            each.append(run.steps * seen_coin_cost(one, run.presence))
        return torch.stack(each).sum(0)

    def worst_case(
        self, directions: Sequence[str], delta: float, rounding: float
    ) -> WorstCase | None:
        """Return the guarantee of the runs, by Gaussian DP or privacy loss distributions."""
        runs = [
            replace(event, steps=n * event.steps, rounding=n * event.rounding, norms=None)
            for event, n in self.runs
        ]
        return worst_case.epsilon(runs, delta)

    def own_price(self, directions: Sequence[str], delta: float) -> Price:
        """Return ε of each record, exact where every step uses all records, else on a grid."""
        variance = self._variance()
        if variance is not None:
            return variance[:-1], partial(gaussian_epsilon, delta=delta)
        own = self.own_price_on_grid(directions, delta)
        worst = self.worst_case(directions, delta, 0.0)
        return own.clamp(max=worst.epsilon if worst else math.inf), float

    def own_price_on_grid(self, directions: Sequence[str], delta: float) -> Tensor:
        """Return the least of ``EPSILONS`` that suffices for each record, (m,), or +inf."""
        deltas = torch.stack([self._composed(name, delta)[:-1] for name in directions])
        return least_epsilons(deltas, delta)


def _levels(event: SampledGaussian) -> Tensor:
    if event.norms is None:
        return torch.tensor([event.largest], dtype=torch.float64)
    return event.norms.levels
