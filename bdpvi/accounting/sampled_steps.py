"""What runs of DP-SGD cost: every record by itself, and every conceivable one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from bdpvi.accounting.events import SampledGaussianSteps
from bdpvi.accounting.hockey_stick import Deltas
from bdpvi.accounting.record_costs import subsampled_gaussian_cost
from bdpvi.accounting.releases import Price
from bdpvi.accounting.worst_case import PrivacyLossAccountant, Run, gaussian_guarantee
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
        """See :class:`~bdpvi.accounting.releases.Releases`."""
        raise ValueError("conversion='hockey-stick' does not take sampled steps yet")

    def largest_cost(self, order: Tensor) -> Tensor | None:
        """Return the cost of a record that is at the largest sensitivity in every step, (K,)."""
        each = [
            run.steps * subsampled_gaussian_cost(1.0, run.noise_multiplier, run.rate, order)
            for run in self.largest
        ]
        return torch.stack(each).sum(0)

    def worst_case(
        self, directions: Sequence[str], delta: float, rounding: float
    ) -> WorstCase | None:
        """Return the guarantee of the runs, by Gaussian DP or privacy loss distributions."""
        first = self.runs[0][0]
        return runs_guarantee(self.largest, delta, f"{first.relation.value} one {first.unit}")

    def own_price(self, directions: Sequence[str], delta: float) -> Price | None:
        """See :class:`~bdpvi.accounting.releases.Releases`."""
        return None


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
    ε = 0.7255 at δ = 1e-05 (Gaussian DP, to add or remove one record)
    """
    if all(run.rate == 1 for run in runs):
        found = gaussian_guarantee(sum(n / sigma**2 for sigma, _, n in runs), delta)
        return None if found is None else replace(found, relation=relation)
    epsilon = PrivacyLossAccountant().together(runs, delta)
    if not math.isfinite(epsilon):
        return None
    return WorstCase(epsilon, delta, PrivacyLossAccountant.name, relation)
