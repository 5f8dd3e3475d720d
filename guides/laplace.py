"""Laplace approximation: the posterior mode, with the inverse Hessian there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import pyro.distributions as dist
from torch import Tensor
from torch.distributions import Distribution, constraints

from bdpvi.guides.full_rank import FullRank
from bdpvi.guides.gaussian import GaussianGuide
from bdpvi.models.contract import Model


class Laplace(FullRank):
    """N(m, H⁻¹): the posterior mode, and the inverse of the negative log density's Hessian.

    Like Pyro's ``AutoLaplaceApproximation`` it trains a point by SVI and then computes the Hessian.
    It is for :class:`~bdpvi.BayesianLogisticRegression`, for other regressions made by their
    ``bounded``, and for :class:`~bdpvi.models.own.OwnRegression`: fits are refined until the mode
    is proven (:class:`bdpvi.bayesian.mode.route.Mode`), and draws have a certified Bayesian ε.

    Args:
        model: the model.
        start: a public initial value of ``loc``.
        grid: as in :class:`~bdpvi.guides.GaussianGuide`.
    """

    is_mode = True

    def __init__(
        self,
        model: Model,
        *,
        start: Mapping[str, Tensor] | None = None,
        grid: float = 2.0**-10,
    ) -> None:
        super().__init__(model, start=start, grid=grid)


class PointMass(GaussianGuide):
    """A point instead of a Gaussian, trained by SVI like Pyro's ``AutoDelta``."""

    constraints = {"loc": constraints.real_vector}  # noqa: RUF012

    def usual_start(self, like: Tensor) -> dict[str, Tensor]:
        """Return a zero location."""
        return {"loc": like.new_zeros(self.dim)}

    def distribution(self, parameters: Mapping[str, Tensor]) -> Distribution:
        """Return the point mass at ``loc`` (..., d)."""
        return dist.Delta(parameters["loc"]).to_event(1)  # type: ignore[no-any-return]

    def widened(self, parameters: Mapping[str, Tensor]) -> NoReturn:
        """Raise: there is no covariance."""
        raise NotImplementedError("a point has no covariance")
