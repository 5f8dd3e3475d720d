"""Gaussian guide with a full covariance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.constraints import softplus_lower_cholesky
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.nn.functional import softplus

from bdpvi.guides.gaussian import GaussianGuide, Pullback


class FullRank(GaussianGuide):
    """Full-rank Gaussian guide: a location and the Cholesky factor of the covariance.

    Of :class:`~bdpvi.BayesianLogisticRegression` with record weights, its default, draws at the
    ELBO's optimum have a certified Bayesian ε: by ``neighbours=Optimum()``, the default, without
    ``ridge``. Trained otherwise they have that of typical records.
    """

    constraints = {"loc": constraints.real_vector, "scale_tril": softplus_lower_cholesky}  # noqa: RUF012

    def usual_start(self, like: Tensor) -> dict[str, Tensor]:
        """Return a zero location and a multiple of the identity."""
        eye = torch.eye(self.dim, dtype=like.dtype, device=like.device)
        return {"loc": like.new_zeros(self.dim), "scale_tril": self.init_scale * eye}

    def distribution(self, parameters: Mapping[str, Tensor]) -> Distribution:
        """Return the Gaussian with ``loc`` (..., d) and ``scale_tril`` (..., d, d)."""
        return FactoredNormal(parameters["loc"], parameters["scale_tril"])

    def widened(self, parameters: Mapping[str, Tensor]) -> Distribution:
        """Return the Gaussian whose Cholesky factor is that of Σ + ridge·Σ²."""
        factor = widened_factor(parameters["scale_tril"], self.ridge)
        return self.distribution({"loc": parameters["loc"], "scale_tril": factor})

    def pushforward(self, free: Mapping[str, Tensor], noise: Tensor) -> tuple[Tensor, Pullback]:
        """Return loc + L · noise, with softplus on L's diagonal; the entropy is Σ log L_jj."""
        raw = free["scale_tril"].permute(1, 2, 0)
        diagonal = free["scale_tril"].diagonal(dim1=1, dim2=2)
        scale = softplus(diagonal)
        strict = (_below(noise, -1).unsqueeze(1) @ raw).squeeze(1).T

        def pullback(gradient: Tensor) -> dict[str, Tensor]:
            outer = (gradient.T.unsqueeze(1) * _below(noise, 0).unsqueeze(2)).permute(2, 0, 1)
            across = outer.diagonal(dim1=1, dim2=2)
            across.sub_(scale.reciprocal()).mul_(torch.sigmoid(diagonal))
            return {"loc": gradient, "scale_tril": outer}

        return torch.addcmul(free["loc"], scale, noise).add_(strict), pullback


class FactoredNormal(dist.MultivariateNormal):  # type: ignore[misc]
    """The multivariate normal by a location (..., d) and a factor (..., d, d) of one batch shape.

    torch's own would ask :func:`torch.broadcast_shapes`, which loads sympy: half a second.
    """

    def __init__(self, loc: Tensor, scale_tril: Tensor) -> None:
        self.loc, self.scale_tril, self._unbroadcasted_scale_tril = loc, scale_tril, scale_tril
        Distribution.__init__(self, loc.shape[:-1], loc.shape[-1:])

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Return the normal with another batch shape."""
        return super().expand(batch_shape, _instance or type(self).__new__(type(self)))


def widened_factor(factor: Tensor, ridge: float) -> Tensor:
    """Return the Cholesky factor of Σ + ridge·Σ² = L(I + ridge·LᵀL)Lᵀ, (..., d, d), from Σ's, L.

    >>> widened_factor(torch.tensor([[2.0]]), 0.5).square()  # 4 + 0.5 · 4²
    tensor([[12.]])
    """
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    inner: Tensor = torch.linalg.cholesky(eye + ridge * factor.mT @ factor)
    return factor @ inner


def _below(noise: Tensor, diagonal: int) -> Tensor:
    """Return the matrix with ``noise`` in every row and zeros above the diagonal."""
    return noise.expand(len(noise), len(noise)).tril(diagonal)
