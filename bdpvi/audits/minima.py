"""Objective perturbation, audited by the exact loss of its minima.

The minimum w for a slope b ~ N(0, σ²I) has F(w) + b = 0, F the gradient of the table's objective.
So its density is that of b at −F(w), times |det F′(w)| (Kifer, Smith and Thakurta 2012, Theorem 1),
and its loss against the other table follows from both tables' gradients, those of the search. What
is released is the minimum with more noise, which gives away less.

δ is a mean over minima. Their slopes are moved along the record's row, to where losses are large,
and weighted by the ratio of the two densities.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from bdpvi._ground.host import HOST
from bdpvi.audits.claims import Claim
from bdpvi.audits.found import CERTAIN, LEVEL, Audit, Door
from bdpvi.noise.keys import Key
from bdpvi.noise.secure import gaussian_sum
from bdpvi.privacy.ledger import Ledger
from bdpvi.regression import perturbed_objective
from bdpvi.regression.perturbed_objective import SummedObjective
from bdpvi.synthesis.counts import Floats

DRAWS = 400
"""Minima of each table."""
_PLACES = 2001
"""Values of ε that are tried."""


@dataclass(frozen=True, eq=False)
class Solved:
    """The objective of a table, as a door solves it, and σ of its slope."""

    objective: SummedObjective
    sigma: float

    @classmethod
    def of(cls, door: Door, table: object) -> tuple[Solved, Ledger]:
        """Go through a door with a table; return what was solved, and what was charged."""
        minimum = SummedObjective.minimum
        found, sigmas = [], []

        def note_minimum(objective: SummedObjective, slope: Tensor) -> Tensor:
            found.append(objective)
            return minimum(objective, slope)

        def noisy(total: Tensor, deviation: float, key: Key) -> Tensor:
            sigmas.append(deviation)
            return gaussian_sum(total, deviation, key)

        with (
            mock.patch.object(SummedObjective, "minimum", note_minimum),
            mock.patch.object(perturbed_objective, "gaussian_sum", noisy),
        ):
            ledger = door.through(table)[1]
        return cls(found[0], sigmas[0]), ledger

    def log_density(self, w: Tensor) -> float:
        """Return the logarithm of the minimum's density, up to a constant."""
        bend = torch.autograd.functional.jacobian(self.objective.gradient, w)
        slope = self.objective.gradient(w)
        return float(bend.slogdet()[1] - slope.square().sum() / (2 * self.sigma**2))

    def loss(self, slope: Tensor, other: Solved) -> float:
        """Return the loss of the minimum for a slope, against another table."""
        w = self.objective.minimum(slope)
        return self.log_density(w) - other.log_density(w)

    def losses(
        self, other: Solved, row: Tensor, delta: float, random: torch.Generator
    ) -> tuple[Floats, Floats]:
        """Return losses of minima against another table, and their weights.

        Args:
            other: the other table.
            row: of the record, of length 1.
            delta: slopes are moved along the row, to where about this probability begins.
            random: of the slopes.
        """
        far = NormalDist().inv_cdf(1 - delta) * row
        moved = max(far, -far, key=lambda one: self.loss(self.sigma * one, other))
        units = (
            torch.randn(DRAWS, len(row), generator=random, dtype=torch.float64, device=HOST) + moved
        )
        found = [self.loss(self.sigma * unit, other) for unit in units]
        weights = (moved @ moved / 2 - units @ moved).exp()
        return np.array(found), weights.numpy()


def audited(name: str, make: Callable[[], Door], delta: float) -> Audit:
    """Return the audit of a door of perturbed objectives.

    Args:
        name: of the audit.
        make: returns what is gone through, without and with the record.
        delta: δ.
    """
    begun, door, random = time.monotonic(), make(), torch.Generator().manual_seed(0)
    (one, ledger), (two, _) = (Solved.of(door, table) for table in (door.without, door.with_it))
    claim, centre = Claim.of(ledger).epsilon(delta), one.objective.centre
    row = two.objective.gradient(centre) - one.objective.gradient(centre)
    ways = [a.losses(b, row / row.norm(), delta, random) for a, b in ((one, two), (two, one))]
    low, certain = (max(_epsilon(*way, level, delta) for way in ways) for level in (LEVEL, CERTAIN))
    made = Audit.exact(name, claim, low, delta, begun)
    return replace(made, certain=certain, runs=DRAWS)


def _epsilon(losses: Floats, weights: Floats, level: float, delta: float) -> float:
    """Return the largest ε at which δ is above ``delta``, by the central limit theorem."""
    far, result = NormalDist().inv_cdf((1 + level) / 2), 0.0  # both ways are tried
    for epsilon in np.linspace(0.0, max(float(losses.max()), 0.0), _PLACES):
        each = weights * -np.expm1(np.minimum(epsilon - losses, 0.0))
        if each.mean() - far * each.std() / math.sqrt(len(each)) > delta:
            result = float(epsilon)
    return result
