"""One-shot noisy statistics: logistic regression from noisy moments of the features."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.bayesian.guarantees import WORST_CASE
from bdpvi.bench.methods.method import MODEL_SPACE
from bdpvi.bench.methods.outcome import Outcome
from bdpvi.bench.methods.pace import LIMIT
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.noise.keys import Key
from bdpvi.noise.secure import gaussian_sum, sum_rounding
from bdpvi.privacy import sampled_steps, worst_case
from bdpvi.privacy.cost import Cost
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.sampled_steps import GaussianAccountant
from bdpvi.releases.clipping import shortened

BEND = 0.1
"""Half the second derivative of −log σ, taken as constant: in truth 1/8 at 0 and 0.05 at 2."""


@dataclass(frozen=True, kw_only=True)
class NoisyStatistics:
    """The maximum of a quadratic log-likelihood whose coefficients get Gaussian noise once.

    With log σ(s) approximated by −log 2 + s/2 − b s², b = :data:`BEND`, records z clipped to norm C
    give t = Σ (y − ½) z and S = Σ z zᵀ, and the released weights are (2b S̃ + λI)⁻¹ t̃. One record
    moves t/(C/2) and S/C² by at most 1, and each gets half of μ². λ is the prior's precision plus,
    against eigenvalues that the noise in S makes small, √d standard deviations of that noise.

    Source: Huggins, Adams and Broderick, "PASS-GLM" (2017), degree 2; noise as in Wang, "Revisiting
    differentially private linear regression" (2018), Algorithm 1.

    Args:
        model: makes the features, and predicts.
        reach: C over √d, d columns of the design.
    """

    model: BayesianLogisticRegression = field(
        default_factory=lambda: BayesianLogisticRegression.unweighted(intercept=True, limit=LIMIT)
    )
    reach: float = 0.75

    name: ClassVar[str] = "noisy-statistics"
    label: ClassVar[str] = "noisy statistics, one shot"
    guarantee: ClassVar[str] = WORST_CASE
    note: ClassVar[str] = (
        "Sums of the features' products, and of features times targets, with noise that is drawn "
        "once; the seeds are those of the noise."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        **MODEL_SPACE,
        "reach": (0.25, 0.35, 0.5, 0.75, 1.0, 1.5),
    }

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", self.model.plain)
        validate.positive("reach", self.reach)

    def prepare(self, train: Dataset, delta: float) -> PreparedStatistics:
        """Sum over the records.

        >>> data = Dataset(torch.ones(1000, 1), torch.tensor([1.0, 0.0]).repeat(500))
        >>> prepared = NoisyStatistics().prepare(data, 1e-5)
        >>> (made,) = prepared.outcomes([prepared.calibrate(1.0)], [0])
        >>> made.latents["w"].shape, round(made.cost.worst_case.epsilon, 2)
        (torch.Size([1, 2]), 1.0)
        """
        self.model.check(train)
        z = self.model.design(train.x.cpu().double())
        clip = self.reach * math.sqrt(z.shape[1])
        least = shortened(clip, z.shape[1] ** 2)
        z = z * (least / torch.linalg.vector_norm(z, dim=1, keepdim=True)).clamp(max=1)
        t = (train.y.cpu().double() - 0.5) @ z / (clip / 2)
        return PreparedStatistics(self, t, z.T @ z / clip**2, clip, delta, train.x[:0])


@dataclass(frozen=True, eq=False)
class PreparedStatistics:
    """Sums in units of their sensitivity.

    Args:
        method: the settings.
        t: (d,).
        s: (d, d).
        clip: C.
        delta: δ of every cost.
        like: tensor with the dtype and device of the records.
    """

    method: NoisyStatistics
    t: Tensor
    s: Tensor
    clip: float
    delta: float
    like: Tensor

    def calibrate(self, epsilon: float) -> float:
        """Return the noise multiplier of both sums together."""
        if math.isinf(epsilon):
            return 0.0
        return sampled_steps.calibrate(
            GaussianAccountant(), epsilon=epsilon, delta=self.delta, rate=1.0, steps=1
        )

    def outcomes(self, settings: Sequence[float], seeds: Sequence[int]) -> list[Outcome]:
        """Return weights for each noise multiplier and seed."""
        return [self._outcome(*pair) for pair in zip(settings, seeds, strict=True)]

    def noisy(self, noise: float, key: Key) -> tuple[Tensor, Tensor]:
        """Return both sums with noise of deviation √2 · ``noise``, each in its own units."""
        draw = partial(gaussian_sum, deviation=math.sqrt(2) * noise)
        whole = draw(torch.zeros_like(self.s), key=key.child("s"))
        # An entry off the diagonal counts twice in the norm of S, so half the variance suffices.
        upper = whole.triu(1) / math.sqrt(2)
        s = self.s + upper + upper.T + torch.diag(whole.diagonal())
        return draw(self.t, key=key.child("t")), s

    def _outcome(self, noise: float, seed: int) -> Outcome:
        t, s, cost, model = self.t, self.s, None, self.method.model
        size = len(t)
        if noise:
            t, s = self.noisy(noise, Key.of_seed(seed))
            rounding = sum_rounding(size * (size + 1))
            event = SampledGaussian(noise_multiplier=noise, rounding=rounding)
            cost = Cost.of(worst_case.epsilon([event], self.delta))
        quadratic, prior = 2 * BEND * self.clip**2, model.precision(size)
        values, vectors = torch.linalg.eigh(s)
        bend = quadratic * (values.clamp(min=0) + math.sqrt(2 * size) * noise) + prior
        pull = self.clip / 2 * t - prior * model.departure(torch.zeros_like(t))
        w = vectors @ ((vectors.T @ pull) / bend)
        return Outcome({"w": w[None].to(self.like)}, cost)
