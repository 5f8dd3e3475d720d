"""Methods whose training is private by its noise: the noise multiplier decides ε."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bdpvi import worst_case
from bdpvi.dp_noise import Run
from bdpvi.types import Outcome
from bdpvi.worst_case import WorstCaseAccountant


@dataclass(frozen=True)
class NoisyTraining:
    """A training procedure, ready to be run at any noise.

    Attributes:
        accountant: from noise to ε.
        rate, steps, delta: of the training.
        train: several runs side by side.
    """

    accountant: WorstCaseAccountant
    rate: float
    steps: int
    delta: float
    train: Callable[[Sequence[Run]], Sequence[Outcome]]

    def calibrate(self, epsilon: float) -> float:
        """Return the noise multiplier; see :func:`bdpvi.worst_case.calibrate`."""
        return worst_case.calibrate(
            self.accountant, epsilon=epsilon, delta=self.delta, rate=self.rate, steps=self.steps
        )

    def outcomes(self, setting: float, seeds: Sequence[int]) -> list[Outcome]:
        """Train once for each seed, all side by side."""
        return list(self.train([Run(noise_multiplier=setting, seed=seed) for seed in seeds]))
