"""A factor for the weights of a noisy minimum, learned from it alone.

The ridge shrinks strong signals, noise blows weak ones up: a factor c mends either. Of d features
the minimum w of weighted clipped scores, with a ridge λ and a slope b ~ N(0, σ²), obeys

    λ‖w‖² = −b·w + Σ_n ω w·x_n (y_n − p_n, cut at ±k).

Both sums follow from c and public numbers. By Stein's identity E[−b·w] = σ² E tr (H + λ)⁻¹, where H
is the curvature; the records' own noise adds as much for its variance. If targets are 1 with chance
sigmoid(i + c·u) where the model says sigmoid(i + u), so that c is the calibration slope, the other
sum is its expectation for new records, with logits u ~ N(0, v‖w‖²), so

    r(c) = λ‖w‖² − Σ_j (σ² + Nω²v e_j E min(r, k)²)/(h e_j + λ) − Nω E[u · score]

is about 0 at the right c, with h, v as in :mod:`bdpvi.regression.few_columns` and eigenvalues h e_j
of unequal size: e_j are quantiles of a law of mean 1. Its deviation is that of λ‖w‖²,
λ√(2 Σ s_j⁴ + 4 s²A), where s_j² is the variance of noise along an axis, s² its mean, and A what is
left of ‖w‖² without noise. So exp(−r²/2 deviation²) weighs each c, against a prior: c = 1 with
chance 0.8, else log c ~ N(0, 0.4²). The factor is exp E[log c], rounded to hundredths. The
intercept stays.

Standardised numbers have an exponential law of e_j. The others, L features from each column, have
the variance v/L, and many levels of a category are rare: as if the l-th had a frequency like 1/l².
Prior and laws were chosen on simulated tables, the second law on those of categories of up to 6, 20
or 60 levels with frequencies like 1/l and 1/l². Blanks and unlisted levels have another ridge, and
do not count.

All of it follows from the released minimum and from public settings, so it is post-processing: no
ε, worst-case or Bayesian, changes.

Source: C. Stein, Estimation of the mean of a multivariate normal distribution, Annals of Statistics
9, 1981; D. R. Cox, Two further applications of a model for binary regression, Biometrika 45, 1958,
of the slope; V. Chernozhukov, H. Hong, An MCMC approach to classical estimation, Journal of
Econometrics 115, 2003, of posteriors from an equation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bdpvi.regression.few_columns import moments_of, numbers_of, variance_of
from bdpvi.regression.objective_plan import ObjectivePlan

SAME = 0.8
"""The chance, before the release, that c = 1."""
WIDTH = 0.4
"""Standard deviation of log c if it is not."""
LOGS = torch.linspace(-2.0, 1.6, 73, dtype=torch.float64)
"""Values of log c."""
RARE = 2.0
"""The power of l."""
_QUANTILES = (torch.arange(32, dtype=torch.float64) + 0.5) / 32


class Group(NamedTuple):
    """Features of one variance.

    Attributes:
        features: their number.
        variance: of each.
        size: the sum of their squared weights.
        axes: e_j, of mean 1.
    """

    features: int
    variance: float
    size: float
    axes: Tensor


def groups_of(
    plan: ObjectivePlan, minimum: Tensor, numbers: Sequence[int] | None = None
) -> list[Group]:
    """Return the standardised numbers and the other features; see :func:`slope_of`."""
    d, numbers = plan.facts.columns - len(plan.seldom), numbers_of(plan.facts, numbers)
    n, v, squares = len(numbers), variance_of(plan), minimum[: plan.facts.columns].double() ** 2
    for place, _ in plan.seldom:
        squares[place] = 0.0
    size = float(squares[torch.tensor(numbers, dtype=torch.long)].sum())
    even = -torch.log1p(-_QUANTILES)
    made = [Group(n, v, size, even / even.mean())]
    if n < d:
        sources = min(d, plan.facts.sources or d) - n  # 0 where blanks alone have features
        rare = (0.5 + _QUANTILES * (d - n) / max(1, sources)) ** -RARE
        share = max(0, sources) / (d - n)
        made.append(Group(d - n, share * v, float(squares.sum()) - size, rare / rare.mean()))
    return made


def equation(
    plan: ObjectivePlan, intercept: float, groups: Sequence[Group], c: Tensor
) -> tuple[Tensor, Tensor]:
    """Return r(c) and its deviation for factors ``c`` of any shape; N must be known."""
    spread = math.sqrt(sum(group.variance * group.size for group in groups))
    curvature, squares, pull = moments_of(plan, intercept, spread, c)
    rest, square = -pull, torch.zeros_like(pull)
    for count, v, size, axes in groups:
        slopes = plan.sigma**2 + v * squares[..., None] * axes
        whole = v * curvature[..., None] * axes + plan.ridge
        noise = slopes / whole**2
        signal = (size - count * noise.mean(-1)).clamp(min=0)
        rest = rest + plan.ridge * size - count * (slopes / whole).mean(-1)
        square = square + 2 * count * (noise**2).mean(-1) + 4 * noise.mean(-1) * signal
    return rest, plan.ridge * square.sqrt()


def slope_of(plan: ObjectivePlan, minimum: Tensor, numbers: Sequence[int] | None = None) -> float:
    """Return the factor, rounded to hundredths; 1 if N is unknown.

    Args:
        plan: the settings of the release.
        minimum: as released, (d + 1,) with an intercept, which comes last, else (d,).
        numbers: the features that are standardised numbers; all by default, or none where several
            features come from one column.
    """
    if plan.facts.rows is None:
        return 1.0
    intercept = float(minimum[-1]) if plan.facts.intercept else 0.0
    rest, deviation = equation(plan, intercept, groups_of(plan, minimum, numbers), LOGS.exp())
    prior = (1 - SAME) * torch.softmax(-((LOGS / WIDTH) ** 2) / 2, 0)
    prior[LOGS.abs().argmin()] += SAME
    posterior = torch.softmax(prior.log() - (rest / deviation) ** 2 / 2, 0)
    return round(math.exp(float(posterior @ LOGS)), 2)


def scaled(plan: ObjectivePlan, minimum: Tensor, factor: float) -> Tensor:
    """Return the minimum with its weights, but the intercept, times ``factor``."""
    d = plan.facts.columns
    return torch.cat([factor * minimum[:d], minimum[d:]])
