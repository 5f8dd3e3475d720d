"""Bayesian linear regression within public bounds.

*Loss.* Errors of the logistic law with scale s₀: ℓ = 2 ln(1 + e^{r/s₀}) − r/s₀ with r = a − y has
ℓ′ = (2p − 1)/s₀ and derivatives 2/s₀ᵏ times those of :mod:`bdpvi.models.losses`: s = 1/s₀,
κ = 1/(2s₀²), M = 1/s₀.

*Noisy scores.* s = wψ(r), r the residual of y clipped to its bound, ψ clips at ± κ, h = w, q = wψ²;
the length is at most κR√(1 + ¼ + 1/k) for c = κ/2R and e = R/(κ√k). κ comes from earlier rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.models.contract import Prior, log_prior
from bdpvi.models.family import Regression
from bdpvi.models.losses import (
    LossBound,
    PredictorLoss,
    softplus,
    softplus_slopes,
    softplus_smoothed,
)
from bdpvi.models.scores import Parts, ScoreParts, row_weights

_HUBER = 2.5
"""κ in standard deviations of the residuals."""


@dataclass(frozen=True)
class LogisticErrors(PredictorLoss):
    """Numbers with errors of the logistic law.

    >>> LogisticErrors(scale=2.0).bound
    LossBound(score=0.5, curvature=0.125, concordance=0.5)
    """

    scale: float

    @property
    def bound(self) -> LossBound:  # type: ignore[override]
        """Bounds for every target."""
        return LossBound(1 / self.scale, 0.5 / self.scale**2, 1 / self.scale)

    def value(self, a: Tensor, y: Tensor) -> Tensor:
        """Return ℓ."""
        r = (a - y) / self.scale
        return 2 * softplus(r) - r

    def slopes(self, a: Tensor, y: Tensor, degree: int) -> list[Tensor]:
        """Return the derivatives."""
        s = self.scale
        first, *more = softplus_slopes((a - y) / s, degree)
        return [(2 * first - 1) / s, *(2 * slope / s**k for k, slope in enumerate(more, 2))]

    def smoothed(self, mean: Tensor, variance: Tensor, mark: Tensor, order: int) -> Tensor:
        """Return the expectations, by those of ln(1 + e^a)."""
        error, ones = (mean - mark) / self.scale, torch.ones_like(mean)
        variance = variance / self.scale**2
        return softplus_smoothed(error, variance, 2 * ones, order, ones, error)


@dataclass(frozen=True)
class LinearScores(ScoreParts):
    """Numbers, clipped at ± ``largest``, with normal errors of unknown variance."""

    largest: float
    link = "identity"
    shares: ClassVar[tuple[float, ...]] = (0.25, 0.15, 0.2, 0.4)
    furthest: ClassVar[float] = math.inf
    typical: ClassVar[float] = 0.75

    def first(self, x: Tensor, y: Tensor, radius: float) -> Parts:
        """Return the parts of moments of (x, uy), with u = R over the largest y."""
        w = row_weights(x, radius)
        cut = y.clamp(-self.largest, self.largest) * (radius / self.largest)
        return Parts(w * math.sqrt(2) * cut, w, w * cut**2, 2 * radius**2, 1.0)

    def parts(self, x: Tensor, y: Tensor, radius: float, point: Tensor, clip: float) -> Parts:
        """Return the parts at a point."""
        w, root = row_weights(x, radius), math.sqrt(x.shape[1])
        left = (y.clamp(-self.largest, self.largest) - x @ point).clamp(-clip, clip)
        bound = radius * clip * math.sqrt(1.25 + 1 / x.shape[1])
        scale = radius / (clip * root)
        return Parts(w * left, w, w * left**2, bound, clip / (2 * radius), scale)

    def longest(self, radius: float, clip: float, variance: float) -> float:
        """Return v = κR: no score is cut."""
        return radius * clip

    def unit(self, columns: int, radius: float) -> float:
        """Return B/c."""
        return 2 * radius**2 * math.sqrt(1.25 + 1 / columns)

    def clip(self, variance: float) -> float:
        """Return κ for residuals of this variance, which includes the error of the point."""
        return min(_HUBER * math.sqrt(variance), 2 * self.largest)


@dataclass(frozen=True, kw_only=True)
class BayesianLinearRegression(Regression):
    """Bayesian linear regression with normal errors of unknown variance.

    Latent variables are the weights ``w``, the intercept last, with the prior N(0, s²I), and
    ``log_scale``, the logarithm of the errors' standard deviation, with the prior N(0, 2²).

    :meth:`bounded` makes errors of the logistic law with a public scale, and ``w`` the only latent
    variable. Its scores are bounded, which those of normal errors are not, as they grow with the
    predictor; for any symmetric errors the weights are still those of the mean.

    Args:
        largest: public bound on the distance of targets from ``middle``; they are clipped to it.
        middle: public centre of the targets, and the intercept's prior mean. The other weights'
            prior means are 0.
        prior_scale: the prior's standard deviation s.
        limit: features are clipped at ± limit; None does not clip.
        levels: column numbers of the levels of each category.
        error_scale: scale of the logistic law, public, with weighted records only; a standard
            deviation is 1.81 times this. None means ``largest``/4.

    >>> model = BayesianLinearRegression(largest=5.0)
    >>> model.priors(torch.zeros(4, 2))["w"].mean.shape
    torch.Size([3])
    >>> BayesianLinearRegression.bounded(largest=5.0).loss
    LogisticErrors(scale=1.25)
    """

    kind: ClassVar[str] = "linear"
    known: ClassVar[str] = "error_scale"
    target = "number"
    option: ClassVar[str] = "target_bounds"
    intercept_mean: ClassVar[float] = 0.0

    largest: float
    middle: float = 0.0
    error_scale: float | None = field(default=None, metadata={"absent": None})

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.single("largest", self.largest)
        validate.finite_number("middle", self.middle)

    @property
    def loss(self) -> LogisticErrors | None:
        """The loss of a weighted record."""
        scale = self.largest / 4 if self.error_scale is None else self.error_scale
        return LogisticErrors(float(scale)) if self.weighs else None

    @classmethod
    def of_bounds(
        cls, low: float, high: float, *, prior_scale: float = 5.0, limit: float | None = None
    ) -> BayesianLinearRegression:
        """Return the model for targets expected between ``low`` and ``high``, both public.

        Args:
            low, high: targets beyond them are clipped.
            prior_scale: in quarters of the range, a rule of thumb for a standard deviation.
            limit: features are clipped at ± limit.

        Raises:
            ValueError: unless ``low`` is below ``high``.

        >>> found = BayesianLinearRegression.of_bounds(80, 200)
        >>> found.middle, found.largest, found.prior_scale
        (140.0, 60.0, 150.0)
        """
        half = (validate.finite_number("high", high) - validate.finite_number("low", low)) / 2
        if not half > 0:
            raise ValueError(f"low must be below high, got {low!r} and {high!r}")
        return cls(largest=half, middle=low + half, prior_scale=prior_scale * half / 2, limit=limit)

    @classmethod
    def of_option(cls, value: Any) -> BayesianLinearRegression:
        """Return the model for a least and a largest target."""
        return cls.of_bounds(*value)

    @property
    def centre(self) -> float:
        """The intercept's prior mean."""
        return self.middle

    @property
    def smooth(self) -> bool:
        """Whether the weights are the only unknown."""
        return self.weighs

    @property
    def score_parts(self) -> LinearScores:
        """A record's contribution to noisy scores."""
        return LinearScores(self.largest)

    def priors(self, x: Tensor) -> dict[str, Prior]:
        """Return the priors of the weights and the errors' log scale."""
        return super().priors(x) | ({} if self.weighs else {"log_scale": log_prior(x)})

    def likelihood(self, latents: Mapping[str, Tensor], x: Tensor) -> Any:
        """Return the Pyro distribution of the targets."""
        import pyro.distributions as dist

        if self.loss is not None:
            return dist.Logistic(self.means(latents, x), self.loss.scale)
        return dist.Normal(self.means(latents, x), latents["log_scale"].exp())

    def cut(self, y: Tensor) -> Tensor:
        """Return targets clipped at ``middle`` ± ``largest``."""
        return (y - self.middle).clamp(-self.largest, self.largest) + self.middle
