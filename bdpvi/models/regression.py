"""Bayesian linear and Poisson regression, of targets within public bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi.types import Dataset

_REACH = 20.0
"""Logarithms of means are cut at ± this."""


@dataclass(frozen=True, kw_only=True)
class _Regression:
    """A design of features and ones, and a prior N(0, s²I) of the weights.

    Args:
        largest: bound on the size of targets, public; what lies beyond is cut to it.
        prior_scale: the prior's standard deviation s.
        limit: features are cut off at ± limit; None leaves them as they are. Public, as all is.
    """

    largest: float
    prior_scale: float = 5.0
    limit: float | None = None

    intercept: ClassVar[bool] = True
    intercept_mean: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        validate.positive("largest", self.largest)
        validate.positive("prior_scale", self.prior_scale)
        if self.limit is not None:
            validate.positive("limit", self.limit)

    def design(self, x: Tensor) -> Tensor:
        """Return the features, cut, and a column of ones, (N, d + 1)."""
        x = x if self.limit is None else x.clamp(-self.limit, self.limit)
        return torch.cat([x, x.new_ones(len(x), 1)], dim=1)

    def _means(self, x: Tensor) -> Tensor:
        """Sample the weights and return each record's linear predictor."""
        design = self.design(x)
        zero = x.new_zeros(design.shape[1])
        normal = dist.Normal(zero, x.new_tensor(self.prior_scale)).to_event(1)
        weights: Tensor = pyro.sample("w", normal)
        return design @ weights

    def check(self, data: Dataset) -> None:
        """Raise ValueError unless targets are what the model is of; any number will do."""


@dataclass(frozen=True, kw_only=True)
class BayesianLinearRegression(_Regression):
    """Bayesian linear regression with normal noise of unknown size.

    Latent variables are the weights ``w``, the last of the intercept, with the prior N(0, s²I), and
    ``log_scale``, the logarithm of the noise's standard deviation, with the prior N(0, 2²).

    Args:
        largest: bound on the size of targets, public; what lies beyond is cut to ± it.
        prior_scale: the prior's standard deviation s.
        limit: features are cut off at ± limit; None leaves them as they are.

    >>> model = BayesianLinearRegression(largest=5.0)
    >>> pyro.poutine.trace(model).get_trace(torch.zeros(4, 2)).nodes["w"]["value"].shape
    torch.Size([3])
    """

    kind: ClassVar[str] = "linear"

    def __call__(self, x: Tensor, y: Tensor | None = None) -> None:
        """Sample the latent variables and observe the records."""
        means = self._means(x)
        scale = pyro.sample("log_scale", dist.Normal(x.new_tensor(0.0), x.new_tensor(2.0))).exp()
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(means, scale), obs=y)


@dataclass(frozen=True, kw_only=True)
class BayesianPoissonRegression(_Regression):
    """Bayesian Poisson regression: counts whose logarithmic mean is linear.

    Args:
        largest: whole number; larger counts are cut to it where noise has to be bounded, and the
            model knows of that. Public.
        prior_scale: standard deviation of the prior N(0, s²I) of the weights ``w``.
        limit: features are cut off at ± limit; None leaves them as they are.

    >>> model = BayesianPoissonRegression(largest=10)
    >>> pyro.poutine.trace(model).get_trace(torch.zeros(4, 2)).nodes["w"]["value"].shape
    torch.Size([3])
    """

    kind: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.positive_int("largest", self.largest)  # type: ignore[arg-type]

    def __call__(self, x: Tensor, y: Tensor | None = None) -> None:
        """Sample the weights and observe the records."""
        rates = self._means(x).clamp(-_REACH, _REACH).exp()
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Poisson(rates), obs=y)

    def check(self, data: Dataset) -> None:
        """Raise ValueError unless every target of ``data`` is a whole number of at least 0."""
        whole = (data.y >= 0) & (data.y == data.y.round())
        validate.every("y", data.y, whole, "be whole numbers of at least 0")
