"""Laplace approximation: the posterior mode, with the inverse Hessian there."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from bdpvi.guides.full_rank import FullRank
from bdpvi.models.contract import Model


class Laplace(FullRank):
    """N(m, H⁻¹): the posterior mode, and the inverse of the negative log density's Hessian.

    Pyro's ``AutoLaplaceApproximation`` trains a point by SVI; here Newton steps find it. It is for
    :class:`~bdpvi.BayesianLogisticRegression`, for other regressions made by their ``bounded``, and
    for :class:`~bdpvi.models.own.OwnRegression`: the mode is proven
    (:class:`bdpvi.bayesian.mode.route.Mode`), and draws have a certified Bayesian ε.

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
