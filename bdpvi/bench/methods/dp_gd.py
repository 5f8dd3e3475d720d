"""DP-GD: full-batch gradient descent, with exact Gaussian DP and with Bayesian accounting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, ClassVar

import torch

from bdpvi._ground.types import Scope
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.guarantees import BAYESIAN, WORST_CASE
from bdpvi.bench.methods.descent import DPGDSettings, dp_gd_runs
from bdpvi.bench.methods.method import MODEL_SPACE
from bdpvi.bench.methods.noisy import NoisyTraining
from bdpvi.bench.methods.outcome import Outcome
from bdpvi.bench.methods.pace import LIMIT, clip_of, pace
from bdpvi.bench.methods.temperature import bayesian, coldest
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.noise.secure import sum_rounding
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.cost import Cost
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.norms import NormCounts
from bdpvi.privacy.sampled_steps import GaussianAccountant


@dataclass(frozen=True, kw_only=True)
class DPGD:
    """Private gradient descent on all records.

    Args:
        model: what is fitted.
        steps, tail: see :class:`~bdpvi.bench.methods.descent.DPGDSettings`.
        clip, step_size: see there; None uses the rule of :mod:`bdpvi.bench.methods.pace`, by the
            noise and the table's size.
    """

    model: BayesianLogisticRegression = field(
        default_factory=lambda: BayesianLogisticRegression.unweighted(intercept=True, limit=LIMIT)
    )
    steps: int = 20
    clip: float | None = None
    step_size: float | None = None
    tail: float = 0.25

    name: ClassVar[str] = "dp-gd"
    label: ClassVar[str] = "DP-GD, Gaussian DP"
    guarantee: ClassVar[str] = WORST_CASE
    note: ClassVar[str] = (
        "Every step sees all records; the seeds are those of the noise. A step is step_size over "
        "the number of training records, which ε treats as a public constant; without a "
        "step_size it follows from ε, the columns and the declared number of rows."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        **MODEL_SPACE,
        "steps": (1, 2, 5, 10, 20, 30, 100, 200, 500),
        "clip": (None, 0.05, 0.1, 0.25, 0.5, 1.0),
        "step_size": (None, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0),
        "tail": (0.25, 0.5, 0.75),
    }

    def __post_init__(self) -> None:
        self._settings(self.clip or 1.0, self.step_size or 1.0, 1.0)

    def prepare(self, train: Dataset, delta: float) -> NoisyTraining:
        """Return the training, ready to run at any noise multiplier."""
        weights = self.model.design(train.x[:1]).shape[1]

        def settings(noise_multiplier: float) -> DPGDSettings:
            if self.step_size is not None:
                return self._settings(self.clip or clip_of(weights), self.step_size, 1.0)
            made = pace(
                weights, len(train), noise_multiplier=noise_multiplier,
                steps=self.steps, rate=1.0, clip=self.clip,
            )  # fmt: skip
            return self._settings(made.clip, made.step_size / made.rows * len(train), made.last)

        train_runs = partial(dp_gd_runs, self.model, train, delta=delta)
        return NoisyTraining(GaussianAccountant(), 1.0, self.steps, delta, settings, train_runs)

    def _settings(self, clip: float, step_size: float, last: float) -> DPGDSettings:
        return DPGDSettings(
            steps=self.steps, clip=clip, step_size=step_size, tail=self.tail, last=last
        )


class DPGDBayesian(DPGD):
    """:class:`DPGD` with Bayesian accounting: a record's cost is that of its longest gradient.

    The derivative of the log-likelihood in the logit is at most 1, so at any weights the clipped
    gradient of record x has norm at most min(C, ‖x‖), whatever was released before. Its cost in T
    steps at noise C·z is then that of one Gaussian release at distance √T · min(1, ‖x‖/C) / z, and
    ε follows from the mean over the training records, each left out in turn.
    """

    name: ClassVar[str] = "dp-gd-bayesian"
    label: ClassVar[str] = "DP-GD, Bayesian accounting (experiment)"
    guarantee: ClassVar[str] = BAYESIAN
    note: ClassVar[str] = (
        f"{DPGD.note} The training of the row above with the same hyper-parameters. The cost of a "
        "record follows from the norm of its features alone and holds on every training path. If "
        "nearly all norms exceed the clip, it equals the worst-case cost and nothing is gained. "
        "An experiment: the noise is chosen from the training records, on a coarse public grid, "
        "and nothing is charged for publishing it, so there is no worst-case guarantee."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {}
    settings_of: ClassVar[str] = DPGD.name

    def prepare(self, train: Dataset, delta: float) -> PreparedDPGD:
        """Count each record at its sensitivity, rounded up to one of 64 levels."""
        worst = super().prepare(train, delta)
        design = self.model.design(train.x.cpu().double())
        slope = self.model.slope_bound(design).clamp(max=1)
        clip = self.clip or clip_of(design.shape[1])
        bound = slope * torch.linalg.vector_norm(design, dim=1) / clip
        norms = NormCounts.none(train.ids.cpu(), scope=Scope.STATIC).add(bound, self.steps)
        rounding = sum_rounding(self.steps * design.shape[1])

        def account(noise_multiplier: float) -> Account:
            run = SampledGaussian(
                noise_multiplier=noise_multiplier,
                steps=self.steps,
                rounding=rounding,
                norms=norms,
            )
            return Account([run])

        @cache
        def price(noise_multiplier: float) -> Cost:
            # Noise calibrated on the records is not public, so there is no worst-case guarantee.
            found = bayesian(account(noise_multiplier).cost(delta))
            return Cost(bayesian=found.assuming(Assumption.FOUND_FROM_DATA))

        return PreparedDPGD(**vars(worst), price=price, account=account)


@dataclass(frozen=True)
class PreparedDPGD(NoisyTraining):
    """A training procedure with Bayesian accounting.

    Attributes:
        accountant, rate, steps, delta, settings, train: see :class:`NoisyTraining`.
        price: maps a noise multiplier to the cost of the training.
        account: maps a noise multiplier to the account of the training.
    """

    price: Callable[[float], Cost]
    account: Callable[[float], Account]

    def calibrate(self, epsilon: float) -> float:
        """Return a noise multiplier whose square is on the public grid, or the worst case's.

        It is the smaller of the two: the worst case's noise also suffices for Bayesian DP.
        """
        found = coldest(lambda variance: bayesian(self.price(math.sqrt(variance))), epsilon)
        return min(math.sqrt(found), super().calibrate(epsilon))

    def outcomes(self, settings: Sequence[float], seeds: Sequence[int]) -> list[Outcome]:
        """Train once for each noise multiplier with its seed, all side by side."""
        pairs = zip(super().outcomes(settings, seeds), settings, strict=True)
        return [replace(outcome, cost=self.price(noise)) for outcome, noise in pairs]
