"""Gaussian guide with a diagonal plus low-rank covariance."""

from __future__ import annotations

from collections.abc import Mapping

import pyro.distributions as dist
import torch
from pyro.distributions.constraints import softplus_positive
from torch import Tensor
from torch.distributions import Distribution, constraints

from bdpvi._ground import validate
from bdpvi._ground.host import HOST
from bdpvi.guides.full_rank import widened_factor
from bdpvi.guides.gaussian import GaussianGuide
from bdpvi.models.contract import Model


class LowRank(GaussianGuide):
    """Gaussian guide with covariance diag(scale²) + W Wᵀ, W of shape (d, rank).

    It has d(rank + 2) parameters, where :class:`~bdpvi.guides.FullRank` has d(d + 3)/2. It is for
    models with hundreds of latents whose posterior is wide or correlated in a few directions only.
    Training draws d + rank normals per step, so its neighbours use the traced model, even for
    logistic regression. DPVI and the optimum route do not support it.

    Args:
        model: the Pyro model.
        rank: columns of W, from 1 to d; None means √d, rounded.
        init_scale: initial standard deviation of a latent, averaged over latents.
        start, ridge, noise_scale, grid: as for :class:`~bdpvi.guides.GaussianGuide`.

    >>> def model(x, y=None):
    ...     w = pyro.sample("w", dist.Normal(x.new_zeros(3), 1.0).to_event(1))
    ...     with pyro.plate("records", len(x)):
    ...         pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
    >>> import pyro
    >>> guide = LowRank(model, rank=1)
    >>> guide.setup(torch.zeros(5, 3), torch.zeros(5))
    >>> {name: tuple(value.shape) for name, value in guide.initial(torch.zeros(1)).items()}
    {'loc': (3,), 'scale': (3,), 'cov_factor': (3, 1)}
    """

    constraints = {  # noqa: RUF012
        "loc": constraints.real_vector,
        "scale": softplus_positive,
        "cov_factor": constraints.independent(constraints.real, 2),
    }

    def __init__(
        self,
        model: Model,
        *,
        rank: int | None = None,
        init_scale: float = 0.1,
        start: Mapping[str, Tensor] | None = None,
        ridge: float = 0.0,
        noise_scale: float | None = None,
        grid: float = 2.0**-10,
    ) -> None:
        super().__init__(
            model, init_scale=init_scale, start=start, ridge=ridge, noise_scale=noise_scale,
            grid=grid,
        )  # fmt: skip
        self.rank = None if rank is None else validate.positive_int("rank", rank)

    def usual_start(self, like: Tensor) -> dict[str, Tensor]:
        """Return a zero location, equal scales, and a random but fixed W.

        At W = 0 the expected gradient in W is 0, so W must start elsewhere.

        Raises:
            ValueError: if ``rank`` is above d.
        """
        rank = round(self.dim**0.5) if self.rank is None else self.rank
        if rank > self.dim:
            raise ValueError(f"rank={rank} must be at most {self.dim}, the model's latents")
        each = self.init_scale * 0.5**0.5  # half of the variance is in the diagonal
        generator = torch.Generator().manual_seed(0)
        normal = torch.randn(self.dim, rank, generator=generator, dtype=torch.float64, device=HOST)
        return {
            "loc": like.new_zeros(self.dim),
            "scale": like.new_full((self.dim,), each),
            "cov_factor": (normal * each / normal.square().sum(1).mean().sqrt()).to(like),
        }

    def distribution(self, parameters: Mapping[str, Tensor]) -> Distribution:
        """Return the Gaussian with ``loc``, ``scale`` (..., d), ``cov_factor`` (..., d, r)."""
        return dist.LowRankMultivariateNormal(  # type: ignore[no-any-return]
            parameters["loc"], parameters["cov_factor"], parameters["scale"].square()
        )

    def widened(self, parameters: Mapping[str, Tensor]) -> Distribution:
        """Return the Gaussian with covariance Σ + ridge·Σ², through the Cholesky factor of Σ."""
        factor = self.distribution(parameters).scale_tril  # type: ignore[attr-defined]
        wider = widened_factor(factor, self.ridge)
        return dist.MultivariateNormal(parameters["loc"], scale_tril=wider)  # type: ignore[no-any-return]
