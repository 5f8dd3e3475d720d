"""Groups with an intercept of their own, which is integrated out of the likelihood.

A group, such as a hospital, has rows i with the linear predictors η_i, and its own effect τz with
z ~ N(0, 1). Its likelihood is L = ∫ Π_i p(y_i | η_i + τz) φ(z) dz. With ẑ near the maximum of the
integrand and s⁻² its curvature there, adaptive Gauss-Hermite quadrature (Liu and Pierce,
"A note on Gauss-Hermite quadrature", Biometrika 81, 1994) takes
L ≈ s Σ_k w_k e^{t_k²/2} g(ẑ + s t_k) with g = φ Π p, which is exact for normal rows. ẑ comes from
Fisher's scoring, for which any law of rows gives its mean and its variance; where ẑ lies changes
the error alone, so it has no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from bdpvi.models.quadrature import gauss

NODES = 12
"""Nodes of the quadrature."""
_STEPS = 6
"""Steps of Fisher's scoring to the maximum."""
_FARTHEST = 2.0
"""The longest of them, in standard deviations of the group's effect."""
_NEAR = 1e-3
"""The distance of predictors whose difference of means is the slope of the mean."""


class RandomIntercept(dist.TorchDistribution):  # type: ignore[misc]
    """The targets of groups whose rows share a normal effect, integrated out; one event a group.

    The error of a log-density is below 1e-4 for effects of up to 1.5, and 0 for normal rows.

    Args:
        rows: the law of rows with given predictors, such as ``lambda a: dist.Bernoulli(logits=a)``.
            It has a mean, a variance and a log-density of each row.
        predictors: η, linear predictors of the rows without their group's effect, (G, R).
        spread: τ, the standard deviation of groups' effects, () or (G,).
        present: which rows there are, (G, R); the others are padding. By default all.

    >>> x, there = torch.zeros(1, 3), torch.tensor([[True, True, False]])
    >>> law = RandomIntercept(lambda a: dist.Normal(a, 1.0), x, torch.tensor(2.0), there)
    >>> cov = torch.eye(2) + 4.0
    >>> same = dist.MultivariateNormal(torch.zeros(2), cov).log_prob(torch.tensor([1.0, -1.0]))
    >>> bool((law.log_prob(torch.tensor([[1.0, -1.0, 9.0]])) - same).abs() < 1e-4)
    True
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.independent(constraints.real, 1)

    def __init__(
        self,
        rows: Callable[[Tensor], Any],
        predictors: Tensor,
        spread: Tensor,
        present: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        there = torch.ones_like(predictors) if present is None else present
        if there.shape[-1:] != predictors.shape[-1:]:
            raise ValueError(
                f"present has the shape {tuple(there.shape)}, and predictors "
                f"{tuple(predictors.shape)}: both have a column for each row of a group"
            )
        self.rows, self.spread = rows, torch.as_tensor(spread).to(predictors)
        self.predictors, self.present = torch.broadcast_tensors(predictors, there.bool())
        shape = torch.broadcast_shapes(self.predictors.shape[:-1], self.spread.shape)
        super().__init__(shape, self.predictors.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> RandomIntercept:
        """Return the law of more groups."""
        size = torch.Size(batch_shape)
        given = (self.predictors, self.present)
        predictors, present = (one.expand(*size, one.shape[-1]) for one in given)
        return RandomIntercept(self.rows, predictors, self.spread, present)

    def _rows(self, z: Tensor) -> Any:
        """Return the law of rows at effects of z standard deviations, (..., G)."""
        return self.rows(self.predictors + (self.spread * z).unsqueeze(-1))

    def _sum(self, values: Tensor) -> Tensor:
        """Return sums over the rows that there are, (..., G)."""
        return torch.where(self.present, values, 0.0).sum(-1)

    def _maximum(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return ẑ and s, (G,)."""
        z = self.predictors.new_zeros(torch.broadcast_shapes(self.batch_shape, value.shape[:-1]))
        for _ in range(_STEPS + 1):
            a = self.predictors + (self.spread * z).unsqueeze(-1)
            law = self.rows(a)
            slope = (self.rows(a + _NEAR).mean - self.rows(a - _NEAR).mean) / (2 * _NEAR)
            each = slope / law.variance.clamp(min=1e-12)
            steep = self.spread * self._sum(each * (value - law.mean)) - z
            curved = self.spread.square() * self._sum(each * slope) + 1
            before, z = z, z + (steep / curved).clamp(-_FARTHEST, _FARTHEST)
        return before.detach(), curved.rsqrt().detach()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density of each group's targets, (G,)."""
        value = value.to(self.predictors)
        with torch.no_grad():
            middle, width = self._maximum(value)
        nodes, weights = (one.to(self.predictors) for one in gauss("hermite", NODES))
        at = nodes.view(-1, *(1,) * middle.ndim)
        share = (weights.log() + nodes.square() / 2).view_as(at)
        z = middle + width * at
        each = self._sum(self._rows(z).log_prob(value))
        whole = torch.logsumexp(share + each - z.square() / 2, 0)
        return whole + width.log() - math.log(2 * math.pi) / 2

    @property
    def mean(self) -> Tensor:
        """The mean of each row over the groups' effects, (G, R); that of padding is 0."""
        nodes, weights = (one.to(self.predictors) for one in gauss("hermite", NODES))
        shape = (-1, *(1,) * len(self.batch_shape))
        means = self._rows(nodes.view(shape)).mean * weights.view(*shape, 1)
        return torch.where(self.present, means.sum(0) / math.sqrt(2 * math.pi), 0.0)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Draw targets; padding is 0."""
        shape = torch.Size(sample_shape)
        like = self.predictors
        z = torch.randn(*shape, *self.batch_shape, dtype=like.dtype, device=like.device)
        return torch.where(self.present, self._rows(z).sample(), 0.0)
