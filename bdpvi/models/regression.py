"""Bayesian regression of numbers and counts within public bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.design import Design
from bdpvi.models.logistic import departure
from bdpvi.models.losses import ContinuedPoisson, LogisticErrors, Loss, NegativeBinomial
from bdpvi.models.priors import Prior, log_prior

_REACH = 20.0
"""Log means are clipped at ± this."""
_DISPERSED = 7.0
"""The log dispersion is clipped at ± this."""
MOST_COUNT = 10**6
"""The largest public bound of Poisson counts; see
:func:`bdpvi.regression.score_families.free_poisson`."""


@dataclass(frozen=True, kw_only=True)
class _Regression(Design):
    """A regression of numbers within a public bound.

    Args:
        largest: bound on the size of targets, public; targets beyond it are clipped.
        prior_scale, limit, levels: as in :class:`Design`.
    """

    largest: float

    intercept_mean: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.single("largest", self.largest)

    def cut(self, y: Tensor | None) -> Tensor | None:
        """Return targets clipped at ± ``largest``, if there are any."""
        return None if y is None else y.clamp(-self.largest, self.largest)

    def fits(self, y: Tensor) -> Tensor:
        """Return a mask of the valid targets: all finite numbers."""
        return y.isfinite()


@dataclass(frozen=True, kw_only=True)
class BayesianLinearRegression(_Regression):
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
    known: ClassVar[Mapping[str, Any]] = {"error_scale": None}

    middle: float = 0.0
    error_scale: float | None = field(default=None, metadata={"absent": None})

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.finite_number("middle", self.middle)
        _only_weighted(self, "error_scale")

    @property
    def loss(self) -> Loss | None:
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

    def priors(self, x: Tensor) -> dict[str, Prior]:
        """Return the priors of the weights and the errors' log scale."""
        w = self.weight_prior(x, intercept_mean=self.middle)
        return {"w": w} if self.weighs else {"w": w, "log_scale": log_prior(x)}

    def departure(self, w: Tensor) -> Tensor:
        """Return the weights minus their prior mean, (..., n)."""
        return departure(w, self.middle / self.constant)

    def means(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the expected targets, (N,)."""
        return self.predictors(latents, x)

    def likelihood(self, latents: Mapping[str, Tensor], x: Tensor) -> Any:
        """Return the Pyro distribution of the targets."""
        import pyro.distributions as dist

        if isinstance(self.loss, LogisticErrors):
            return dist.Logistic(self.means(latents, x), self.loss.scale)
        return dist.Normal(self.means(latents, x), latents["log_scale"].exp())

    def cut(self, y: Tensor | None) -> Tensor | None:
        """Return targets clipped at ``middle`` ± ``largest``, if there are any."""
        found = super().cut(None if y is None else y - self.middle)
        return None if found is None else found + self.middle


@dataclass(frozen=True, kw_only=True)
class _Counts(_Regression):
    """A regression of counts with a linear log mean.

    Args:
        largest: whole number; larger counts are clipped to it.
        exposure: number of the column that holds exposures; see the models.
        prior_scale, limit, levels: as in :class:`Design`.
    """

    exposure: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.positive_int("largest", self.largest)  # type: ignore[arg-type]
        validate.single("largest", self.largest)
        if self.exposure is not None:
            validate.positive_int("exposure", self.exposure, least=0)
            if self.weighs:
                raise ValueError(
                    f"exposure={self.exposure!r}: weighted records have none; leave it out"
                )

    def weighted(self, features: int) -> list[int]:
        """Return the numbers of the columns with weights: all but the exposure."""
        return [at for at in range(features) if at != self.exposure]

    def design(self, x: Tensor) -> Tensor:
        """Return the clipped features without the exposure, and a column of ones."""
        at = self.exposure
        if at is None:
            return super().design(x)
        if at >= x.shape[1]:
            raise ValueError(f"exposure={at} is the number of no column: x has {x.shape[1]}")
        return super().design(torch.cat([x[:, :at], x[:, at + 1 :]], dim=1))

    def log_means(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return log means with exposure, clipped at ±20, (N,)."""
        found = self.predictors(latents, x)
        if self.exposure is not None:
            least = math.exp(-_REACH)  # so that predictions are finite for any table
            found = found + x[:, self.exposure].clamp(min=least).log()
        return found.clamp(-_REACH, _REACH)

    def means(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the expected counts, (N,)."""
        return self.log_means(latents, x).exp()

    def cut(self, y: Tensor | None) -> Tensor | None:
        """Return counts from 0 to ``largest``, if there are any."""
        return None if y is None else y.clamp(0, self.largest)

    def fits(self, y: Tensor) -> Tensor:
        """Return a mask of the valid counts."""
        return y.isfinite() & (y >= 0) & (y == y.round())

    def takes(self, x: Tensor, y: Tensor) -> Tensor:
        """Return a mask of the records that the model accepts, (N,)."""
        return self.fits(y) & self.exposed(x)

    def exposed(self, x: Tensor) -> Tensor:
        """Return a mask of the records with a positive exposure, or of all without one, (N,)."""
        if self.exposure is None:
            return x.new_ones(len(x), dtype=torch.bool)
        self.design(x[:1])  # refuses a missing column
        return x[:, self.exposure] > 0

    def check(self, data: Dataset) -> None:
        """Raise ValueError unless targets are whole numbers from 0, and exposures are positive.

        Raises:
            ValueError: also as in :meth:`Design.check`.
        """
        super().check(data)
        validate.every("y", data.y, self.fits(data.y), "be whole numbers of at least 0")
        if self.exposure is not None:
            rule = "be positive in the exposure's column, which is not to be standardised"
            exposed = self.exposed(data.x)
            validate.every("x", data.x[:, self.exposure], exposed, rule)


@dataclass(frozen=True, kw_only=True)
class BayesianPoissonRegression(_Counts):
    """Bayesian Poisson regression: counts with a linear log mean.

    With :meth:`bounded` the rate is the exponential of the predictor up to half of ``largest``;
    beyond it is continued, and never exceeds ``largest``
    (:class:`bdpvi.models.losses.ContinuedPoisson`).

    Args:
        largest: whole number, at most :data:`MOST_COUNT`, public. Larger counts are clipped to it
            where sensitivity has to be bounded; :class:`bdpvi.regression.NoisyScores` corrects for
            this if counts are Poisson ones. Otherwise the mean is estimated too low by
            E(y − ``largest``)₊, and intervals cover the mean of the clipped counts.
        exposure: number of the feature column, from 0, with each record's exposure, such as years
            at risk: positive and not standardised. Its logarithm is an offset: it is added to the
            linear predictor with coefficient 1, and has no weight.
        prior_scale: standard deviation of the prior N(0, s²I) of the weights ``w``.
        limit: features are clipped at ± limit; None does not clip.
        levels: column numbers of the levels of each category.

    >>> model = BayesianPoissonRegression(largest=10)
    >>> model.priors(torch.zeros(4, 2))["w"].mean.shape
    torch.Size([3])
    >>> at_risk = BayesianPoissonRegression(largest=10, exposure=1)
    >>> at_risk.design(torch.tensor([[0.3, 12.0]]))
    tensor([[0.3000, 1.0000]])
    """

    kind: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "such counts are numbers to a linear model"
        validate.at_most("largest", self.largest, MOST_COUNT, remedy)

    @property
    def loss(self) -> ContinuedPoisson | None:
        """The loss of a weighted record."""
        return ContinuedPoisson(float(self.largest)) if self.weighs else None

    def means(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the expected counts, (N,)."""
        if self.loss is None:
            return super().means(latents, x)
        return self.loss.rate(self.predictors(latents, x))

    def likelihood(self, latents: Mapping[str, Tensor], x: Tensor) -> Any:
        """Return the Pyro distribution of the targets."""
        import pyro.distributions as dist

        if self.loss is None:
            return dist.Poisson(self.means(latents, x))
        from bdpvi.models.continued import Continued  # loads Pyro

        return Continued(self.predictors(latents, x), self.loss)


@dataclass(frozen=True, kw_only=True)
class BayesianNegativeBinomialRegression(_Counts):
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
    >>> priors = model.priors(torch.zeros(4, 2))
    >>> priors["w"].mean.shape, priors["log_dispersion"].mean.shape
    (torch.Size([3]), torch.Size([]))
    """

    kind: ClassVar[str] = "negative binomial"
    known: ClassVar[Mapping[str, Any]] = {"dispersion": None}

    dispersion: float | None = field(default=None, metadata={"absent": None})

    def __post_init__(self) -> None:
        super().__post_init__()
        _only_weighted(self, "dispersion")
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
        own = {} if self.weighs else {"log_dispersion": log_prior(x)}
        return {**super().priors(x), **own}

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


def _only_weighted(model: Design, name: str) -> None:
    """Check a scale that is known where records are weighted, and else unknown."""
    if (value := getattr(model, name)) is None:
        return
    validate.positive(name, value)
    if not model.weighs:
        made = f"{type(model).__name__}.bounded"
        raise ValueError(f"{name}={value!r} needs weighted records, as made by {made}")
