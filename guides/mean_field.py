"""Gaussian guide with independent coordinates."""

from __future__ import annotations

from collections.abc import Mapping

import pyro.distributions as dist
import torch
from pyro.distributions.constraints import softplus_positive
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.nn.functional import softplus

from bdpvi.guides.gaussian import GaussianGuide, Pullback


class MeanField(GaussianGuide):
    """Mean-field Gaussian guide: a location and a scale for every coordinate.

    It is cheap, but with correlated features its variances are too small, and one draw from it
    reveals more about a record than a draw from :class:`~bdpvi.guides.FullRank`. At the
    ELBO's optimum of weighted logistic regression draws have a certified Bayesian ε for the table
    at hand, dearer the more columns correlate, and no worst case for all tables.
    """

    constraints = {"loc": constraints.real, "scale": softplus_positive}  # noqa: RUF012

    def usual_start(self, like: Tensor) -> dict[str, Tensor]:
        """Return zero locations and equal scales."""
        return {
            "loc": like.new_zeros(self.dim),
            "scale": like.new_full((self.dim,), self.init_scale),
        }

    def distribution(self, parameters: Mapping[str, Tensor]) -> Distribution:
        """Return the Gaussian with these parameters, ``loc`` and ``scale`` (..., d)."""
        return dist.Normal(parameters["loc"], parameters["scale"]).to_event(1)  # type: ignore[no-any-return]

    def widened(self, parameters: Mapping[str, Tensor]) -> Distribution:
        """Return the Gaussian with variances σ² + ridge·σ⁴."""
        scale = parameters["scale"]
        wider = scale * (1 + self.ridge * scale.square()).sqrt()
        return self.distribution({"loc": parameters["loc"], "scale": wider})

    def pushforward(self, free: Mapping[str, Tensor], noise: Tensor) -> tuple[Tensor, Pullback]:
        """Return loc + scale · noise; the entropy is Σ log scale."""
        raw = free["scale"]
        scale = softplus(raw)

        def pullback(gradient: Tensor) -> dict[str, Tensor]:
            outer = (gradient * noise).sub_(scale.reciprocal()).mul_(torch.sigmoid(raw))
            return {"loc": gradient, "scale": outer}

        return torch.addcmul(free["loc"], scale, noise), pullback
