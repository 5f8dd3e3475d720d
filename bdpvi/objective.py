"""The ELBO of Bayesian logistic regression with a Gaussian guide, as a function, and its maximum.

For w ~ N(μ, Σ) the logit of record x is N(xᵀμ, xᵀΣx), so the ELBO needs one integral per record
(:mod:`bdpvi.quadrature`). It is concave in (μ, L), Σ = LLᵀ, strictly so by the prior, as the
likelihood is log-concave (Challis and Barber, JMLR 2013): one maximiser, which does not depend on
where the search starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bdpvi.models import BayesianLogisticRegression
from bdpvi.quadrature import derivatives
from bdpvi.types import Dataset

_STEPS = 500
_LATE = 1e-3


@dataclass(frozen=True, eq=False)
class Records:
    """What the likelihood sees: features times 2y - 1, (N, d), and the slope bounds, (N,)."""

    x: Tensor
    bound: Tensor

    @classmethod
    def of(cls, model: BayesianLogisticRegression, data: Dataset) -> Records:
        """Return the records of ``data`` as ``model`` sees them, in float64."""
        design = model.design(data.x.double())
        return cls((2 * data.y.double() - 1).unsqueeze(1) * design, model.slope_bound(design))

    def __len__(self) -> int:
        return len(self.x)

    def select(self, index: Tensor | slice) -> Records:
        """Return the records at ``index``."""
        return Records(self.x[index], self.bound[index])

    def without(self, index: int) -> Records:
        """Return all records but one."""
        keep = torch.arange(len(self), device=self.x.device) != index
        return self.select(keep)

    def joined(self, other: Records) -> Records:
        """Return these records and the other ones."""
        return Records(torch.cat([self.x, other.x]), torch.cat([self.bound, other.bound]))


@dataclass(frozen=True, eq=False)
class Objective:
    """ELBO of the records under the prior N(0, I/precision).

    Attributes:
        records: N records.
        precision: of the prior, 1/s².
        diagonal: whether the guide's covariance is diagonal.
    """

    records: Records
    precision: float
    diagonal: bool

    def at(self, mean: Tensor, metric: Tensor) -> Point:
        """Return the ELBO at the guide N(mean, metric⁻¹), or N(mean, 1/diag(metric))."""
        return Point(self, mean, metric)


@dataclass(frozen=True, eq=False)
class Point:
    """A guide and the derivatives of the ELBO there.

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
    def root(self) -> Tensor:
        """A square root L of the guide's covariance, Σ = LLᵀ."""
        if self.objective.diagonal:
            return torch.diag(self.metric.diagonal().rsqrt())
        return inverse_root(self.metric)

    @property
    def scale(self) -> Tensor:
        """The guide's parameter: scales (d,), or the lower Cholesky factor (d, d)."""
        if self.objective.diagonal:
            return self.root.diagonal()
        factor: Tensor = torch.linalg.cholesky(self.root @ self.root.T)
        return factor

    @cached_property
    def white(self) -> Tensor:
        """The records in units of the guide's standard deviations, (N, d)."""
        return self.objective.records.x @ self.root

    @cached_property
    def logit(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of every record's logit."""
        return self.objective.records.x @ self.mean, self.white.square().sum(1)

    @cached_property
    def _terms(self) -> Tensor:
        return derivatives(*self.logit, self.objective.records.bound, 2)

    @cached_property
    def elbo(self) -> float:
        """The ELBO up to a constant."""
        prior = self.mean.square().sum() + self.root.square().sum()
        entropy = torch.linalg.slogdet(self.root).logabsdet
        return float(self._terms[0].sum() - self.objective.precision / 2 * prior + entropy)

    @cached_property
    def gradient(self) -> tuple[Tensor, Tensor]:
        """Gradient in the mean, (d,), and twice that in the covariance, (d, d), in white units."""
        deviation = self.logit[1].sqrt().clamp(min=1e-150)
        unit = self.white / deviation.unsqueeze(1)
        shrink = self.objective.precision * self.root.T
        in_mean = unit.T @ self._terms[1] - shrink @ self.mean
        eye = torch.eye(len(self.mean), dtype=unit.dtype, device=unit.device)
        in_covariance = eye + (unit.T * self._terms[2]) @ unit - shrink @ self.root
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
    def curvature(self) -> Tensor:
        """Negative Hessian of the ELBO in the mean, (d, d): the natural parameters' target."""
        deviation = self.logit[1].sqrt().clamp(min=1e-150)
        x = self.objective.records.x / deviation.unsqueeze(1)
        eye = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        return self.objective.precision * eye - (x.T * self._terms[2]) @ x

    def step(self, size: float) -> Point:
        """Return the natural-gradient step of this size (Khan and Rue, JMLR 2023, section 1.2)."""
        metric = torch.lerp(self.metric, self.curvature, size)
        in_mean = torch.linalg.solve(self.root.T, self.gradient[0])
        return replace(
            self, mean=self.mean + size * torch.linalg.solve(metric, in_mean), metric=metric
        )


def inverse_root(metric: Tensor) -> Tensor:
    """Return R with R Rᵀ = metric⁻¹."""
    eye = torch.eye(len(metric), dtype=metric.dtype, device=metric.device)
    inverse: Tensor = torch.linalg.solve_triangular(torch.linalg.cholesky(metric), eye, upper=False)
    return inverse.T


def start(objective: Objective) -> Point:
    """Return where a search without better knowledge starts: mean 0, the largest curvature."""
    x = objective.records.x
    eye = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    return objective.at(x.new_zeros(x.shape[1]), objective.precision * eye + x.T @ x / 4)


def climb(point: Point, tolerance: float) -> list[Point]:
    """Return the points of a damped natural-gradient ascent, the last within ``tolerance``.

    Steps are halved until the ELBO rises (a full step overshoots where a tight clip leaves little
    curvature), near the maximum, where its change is below rounding, until the gradient falls.

    Raises:
        FloatingPointError: if the gradient norm cannot be brought down to ``tolerance``.
    """
    path, size = [point], 1.0
    while path[-1].gradient_norm > tolerance:
        here, size = path[-1], min(1.0, 2 * size)
        new = here.step(size)
        while not (
            new.elbo > here.elbo
            or (here.gradient_norm < _LATE and new.gradient_norm < here.gradient_norm)
        ):
            size /= 2
            if size < 1e-6 or len(path) > _STEPS:
                raise FloatingPointError(
                    f"tolerance={tolerance:g} is out of reach: the gradient norm stays at "
                    f"{here.gradient_norm:.3g} after {len(path)} steps; raise the tolerance or "
                    "rescale the features"
                )
            new = here.step(size)
        path.append(new)
    return path
