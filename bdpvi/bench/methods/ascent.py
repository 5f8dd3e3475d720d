"""Noisy ascent of the log density: full-batch gradient steps, DP-GD, and Langevin's, DP-SGLD.

Source of DP-SGLD: Wang, Fienberg and Smola, "Privacy for Free: Posterior Sampling and Stochastic
Gradient Monte Carlo", ICML 2015, Algorithm 2. Langevin dynamics adds noise to its steps; if the
guarantee needs more, more is added, and the samples come from a flatter posterior.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyro
import torch

from bdpvi._ground import validate
from bdpvi._ground.host import on_host
from bdpvi.bayesian.inference.svi import isolated
from bdpvi.bench.methods.method import Outcome
from bdpvi.bench.methods.runs import Run, Streams
from bdpvi.bench.methods.scores import Clip, RecordScores, euclidean
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.privacy.cost import REPLACE, Cost
from bdpvi.privacy.sampled_steps import WorstCaseAccountant


@dataclass(frozen=True, kw_only=True)
class AscentSettings:
    """Settings of noisy ascent.

    Args:
        steps: number of steps.
        rate: Poisson sampling rate q of the batches; 1 takes all records in every step.
        clip: C, bound on the norm of each record's score.
        step_size: Nη of the first step. A step moves by η times the sum of the records' clipped
            scores; N is the number of records. The guarantee takes η as a public constant that one
            record does not change. N is not public where neighbours differ by a record: unless N is
            known anyway, choose η beforehand and pass η times N.
        last: multiplies ``step_size`` for the last weight. Noise in a weight harms in proportion to
            its squared feature, so noise in d weights harms d times as much as noise in an
            intercept, which may therefore take longer steps.
        decay: step t has η_t = η (1 + t)^−decay.
        langevin: whether each step has at least the noise of Langevin dynamics.
        first: number of initial iterates that are not published.
        draws: number of published iterates, evenly spaced over the rest and including the last;
            None publishes the mean of the rest.
    """

    steps: int
    rate: float = 1.0
    clip: float = 1.0
    step_size: float = 1.0
    last: float = 1.0
    decay: float = 0.0
    langevin: bool = False
    first: int = 0
    draws: int | None = None

    def __post_init__(self) -> None:
        validate.positive_int("steps", self.steps)
        validate.rate("rate", self.rate)
        for name in ("clip", "step_size", "last"):
            validate.positive(name, getattr(self, name))
        validate.non_negative("decay", self.decay)
        left = self.steps - self.first
        if self.draws is not None and validate.positive_int("draws", self.draws) > left:
            raise ValueError(f"draws={self.draws} is more than the {left} iterates after burn_in")

    @property
    def published(self) -> set[int]:
        """The steps whose iterates are published."""
        left = self.steps - self.first
        count = self.draws or left
        return {self.first + j * left // count - 1 for j in range(1, count + 1)}


@on_host
def noisy_ascent(
    model: BayesianLogisticRegression,
    data: Dataset,
    *,
    runs: Sequence[Run],
    settings: AscentSettings,
    accountant: WorstCaseAccountant,
    delta: float = 1e-5,
) -> tuple[Outcome, ...]:
    """Return weights near the maximum of the posterior density, and what they cost.

    Args:
        model: makes the features.
        data: N records, on the device and of the dtype to train with.
        runs: one or more, trained side by side; each gets the result that it would get alone.
            :func:`bdpvi.privacy.sampled_steps.calibrate` finds the noise multiplier for an ε.
        settings: how to step. If Langevin dynamics needs more noise than a run has, the larger
            noise is accounted for.
        accountant: computes the cost of all steps together.
        delta: δ of the cost.

    Raises:
        ValueError: if an argument is out of range.
        FloatingPointError: if the iterates stop being finite.

    >>> from bdpvi import datasets
    >>> from bdpvi.privacy.sampled_steps import GaussianAccountant
    >>> data = datasets.load_breast_cancer().train
    >>> (outcome,) = noisy_ascent(
    ...     BayesianLogisticRegression.unweighted(), data, runs=[Run(noise_multiplier=50.0)],
    ...     settings=AscentSettings(steps=100, first=50), accountant=GaussianAccountant(),
    ... )
    >>> outcome.latents["w"].shape, round(outcome.cost.worst_case.epsilon, 4)
    (torch.Size([1, 30]), 0.7255)
    """
    streams = Streams(runs, data, steps=settings.steps, rate=settings.rate)
    with isolated(data.x), pyro.validation_enabled(False), torch.no_grad():
        records = RecordScores(model, data)
        clip = Clip(settings.clip, euclidean)
        w = data.x.new_zeros(len(runs), records.dim)
        pace = torch.ones_like(w[0])
        pace[-1] = settings.last
        iterates, published, multiplier = [], settings.published, None
        for step in range(settings.steps):
            eta = settings.step_size / len(data) * (1 + step) ** -settings.decay
            if settings.langevin:  # the step's noise is N(0, max(η, η²K)), √K = Cσ/q
                least = settings.rate / settings.clip / math.sqrt(eta * min(1, settings.last))
                multiplier = streams.noise_multiplier.clamp(min=least)
            total = records.likelihood(w, streams.batch(step), clip)
            score = streams.noisy(total, settings.clip, multiplier) / settings.rate
            w = w + eta * pace * (records.prior(w) + score)
            if step in published:
                iterates.append(w)
        weights = torch.stack(iterates, dim=1)
        if settings.draws is None:
            weights = weights.mean(1, keepdim=True)
        if not bool(weights.isfinite().all()):
            raise FloatingPointError("step_size: the iterates are not finite; use a smaller one")
    prices = streams.prices(accountant, delta)
    return tuple(Outcome({"w": w}, Cost.of(p)) for w, p in zip(weights, prices, strict=True))


@dataclass(frozen=True)
class SGLDAccountant:
    """The calibration of Wang, Fienberg and Smola (2015), Theorem 3.

    With n steps on batches of size b = qN, so T = nq passes over the data, a gradient noise of
    variance K = 128 N T L²/(b ε²) · log(5NT/2bδ) · log(2/δ) gives (ε, δ), as long as
    T ≥ ε² N/(32 b log(2/δ)). As NT/b = n, only n, q and the noise multiplier σ = q√K/L matter. The
    theorem is for batches of fixed size and one record replaced.

    >>> round(SGLDAccountant().epsilon(40.0, rate=0.01, steps=2000, delta=1e-3), 3)
    1.37
    """

    name: ClassVar[str] = "Wang, Fienberg and Smola (2015)"
    relation: ClassVar[str] = REPLACE

    def epsilon(self, noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
        """Return ε; see :class:`~bdpvi.privacy.sampled_steps.WorstCaseAccountant`."""
        sigma = validate.positive("noise_multiplier", noise_multiplier)
        rate = validate.rate("rate", rate)
        epsilon = (
            rate / sigma * math.sqrt(gradient_variance(1.0, delta=delta, steps=steps, clip=1.0))
        )
        enough = steps * rate >= epsilon**2 / (32 * rate * math.log(2 / delta))
        return epsilon if enough else math.inf


def gradient_variance(epsilon: float, *, delta: float, steps: int, clip: float) -> float:
    """Return K, the noise variance in the full gradient that the theorem requires.

    Args:
        epsilon, delta: the guarantee.
        steps: NT/b.
        clip: L, bound on the norm of every record's score.

    >>> f"{gradient_variance(1.0, delta=1e-5, steps=1000, clip=1.0):.4g}"
    '3.021e+07'
    """
    validate.epsilon(epsilon)
    validate.positive("clip", clip)
    validate.positive_int("steps", steps)
    validate.probability("delta", delta)
    logs = math.log(5 * steps / (2 * delta)) * math.log(2 / delta)
    return 128 * steps * (clip / epsilon) ** 2 * logs
