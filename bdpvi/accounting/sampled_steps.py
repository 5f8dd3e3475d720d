"""What runs of DP-SGD cost: every record by itself, and every conceivable one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from bdpvi.accounting.events import SampledGaussianSteps
from bdpvi.accounting.gaussian import equal_covariance
from bdpvi.accounting.hockey_stick import EPSILONS, Deltas, position
from bdpvi.accounting.loss_distribution import Grid, Kind, Losses
from bdpvi.accounting.record_costs import seen_coin_cost, subsampled_gaussian_cost
from bdpvi.accounting.releases import Price
from bdpvi.accounting.worst_case import (
    PrivacyLossAccountant,
    Run,
    gaussian_epsilon,
    gaussian_guarantee,
    loss_interval,
)
from bdpvi.types import ADD_OR_REMOVE, WorstCase


@dataclass(frozen=True, eq=False)
class SampledRuns:
    """Runs of the same records, and the number of times that each was charged.

    Attributes:
        runs: the runs; of one relation and one unit.
    """

    runs: Sequence[tuple[SampledGaussianSteps, int]]

    @property
    def ranged(self) -> bool:
        """True: clipping bounds every record."""
        return True

    @property
    def largest(self) -> tuple[Run, ...]:
        """The runs of a record that is at the largest sensitivity in every step."""
        return tuple(
            Run(event.noise_multiplier / event.largest, event.rate, event.steps * n)
            for event, n in self.runs
        )

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
        kinds = [
            Kind(event.noise_multiplier / level, event.rate, event.presence)
            for event, _ in self.runs
            for level in event.levels.tolist()
        ]
        counts = self._counts()
        met = counts.any(0)
        interval = min(loss_interval(run.noise_multiplier, run.rate) for run in self.largest)
        largest = [
            (Kind(run.noise_multiplier, run.rate, event.presence), run.steps)
            for run, (event, _) in zip(self.largest, self.runs, strict=True)
        ]
        grid = Grid.around(largest, direction, beta, interval)
        used = [kind for kind, one in zip(kinds, met.tolist(), strict=True) if one]
        return Losses.of(used, direction, grid).deltas(counts[:, met], EPSILONS)

    def _counts(self) -> Tensor:
        """Return counts of all runs side by side, (m + 1, ΣL); the last at the largest level."""
        parts = []
        for event, n in self.runs:
            largest = torch.zeros(1, len(event.levels), dtype=torch.int64)
            largest[0, -1] = event.steps
            parts.append(n * torch.cat([event.counts.cpu(), largest]))
        return torch.cat(parts, 1)

    def _variance(self) -> Tensor | None:
        """Return the variance of the privacy loss, (m + 1,), where every step uses all records.

        It is Σ_t d_t²/z², and the loss is Gaussian. The last is the largest there is.
        """
        if not all(event.rate == event.presence == 1 for event, _ in self.runs):
            return None
        each = [(event.levels.cpu() / event.noise_multiplier).square() for event, _ in self.runs]
        return self._counts().double() @ torch.cat(each)

    def largest_cost(self, order: Tensor) -> Tensor:
        """Return the cost of a record that is at the largest sensitivity in every step, (K,)."""
        each = []
        for run, (event, _) in zip(self.largest, self.runs, strict=True):
            one = subsampled_gaussian_cost(1.0, run.noise_multiplier, run.rate, order)
            each.append(run.steps * seen_coin_cost(one, event.presence))
        return torch.stack(each).sum(0)

    def worst_case(
        self, directions: Sequence[str], delta: float, rounding: float
    ) -> WorstCase | None:
        """Return the guarantee of the runs, by Gaussian DP or privacy loss distributions."""
        first = self.runs[0][0]
        relation = f"{first.relation.value} one {first.unit}"
        if all(event.presence == 1 for event, _ in self.runs):
            return runs_guarantee(self.largest, delta, relation)
        top = SampledRuns([(_largest(event), n) for event, n in self.runs])
        own = float(top.own_price_on_grid(directions, delta)[0])
        name = PrivacyLossAccountant.name
        return WorstCase(own, delta, name, relation) if math.isfinite(own) else None

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
        exceed = torch.stack([self._composed(name, delta)[:-1] > delta for name in directions])
        # From behind the last ε that does not suffice on, all do.
        first = (exceed.any(0) * torch.arange(1, len(EPSILONS) + 1)).amax(1)
        return torch.cat([EPSILONS, EPSILONS.new_full((1,), math.inf)])[first]


def _largest(event: SampledGaussianSteps) -> SampledGaussianSteps:
    """Return the run for records that are at the largest sensitivity in every step."""
    counts = torch.full((3, 1), event.steps)
    return replace(event, ids=torch.arange(3), levels=event.levels[-1:], counts=counts)


@lru_cache(maxsize=256)
def runs_guarantee(
    runs: tuple[Run, ...], delta: float, relation: str = ADD_OR_REMOVE
) -> WorstCase | None:
    """Return the guarantee of several runs, exact where all of them use every record in each step.

    Args:
        runs: of sensitivity 1.
        delta: δ.
        relation: between neighbouring data sets, the one that sensitivities are for.

    Returns:
        None where ε is infinite.

    >>> print(runs_guarantee((Run(50.0, 1.0, 60), Run(50.0, 1.0, 40)), 1e-5))
    worst-case DP: ε = 0.7255 at δ = 1e-05 (Gaussian DP, to add or remove one record)
    """
    if all(run.rate == 1 for run in runs):
        found = gaussian_guarantee(sum(n / sigma**2 for sigma, _, n in runs), delta)
        return None if found is None else replace(found, relation=relation)
    epsilon = PrivacyLossAccountant().together(runs, delta)
    if not math.isfinite(epsilon):
        return None
    return WorstCase(epsilon, delta, PrivacyLossAccountant.name, relation)
