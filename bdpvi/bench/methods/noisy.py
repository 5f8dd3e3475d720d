"""Methods that train with noise: the noise multiplier determines ε, and is 0 at ε = ∞."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bdpvi.bench.methods.method import Outcome
from bdpvi.bench.methods.runs import Run
from bdpvi.privacy import sampled_steps
from bdpvi.privacy.sampled_steps import WorstCaseAccountant


@dataclass(frozen=True)
class NoisyTraining:
    """A training procedure, ready to run at any noise multiplier.

    Attributes:
        accountant: computes ε from the noise.
        rate, steps, delta: sampling rate, number of steps and δ of the training.
        settings: maps a noise multiplier to the training's settings; hashable.
        train: takes ``runs`` and ``settings``; trains runs with the same settings side by side.
    """

    accountant: WorstCaseAccountant
    rate: float
    steps: int
    delta: float
    settings: Callable[[float], Any]
    train: Callable[..., Sequence[Outcome]]

    def calibrate(self, epsilon: float) -> float:
        """Return the noise multiplier; see :func:`bdpvi.privacy.sampled_steps.calibrate`."""
        if math.isinf(epsilon):
            return 0.0
        return sampled_steps.calibrate(
            self.accountant, epsilon=epsilon, delta=self.delta, rate=self.rate, steps=self.steps
        )

    def outcomes(self, settings: Sequence[float], seeds: Sequence[int]) -> list[Outcome]:
        """Train once for each noise multiplier with its seed, side by side where possible."""
        pairs = enumerate(zip(settings, seeds, strict=True))
        runs = {i: Run(noise_multiplier=noise, seed=seed) for i, (noise, seed) in pairs}
        how = {noise: self.settings(noise) for noise in settings}
        found: dict[int, Outcome] = {}
        for made in dict.fromkeys(how.values()):
            own = [i for i, run in runs.items() if how[run.noise_multiplier] == made]
            outcomes = self.train(runs=[runs[i] for i in own], settings=made)
            found |= zip(own, outcomes, strict=True)
        return [found[i] for i in runs]
