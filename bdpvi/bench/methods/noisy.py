"""Methods that train with noise: the noise multiplier decides ε, and is 0 at ε = ∞."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bdpvi.accounting import worst_case
from bdpvi.accounting.cost import Outcome
from bdpvi.accounting.worst_case import WorstCaseAccountant
from bdpvi.dp.noise import Run


@dataclass(frozen=True)
class NoisyTraining:
    """A training procedure, ready to be run at any noise.

    Attributes:
        accountant: from noise to ε.
        rate, steps, delta: of the training.
        train: takes ``runs``, and does them side by side.
    """

    accountant: WorstCaseAccountant
    rate: float
    steps: int
    delta: float
    train: Callable[..., Sequence[Outcome]]

    def calibrate(self, epsilon: float) -> float:
        """Return the noise multiplier; see :func:`bdpvi.accounting.worst_case.calibrate`."""
        if math.isinf(epsilon):
            return 0.0
        return worst_case.calibrate(
            self.accountant, epsilon=epsilon, delta=self.delta, rate=self.rate, steps=self.steps
        )

    def outcomes(self, settings: Sequence[float], seeds: Sequence[int]) -> list[Outcome]:
        """Train once for each noise multiplier with its seed, all side by side."""
        pairs = zip(settings, seeds, strict=True)
        runs = [Run(noise_multiplier=noise, seed=seed) for noise, seed in pairs]
        return list(self.train(runs=runs))
