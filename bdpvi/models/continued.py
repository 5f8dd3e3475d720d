"""The Poisson likelihood with a bound on its derivatives."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints


class Continued(dist.TorchDistribution):  # type: ignore[misc]
    """Likelihood of counts, Poisson's up to half the largest count.

    The loss is :class:`bdpvi.models.poisson.ContinuedPoisson`.

    It is concave in the predictor: an ordinary, above the kink unnormalised, likelihood.

    Args:
        predictors: any shape.
        loss: gives the largest count.

    >>> from bdpvi.models.poisson import ContinuedPoisson
    >>> a, y = torch.tensor([0.0, 9.0]), torch.ones(2)
    >>> less = Continued(a, ContinuedPoisson(8.0)).log_prob(y) - dist.Poisson(a.exp()).log_prob(y)
    >>> less.round()
    tensor([   0., 8042.])
    """

    arg_constraints = {"predictors": constraints.real}  # noqa: RUF012
    support = constraints.nonnegative_integer

    def __init__(self, predictors: Tensor, loss: Any, validate_args: bool | None = None) -> None:
        self.predictors, self.loss = predictors, loss
        super().__init__(predictors.shape, validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-likelihood of counts."""
        loss: Tensor = self.loss.value(self.predictors, value)
        return -loss - torch.lgamma(value + 1)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Draw Poisson counts with the continued rate."""
        return torch.poisson(self.mean.expand(self._extended_shape(sample_shape)))

    @property
    def mean(self) -> Tensor:
        """The rate."""
        rate: Tensor = self.loss.rate(self.predictors)
        return rate
