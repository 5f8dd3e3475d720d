"""Bayesian negative binomial regression of overdispersed counts.

*Loss.* Of dispersion α: ℓ = (y + 1/α) ln(1 + αe^a) − ya has ℓ′ = (y + 1/α)p − y in [−y, 1/α] with
b = a + ln α; all else is (y + 1/α) times the derivatives of :mod:`bdpvi.models.losses`. With y ≤ Y,
s = max(Y, 1/α), κ = (Y + 1/α)/4, M = 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from bdpvi.models.contract import Prior, log_prior
from bdpvi.models.losses import (
    LossBound,
    PredictorLoss,
    softplus,
    softplus_slopes,
    softplus_smoothed,
)
from bdpvi.models.poisson import CountRegression

_DISPERSED = 7.0
"""The log dispersion is clipped at ± this."""


@dataclass(frozen=True)
class NegativeBinomial(PredictorLoss):
    """Counts of known dispersion, at most ``largest``.

    >>> NegativeBinomial(largest=8.0, dispersion=0.5).bound
    LossBound(score=8.0, curvature=2.5, concordance=1.0)
    """

    largest: float
    dispersion: float

    @property
    def bound(self) -> LossBound:  # type: ignore[override]
        """Bounds for every target."""
        size = 1 / self.dispersion
        return LossBound(max(self.largest, size), (self.largest + size) / 4, 1.0)

    def value(self, a: Tensor, y: Tensor) -> Tensor:
        """Return ℓ."""
        return (y + 1 / self.dispersion) * softplus(a + math.log(self.dispersion)) - y * a

    def slopes(self, a: Tensor, y: Tensor, degree: int) -> list[Tensor]:
        """Return the derivatives."""
        size = y + 1 / self.dispersion
        first, *more = softplus_slopes(a + math.log(self.dispersion), degree)
        return [size * first - y, *(size * slope for slope in more)]

    def smoothed(self, mean: Tensor, variance: Tensor, mark: Tensor, order: int) -> Tensor:
        """Return the expectations, by those of ln(1 + e^a)."""
        size, shift = mark + 1 / self.dispersion, math.log(self.dispersion)
        return softplus_smoothed(mean + shift, variance, size, order, mark, mark * mean)


@dataclass(frozen=True, kw_only=True)
class BayesianNegativeBinomialRegression(CountRegression):
    """Bayesian negative binomial regression: overdispersed counts.

    A count with mean μ, whose logarithm is linear, has variance μ + αμ² (NB2: Cameron and Trivedi,
    "Regression Analysis of Count Data", 2013, section 3.3; ``alpha`` in statsmodels). Latent
    variables are the weights ``w``, the intercept last, with the prior N(0, s²I), and
    ``log_dispersion``, the logarithm of α, with the prior N(0, 2²), clipped at ±7 in the model.

    Args:
        largest: whole number, public; larger counts are clipped to it.
        exposure: as in :class:`bdpvi.BayesianPoissonRegression`.
        prior_scale: the prior's standard deviation s.
        limit: features are clipped at ± limit; None does not clip.
        levels: column numbers of the levels of each category.
        dispersion: α if it is public, with weighted records only, which need it; ``w`` is then the
            only latent variable.

    >>> model = BayesianNegativeBinomialRegression(largest=10)
    >>> priors = model.priors(Tensor(4, 2))
    >>> priors["w"].mean.shape, priors["log_dispersion"].mean.shape
    (torch.Size([3]), torch.Size([]))
    """

    kind: ClassVar[str] = "negative binomial"
    known: ClassVar[str] = "dispersion"

    dispersion: float | None = field(default=None, metadata={"absent": None})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighs and self.dispersion is None:
            raise ValueError(
                "dispersion must be given if records are weighted: its posterior has no bound on "
                "what a record moves"
            )

    @property
    def loss(self) -> NegativeBinomial | None:
        """The loss of a weighted record."""
        if not self.weighs:
            return None
        assert self.dispersion is not None
        return NegativeBinomial(float(self.largest), float(self.dispersion))

    def priors(self, x: Tensor) -> dict[str, Prior]:
        """Return the priors of the weights and the log dispersion, if that is unknown."""
        return super().priors(x) | ({} if self.weighs else {"log_dispersion": log_prior(x)})

    def likelihood(self, latents: Mapping[str, Tensor], x: Tensor) -> Any:
        """Return the Pyro distribution of the targets."""
        import pyro.distributions as dist

        if self.loss is not None:
            size = 1 / self.loss.dispersion
            return dist.NegativeBinomial(size, logits=self.predictors(latents, x) - math.log(size))
        # Below e⁻⁷ it is Poisson, and differences of log Γ(1/α) would lose precision in float32.
        dispersion = latents["log_dispersion"].clamp(-_DISPERSED, _DISPERSED)
        logits = self.log_means(latents, x) + dispersion
        return dist.NegativeBinomial((-dispersion).exp(), logits=logits)
