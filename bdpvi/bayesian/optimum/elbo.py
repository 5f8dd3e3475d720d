"""The ELBO of a regression with a convex loss and a Gaussian guide, and its maximum.

For w ~ N(μ, Σ) the predictor of record x is N(xᵀμ, xᵀΣx), so the ELBO needs one integral per record
(:meth:`.PredictorLoss.smoothed`). It is concave in (μ, L), Σ = LLᵀ, strictly so by the
prior, as the likelihood is log-concave (Challis and Barber, JMLR 2013): one maximiser, which does
not depend on where the search starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bdpvi.bayesian.optimum.weighted import Source, Weighted, total
from bdpvi.models.family import departure


@dataclass(frozen=True, eq=False)
class Objective:
    """ELBO of the records under the prior N(0, I/precision), or with a mean of the last variable.

    Attributes:
        records: source of the records, in memory or in blocks.
        precision: precision of the prior, 1/s².
        diagonal: whether the guide's covariance is diagonal.
        last: prior mean of the last variable, the intercept.
    """

    records: Source
    precision: float
    diagonal: bool
    last: float = 0.0

    def at(self, mean: Tensor, metric: Tensor) -> Point:
        """Return the ELBO at the guide N(mean, metric⁻¹), or N(mean, 1/diag(metric))."""
        return Point(self, mean, metric)

    def sums(self, terms: Callable[[Weighted], tuple[Tensor, ...]]) -> list[Tensor]:
        """Return the sums of ``terms`` over all blocks, by one pass."""
        return total(map(terms, self.records.rows()))


@dataclass(frozen=True, eq=False)
class Point:
    """A guide and the derivatives of the ELBO there; all of them need one pass over the records.

    Attributes:
        objective: the ELBO.
        mean: μ, (d,).
        metric: (d, d), positive definite; the guide's precision or, of a mean-field guide, a matrix
            with its precisions on the diagonal.
    """

    objective: Objective
    mean: Tensor
    metric: Tensor

    @cached_property
    def _factor(self) -> Tensor:
        """The inverse of the transposed root: the metric's Cholesky factor."""
        if self.objective.diagonal:
            return torch.diag(self.metric.diagonal().sqrt())
        factor: Tensor = torch.linalg.cholesky(self.metric)
        return factor

    @cached_property
    def root(self) -> Tensor:
        """A square root L of the guide's covariance, Σ = LLᵀ."""
        if self.objective.diagonal:
            return torch.diag(self.metric.diagonal().rsqrt())
        return _inverse(self._factor).T

    @property
    def scale(self) -> Tensor:
        """The guide's parameter: scales (d,), or the lower Cholesky factor (d, d)."""
        if self.objective.diagonal:
            return self.root.diagonal()
        factor: Tensor = torch.linalg.cholesky(self.root @ self.root.T)
        return factor

    def logit(self, records: Weighted) -> tuple[Tensor, Tensor]:
        """Return the mean and the variance of every record's predictor."""
        return records.x @ self.mean, (records.x @ self.root).square().sum(1)

    def _terms(self, records: Weighted) -> tuple[Tensor, Tensor, Tensor]:
        """Return the data's part of the ELBO, its gradient and its Hessian in whitened units."""
        white = records.x @ self.root
        deviation = torch.linalg.vector_norm(white, dim=1)
        mean = records.x @ self.mean
        slopes = records.smoothed(mean, deviation.square(), 2)
        unit = white.div_(deviation.clamp(min=1e-150).unsqueeze(1))
        return slopes[0].sum(), unit.T @ slopes[1], (unit.T * slopes[2]) @ unit

    @cached_property
    def _sums(self) -> list[Tensor]:
        return self.objective.sums(self._terms)

    @property
    def departure(self) -> Tensor:
        """The mean minus the prior mean, (d,)."""
        return departure(self.mean, self.objective.last)

    @cached_property
    def value(self) -> float:
        """The ELBO up to a constant."""
        prior = self.departure.square().sum() + self.root.square().sum()
        entropy = torch.linalg.slogdet(self.root).logabsdet
        return float(self._sums[0] - self.objective.precision / 2 * prior + entropy)

    @cached_property
    def gradient(self) -> tuple[Tensor, Tensor]:
        """Gradient in the mean, (d,), and twice that in the covariance, (d, d), whitened."""
        shrink = self.objective.precision * self.root.T
        in_mean = self._sums[1] - shrink @ self.departure
        in_covariance = torch.eye(len(self.mean)).to(shrink) + self._sums[2] - shrink @ self.root
        if self.objective.diagonal:
            in_covariance = torch.diag(in_covariance.diagonal())
        return in_mean, in_covariance

    @cached_property
    def gradient_norm(self) -> float:
        """Norm of the gradient in units of the guide's standard deviations.

        Near the maximum the ELBO's Hessian in these units is about the identity, so this is about
        how many standard deviations the mean is away, whatever the scale of the features.
        """
        in_mean, in_covariance = self.gradient
        return math.hypot(float(in_mean.norm()), float(in_covariance.norm()) / math.sqrt(2))

    @cached_property
    def distance(self) -> float:
        """Bound on the distance of (μ, L) from the maximiser, in the units of the weights.

        The negative ELBO is strongly convex in (μ, L), by the prior with constant 1/s² (Challis and
        Barber 2013), so this is s² times the norm of the gradient, which is L⁻ᵀ times the gradient
        in whitened units.
        """
        in_mean, in_covariance = (self._factor @ part for part in self.gradient)
        norm = math.hypot(float(in_mean.norm()), float(in_covariance.norm()))
        return norm / self.objective.precision

    @cached_property
    def curvature(self) -> Tensor:
        """Negative Hessian of the ELBO in the mean, (d, d): the natural parameters' target."""
        eye = torch.eye(len(self.mean)).to(self.mean)
        data: Tensor = self._factor @ self._sums[2] @ self._factor.T
        return self.objective.precision * eye - (data + data.T) / 2

    def step(self, size: float) -> Point:
        """Return the natural-gradient step of this size (Khan and Rue, JMLR 2023, section 1.2)."""
        metric = torch.lerp(self.metric, self.curvature, size)
        in_mean = self._factor @ self.gradient[0]
        return replace(
            self, mean=self.mean + size * torch.linalg.solve(metric, in_mean), metric=metric
        )


def _inverse(factor: Tensor) -> Tensor:
    eye = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    inverse: Tensor = torch.linalg.solve_triangular(factor, eye, upper=False)
    return inverse


def inverse_root(metric: Tensor) -> Tensor:
    """Return R with R Rᵀ = metric⁻¹."""
    return _inverse(torch.linalg.cholesky(metric)).T


def start(objective: Objective) -> Point:
    """Return the default start of a search: the prior mean and the largest curvature.

    Long records count less: a record of length l and slope bound c adds at most about c l once its
    predictor is wide, whereas κl² with l = 1e12 would drown the prior.
    """

    def sums(block: Weighted) -> tuple[Tensor]:
        length = torch.linalg.vector_norm(block.x, dim=1).clamp(min=1)
        steep, most = block.loss.steepest(block.mark) / length, block.loss.bound.curvature
        return ((block.x.T * (block.weight * steep.clamp(max=most))) @ block.x,)

    (square,) = objective.sums(sums)
    eye = torch.eye(len(square)).to(square)
    mean = -departure(square.new_zeros(len(square)), objective.last)
    return objective.at(mean, objective.precision * eye + square)
