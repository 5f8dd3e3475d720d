"""The posterior of a generalised linear model given its noisy scores, from released values alone.

Rounds t released g_t = S_t + noise and H_t = Σ h xxᵀ + noise at points β_t. For parameters β
E S_t = H̄_t(β − β_t), with H̄_t = (H_t + H_T)/2 by the trapezoid rule from β_t to the last point.
With weights ρ_t in proportion to 1/σ_t², t = Σ ρ_t(g_t + H̄_tβ_t) and A = Σ ρ_tH̄_t,

    t − Aβ ~ N(0, V),   V = B + (Σ 1/σ_t²)⁻¹ I + Σ_t τ_t²/2 (|d_t|² I + d_td_tᵀ)

where V sums sampling variance B (the same records in all rounds), the noise of the scores and the
noise of the matrices, of standard deviation τ on the diagonal and τ/√2 off it. d_t is the vector
that H_t's noise multiplies: ρ_t(β − β_t)/2, and for the last round additionally
(β − β_T)/2 for each ρ. :func:`closed_form` iterates V at β's mean and spread to a fixed point:
N(m, C) with C = (AV⁻¹A + P)⁻¹, where V gains Στ²/2 (tr C I + C) and P is the prior's precision.
Rounds far from the mean are left out, because the trapezoid rule is inaccurate for them.

B is φA if the model is correct, φ the dispersion; A B⁻¹ A is then the usual information. The last
round's Σ q xxᵀ, the middle of a sandwich covariance, is B even if the model is wrong. Where it
exceeds φA by more than its noise, it replaces φA (:func:`sampling_variance`); with weights of
records, which φA counts once instead of twice, where it falls below, too.

A direction counts as measured if A exceeds its noise there. Columns that are collinear or nearly
always 0 give unmeasured directions, where the posterior is the prior. The posterior passes the gate
if at least half of the directions are measured, and in these its mean is near the last point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

NEAR = 0.5
"""Rounds within this distance of the mean are used, in standardised units; the last one always."""
SIGNAL = 2.0
"""Smallest eigenvalue of A of a measured direction, over √k standard deviations of its noise."""
FAR = 0.4
"""Largest distance of the mean from the last point, in standardised units."""
_STEPS = 15
_FLOOR = 1e-3


@dataclass(frozen=True, eq=False)
class Round:
    """The release of one round, and its public noise.

    Attributes:
        point: β_t, (k,).
        score: g_t, (k,).
        curvature: H_t, (k, k).
        score_noise, curvature_noise: σ_t and τ_t.
        square, square_noise: Σ wψ², for linear regression, and its noise; ``clip``: κ.
        middle, middle_noise: the last round's Σ q xxᵀ, (k, k), and its noise; None for others.
        weighted: whether records have weights.
    """

    point: Tensor
    score: Tensor
    curvature: Tensor
    score_noise: float
    curvature_noise: float
    square: float = 0.0
    square_noise: float = 0.0
    clip: float = math.inf
    middle: Tensor | None = None
    middle_noise: float = 0.0
    weighted: bool = False

    def times(self, factor: float) -> Round:
        """Return the round with its matrix multiplied by ``factor``."""
        return replace(
            self,
            curvature=factor * self.curvature,
            curvature_noise=factor * self.curvature_noise,
        )

    def merged(self, place: Tensor) -> Round:
        """Return the round, at 0, for the columns x times ``place``, (k, m)."""
        matrix = place.T @ self.curvature @ place
        return replace(self, point=matrix[0] * 0, score=place.T @ self.score, curvature=matrix)


class NormalPrior(NamedTuple):
    """N(mean, precision⁻¹)."""

    mean: Tensor
    precision: Tensor

    def within(self, kept: Tensor) -> NormalPrior:
        """Return the prior of some coefficients, given the means of the others."""
        return NormalPrior(self.mean[kept], self.precision[kept][:, kept])


class Pooled(NamedTuple):
    """Rounds as one: t, A, B, (Σ 1/σ²)⁻¹, and for each matrix its share of β, constant and noise.

    ``seen`` projects onto the measured directions.
    """

    total: Tensor
    curvature: Tensor
    sampling: Tensor
    score_variance: float
    shares: tuple[tuple[float, Tensor, float], ...]
    seen: Tensor

    def noise_at(self, beta: Tensor) -> Tensor:
        """Return the contribution of the matrices' noise to V at β, (k, k)."""
        total, eye = torch.zeros_like(self.curvature), torch.eye(len(beta), dtype=torch.float64)
        for share, constant, noise in self.shares:
            d = share * beta - constant
            total = total + noise**2 / 2 * (d @ d * eye + torch.outer(d, d))
        return total


@dataclass(frozen=True, eq=False)
class Posterior:
    """N(mean, covariance), with diagnostics.

    Attributes:
        mean, covariance: (k,) and (k, k).
        sampling: the covariance without privacy noise, (k, k).
        unseen: part of the covariance in directions that are not measured, (k, k).
        measured, directions: number of measured directions, and of all.
        far: distance of the mean from the last point in measured directions, standardised units.
        log_scale: log σ of the target's errors, mean and standard error; linear regression only.
    """

    mean: Tensor
    covariance: Tensor
    sampling: Tensor
    unseen: Tensor
    measured: int
    directions: int
    far: float
    log_scale: tuple[float, float] | None = None

    @property
    def passes(self) -> bool:
        """Whether it passes the gate; see the module."""
        return self.far < FAR and 2 * self.measured >= self.directions

    def rotate(self, back: Tensor) -> Posterior:
        """Return the posterior of Wβ."""
        parts = {name: back @ getattr(self, name) @ back.T for name in _MATRICES}
        return replace(self, mean=back @ self.mean, **parts)


_MATRICES = ("covariance", "sampling", "unseen")


def at_least(matrix: Tensor, floor: float) -> Tensor:
    """Return a symmetric matrix with eigenvalues of at least ``floor``."""
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * values.clamp(min=floor)) @ vectors.T  # type: ignore[no-any-return]


def combined(rounds: Sequence[Round], dispersion: float = 1.0) -> Pooled:
    """Return t, A, B and the noise of the rounds together; see the module."""
    last, k = rounds[-1], len(rounds[-1].point)
    precision = [one.score_noise**-2 for one in rounds]
    rho = [one / sum(precision) for one in precision]
    means = [(one.curvature + last.curvature) / 2 for one in rounds]
    pairs = list(zip(rho, rounds, means, strict=True))
    total = torch.stack([p * (one.score + h @ one.point) for p, one, h in pairs]).sum(0)
    raw = torch.stack([p * h for p, _, h in pairs]).sum(0)
    shares = [(p / 2, p / 2 * one.point, one.curvature_noise) for p, one, _ in pairs]
    of_last, to_last, noise = shares[-1]
    points = torch.stack([p / 2 * one.point for p, one, _ in pairs]).sum(0)
    shares[-1] = (of_last + 0.5, to_last + points, noise)
    deviation = math.sqrt(sum((share * noise) ** 2 for share, _, noise in shares))
    values, vectors = torch.linalg.eigh((raw + raw.T) / 2)
    strong = vectors[:, values > SIGNAL * deviation * math.sqrt(k)]
    a, seen = (vectors * values.clamp(min=_FLOOR)) @ vectors.T, strong @ strong.T
    b = dispersion * a
    if last.middle is not None:
        b = sampling_variance(b, strong, last.middle, last.middle_noise, last.weighted)
    return Pooled(total, a, b, 1 / sum(precision), tuple(shares), seen)


def sampling_variance(
    assumed: Tensor, seen: Tensor, middle: Tensor, noise: float, weighted: bool = False
) -> Tensor:
    """Return the sampling variance of scores: what the model assumes, or more.

    In measured directions, in units of the assumed variance, the middle minus 1 is shrunk by its
    expected noise as James and Stein (1961) do, and what is positive of it is added.

    Weights ω ≤ 1 of records count once in A and twice in the middle. With them not 1 but a share
    θ ≤ 1 of the assumed variance is assumed: the mean of the middle's m diagonal elements in those
    units, at least 0, plus the standard deviation of its noise.

    Args:
        assumed: φA, (k, k).
        seen: orthonormal measured directions, eigenvectors of A, (k, m).
        middle: noisy Σ q xxᵀ, (k, k).
        noise: standard deviation of its diagonal; that off it is 1/√2 of it.
        weighted: whether records have weights.

    >>> eye = torch.eye(2).double()
    >>> [sampling_variance(eye, eye, c * eye, 0.0).tolist() for c in (3, 0.5)]
    [[[3.0, 0.0], [0.0, 3.0]], [[1.0, 0.0], [0.0, 1.0]]]
    >>> sampling_variance(eye, eye, 0.5 * eye, 0.0, weighted=True).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    unit = (seen.T @ assumed @ seen).diagonal().sqrt()
    found, one = seen.T @ middle @ seen / torch.outer(unit, unit), torch.eye(len(unit)).to(unit)
    share, back = 1.0, seen * unit
    if weighted and len(unit):
        error = noise * math.sqrt(float((unit**-4).sum())) / len(unit)
        share = min(1.0, max(float(found.diagonal().mean()), 0.0) + error)
        assumed = assumed - (1 - share) * back @ back.T
    excess = found - share * one
    squared = noise**2 / 2 * (float((unit**-2).sum()) ** 2 + float((unit**-4).sum()))
    kept = max(0.0, 1 - squared / max(float(excess.square().sum()), 1e-300))
    return assumed + kept * back @ at_least(excess, 0.0) @ back.T


def closed_form(rounds: Sequence[Round], prior: NormalPrior, dispersion: float = 1.0) -> Posterior:
    """Return the normal posterior; see the module.

    Args:
        rounds: at least one.
        prior: of β.
        dispersion: φ, a bound on the variance of scores over A.
    """
    made = combined(rounds, dispersion)
    a, eye = made.curvature, torch.eye(len(made.total), dtype=torch.float64)
    fixed = made.sampling + made.score_variance * eye
    squared = sum((share * noise) ** 2 for share, _, noise in made.shares)
    pull, v = prior.precision @ prior.mean, fixed
    for _ in range(_STEPS):
        weighed = torch.linalg.solve(v, a).T  # A V⁻¹
        covariance = torch.linalg.inv(weighed @ a + prior.precision)
        covariance = (covariance + covariance.T) / 2
        mean = covariance @ (weighed @ made.total + pull)
        v = fixed + squared / 2 * (covariance.trace() * eye + covariance) + made.noise_at(mean)
    sampling = torch.linalg.inv(a @ torch.linalg.solve(made.sampling, a) + prior.precision)
    blind = eye - made.seen
    unseen, measured = blind @ covariance @ blind, round(float(made.seen.trace()))
    far = float(torch.linalg.vector_norm(made.seen @ (mean - rounds[-1].point)))
    return Posterior(mean, covariance, sampling, unseen, measured, len(mean), far)


def near(rounds: Sequence[Round], mean: Tensor, radius: float = NEAR) -> list[Round]:
    """Return the rounds near the mean, and always the last."""
    distance = [float(torch.linalg.vector_norm(one.point - mean)) for one in rounds[:-1]]
    return [one for one, far in zip(rounds, distance, strict=False) if far < radius] + [rounds[-1]]
