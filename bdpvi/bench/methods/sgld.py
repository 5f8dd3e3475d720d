"""Stochastic gradient Langevin dynamics with differential privacy: DP-SGLD.

Source: Wang, Fienberg and Smola, "Privacy for Free: Posterior Sampling and Stochastic Gradient
Monte Carlo", ICML 2015, Algorithm 2. Langevin dynamics adds noise to its steps; if the guarantee
needs more, more is added, and the samples come from a flatter posterior.
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
from bdpvi.bench.methods.outcome import Outcome
from bdpvi.bench.methods.runs import Run, Streams
from bdpvi.bench.methods.scores import Clip, euclidean, scores
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.contract import Model
from bdpvi.privacy.cost import REPLACE, Cost
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant, WorstCaseAccountant


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


@dataclass(frozen=True, kw_only=True)
class DPSGLDSettings:
    """Settings of DP-SGLD.

    Args:
        steps: number of steps n.
        rate: Poisson sampling rate q of the batches.
        clip: L, bound on the norm of each record's score.
        step_size: Nη of the first step, with N records. The guarantee takes η as a public constant
            that one record does not change. N is not public where neighbours differ by a record:
            unless N is known anyway, choose η beforehand and pass η times N. Sums over a batch are
            divided by the rate only, not by a number of records.
        decay: step t has η_t = η (1 + t)^−decay.
        burn_in: fraction of initial iterates that are not released.
        draws: number of released iterates, evenly spaced over the rest and including the last.
        last: multiplies ``step_size`` for the last latent, such as an intercept. The noise is at
            least that of Langevin dynamics at the smallest step.
    """

    steps: int = 1000
    rate: float = 0.05
    clip: float = 1.0
    step_size: float = 0.1
    decay: float = 0.0
    burn_in: float = 0.5
    draws: int = 100
    last: float = 1.0

    def __post_init__(self) -> None:
        validate.positive("last", self.last)
        validate.positive_int("steps", self.steps)
        validate.rate("rate", self.rate)
        validate.positive("clip", self.clip)
        validate.positive("step_size", self.step_size)
        validate.non_negative("decay", self.decay)
        validate.positive_int("draws", self.draws)
        if not 0 <= self.burn_in < 1:
            raise ValueError(f"burn_in must lie in [0, 1), got {self.burn_in!r}")
        left = self.steps - self.first
        if self.draws > left:
            raise ValueError(f"draws={self.draws} is more than the {left} iterates after burn_in")

    @property
    def first(self) -> int:
        """The first step whose iterate may be released."""
        return math.floor(self.burn_in * self.steps)


@on_host
def dp_sgld_runs(
    model: Model,
    data: Dataset,
    *,
    runs: Sequence[Run],
    settings: DPSGLDSettings | None = None,
    delta: float = 1e-5,
    accountant: WorstCaseAccountant | None = None,
) -> tuple[Outcome, ...]:
    """Return iterates of Langevin dynamics, and the worst-case cost of all of them together.

    Args:
        model: a Pyro model of records, see :mod:`bdpvi.models.contract`.
        data: N records, on the device and of the dtype to train with.
        runs: one or more, side by side; each gets the result that it would get alone. The noise
            multiplier σ means K = (Lσ/q)²; :func:`bdpvi.privacy.sampled_steps.calibrate` finds it
            for an ε, with :class:`SGLDAccountant` as the authors did. If Langevin dynamics needs
            more noise, the larger noise is accounted for.
        settings: how to sample.
        delta: δ of the cost.
        accountant: computes the cost; by default with privacy loss distributions.

    Returns:
        For each run the released iterates as the model's latent variables, each (draws, ...), and
        their cost.

    Raises:
        ValueError: if an argument is out of range.
        FloatingPointError: if the iterates stop being finite.

    >>> from bdpvi import BayesianLogisticRegression, datasets
    >>> data = datasets.load_breast_cancer().train
    >>> runs = [Run(noise_multiplier=3.0)]
    >>> (outcome,) = dp_sgld_runs(BayesianLogisticRegression.unweighted(), data, runs=runs)
    >>> outcome.latents["w"].shape, round(outcome.cost.worst_case.epsilon, 2)
    (torch.Size([100, 30]), 1.93)
    """
    settings = settings or DPSGLDSettings()
    accountant = accountant or PrivacyLossAccountant()
    streams = Streams(runs, data, steps=settings.steps, rate=settings.rate)
    left = settings.steps - settings.first
    kept = {settings.first + j * left // settings.draws - 1 for j in range(1, settings.draws + 1)}
    with isolated(data.x), pyro.validation_enabled(False), torch.no_grad():
        records = scores(model, data)
        clip = Clip(settings.clip, euclidean)
        w = data.x.new_zeros(len(runs), records.dim)
        pace = torch.ones_like(w[0])
        pace[-1] = settings.last
        iterates = []
        for step in range(settings.steps):
            eta = settings.step_size / len(data) * (1 + step) ** -settings.decay
            # The step's noise is N(0, max(η, η²K)), √K = Lσ/q.
            langevin = settings.rate / settings.clip / math.sqrt(eta * min(1, settings.last))
            multiplier = streams.noise_multiplier.clamp(min=langevin)
            total = records.likelihood(w, streams.batch(step), clip)
            score = streams.noisy(total, settings.clip, multiplier) / settings.rate
            w = w + eta * pace * (records.prior(w) + score)
            if step in kept:
                iterates.append(w)
        flat = torch.stack(iterates, dim=1)
        if not bool(flat.isfinite().all()):
            raise FloatingPointError("step_size: the iterates are not finite; use a smaller one")
        latents = torch.vmap(torch.vmap(records.unpack))(flat)
    prices = streams.prices(accountant, delta)
    return tuple(
        Outcome({name: value[r] for name, value in latents.items()}, Cost.of(price))
        for r, price in enumerate(prices)
    )
