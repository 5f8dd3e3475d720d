"""A factor for the weights of a noisy minimum and its intercept, learned from it alone.

The ridge shrinks strong signals and draws the intercept to the middle, noise blows weak signals up:
a factor c mends weights. Of d features the minimum w of weighted clipped scores, with a ridge λ and
a slope b ~ N(0, σ²), obeys

    λ‖w‖² = −b·w + Σ_n ω w·x_n (y_n − p_n, cut at ±k),

and the intercept j, held near j₀ through its column of 2s,

    λ(j − j₀)/4 = −b_j/2 + Σ_n ω (y_n − p_n, cut at ±k).

All sums follow from c, the right intercept i and public numbers. By Stein's identity E[−b·w] =
σ² E tr (H + λ)⁻¹, where H is the curvature; the records' own noise adds as much for its variance.
If targets are 1 with chance sigmoid(i + c·u) where the model says sigmoid(j + u), so that c is the
calibration slope, the other sums are expectations for new records, with u ~ N(0, v‖w‖²), so

    r(c, i) = λ‖w‖² − Σ_a (σ² + Nω²v e_a E min(r, k)²)/(h e_a + λ) − Nω E[u · score],
    s(c, i) = λ(j − j₀)/4 − Nω E[score]

are about 0 at the right ones, with h, v as in :mod:`bdpvi.regression.few_columns` and eigenvalues
h e_a of unequal size: e_a are quantiles of a law of mean 1. The deviation of r is that of λ‖w‖²,
λ√(2 Σ s_a⁴ + 4 s²A), where s_a² is the variance of noise along an axis, s² its mean, and A what is
left of ‖w‖² without noise; that of s is √(σ²/4 + Nω² E min(r, k)²). N is rounded, and norms are
only about the public ones, so 0.07 of λ‖w‖² and 0.15 of λ(j − j₀)/4 are added, in squares.
Then exp(−r²/2 deviation²), and the same of s, weigh each c and i, against a prior: c = 1 with
chance 0.9, else log c is half normal, of deviation 0.8 upwards or 0.4 downwards, with chances 3:1;
i − j₀ is 0.35 times a t of 2 degrees of freedom, so that small changes, which may be noise, are
shrunk and large ones are not. The factor is exp E[log c], rounded to hundredths. The intercept is
the one with which the chances sigmoid(i + c·u) have their expected mean, so a rare class keeps a
chance that the noise allows for; the change is rounded to hundredths too.

Standardised numbers have an exponential law of e_a. The others, L features from each column, have
the variance v/L, and many levels of a category are rare: as if the l-th had a frequency like 1/l².
Priors and laws were chosen on simulated tables, with logits of deviations about 2, correlations to
0.85 and intercepts N(0, 1.4²), the second law on those of categories of up to 6, 20 or 60 levels
with frequencies like 1/l and 1/l². Blanks and unlisted levels have another ridge, and do not count.

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

from bdpvi.regression.few_columns import POINTS, moments_of, numbers_of, variance_of
from bdpvi.regression.objective_plan import CONSTANT, ObjectivePlan

SAME = 0.9
"""The chance, before the release, that c = 1."""
UP, DOWN = 0.8, 0.4
"""Standard deviations of log c if it is not, upwards and downwards."""
_UPWARDS = 3.0
"""How much more often it is upwards."""
ERROR, ERROR_OF_INTERCEPT = 0.07, 0.15
"""Relative errors of λ‖w‖² and λ(j − j₀)/4, as N and norms are only about the public ones."""
MOVES, DEGREES = 0.35, 2.0
"""Scale and degrees of freedom of the t law of i − j₀."""
STEPS = torch.linspace(-6.4, 6.4, 61, dtype=torch.float64)
"""i − j is 0.02 sinh of this: close together near 0."""
_EVERY = 5
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


def equations(
    plan: ObjectivePlan,
    intercept: float,
    groups: Sequence[Group],
    c: Tensor,
    i: Tensor,
    every: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return r(c, i) and s(c, i) over their deviations, and the mean chance; N must be known.

    Args:
        plan: the settings of the release.
        intercept: as released.
        groups: of the features.
        c, i: any shape, the same.
        every: see :func:`~bdpvi.regression.few_columns.moments_of`.
    """
    sums = moments_of(plan, intercept, spread_of(groups), c, i, every)
    rest, square = -sums.pull, torch.zeros_like(sums.pull)
    for count, v, size, axes in groups:
        slopes = plan.sigma**2 + v * sums.squares[..., None] * axes
        whole = v * sums.curvature[..., None] * axes + plan.ridge
        noise = slopes / whole**2
        signal = (size - count * noise.mean(-1)).clamp(min=0)
        rest = rest + plan.ridge * size - count * (slopes / whole).mean(-1)
        square = square + 2 * count * (noise**2).mean(-1) + 4 * noise.mean(-1) * signal
    square = square + (ERROR * sum(group.size for group in groups)) ** 2
    pull = plan.ridge * (intercept - plan.facts.centre) / CONSTANT**2
    own = plan.sigma**2 / CONSTANT**2 + sums.squares + (ERROR_OF_INTERCEPT * pull) ** 2
    return rest / (plan.ridge * square.sqrt()), (pull - sums.scores) / own.sqrt(), sums.rate


def spread_of(groups: Sequence[Group]) -> float:
    """Return the deviation of u."""
    return math.sqrt(sum(group.variance * group.size for group in groups))


def calibration_of(
    plan: ObjectivePlan, minimum: Tensor, numbers: Sequence[int] | None = None
) -> tuple[float, float]:
    """Return the factor and what to add to the intercept, in hundredths; 1 and 0 without N.

    Args:
        plan: the settings of the release.
        minimum: as released, (d + 1,) with an intercept, which comes last, else (d,).
        numbers: the features that are standardised numbers; all by default, or none where several
            features come from one column.
    """
    if plan.facts.rows is None:
        return 1.0, 0.0
    held, j, moves = plan.facts.intercept, 0.0, torch.zeros(1).double()
    if held:
        j, moves = float(minimum[-1]), 0.02 * torch.sinh(STEPS)
    groups = groups_of(plan, minimum, numbers)
    right = (j + moves).expand(len(LOGS), -1)
    r, s, rate = equations(plan, j, groups, LOGS.exp()[:, None].expand_as(right), right, _EVERY)
    likely = -(r**2) / 2 + _prior().log()[:, None]
    if held:
        away = (j + moves - plan.facts.centre) / MOVES
        law = -(DEGREES + 1) / 2 * torch.log1p(away**2 / DEGREES) + torch.cosh(STEPS).log()
        likely = likely - s**2 / 2 + law
    posterior = torch.softmax(likely.flatten(), 0).reshape(likely.shape)
    factor = round(math.exp(float(posterior.sum(1) @ LOGS)), 2)
    if not held:
        return factor, 0.0
    i = _with_rate(float((posterior * rate).sum()), factor * spread_of(groups))
    return factor, round(i - j, 2)


def _prior() -> Tensor:
    """Return the chance of each of :data:`LOGS`."""
    up = torch.where(LOGS > 0, math.log(_UPWARDS / UP), -math.log(DOWN))
    other = up - (LOGS / torch.where(LOGS > 0, UP, DOWN)) ** 2 / 2
    prior = (1 - SAME) * torch.softmax(other, 0)
    prior[LOGS.abs().argmin()] += SAME
    return prior


def _with_rate(rate: float, spread: float) -> float:
    """Return the i at which sigmoid(i + N(0, spread²)) has this mean, by bisection."""
    u, (low, high) = spread * POINTS[::_EVERY], (-40.0, 40.0)
    chance = torch.softmax(-(POINTS[::_EVERY] ** 2) / 2, 0)
    for _ in range(60):
        middle = (low + high) / 2
        below = float(chance @ torch.sigmoid(middle + u)) < rate
        low, high = (middle, high) if below else (low, middle)
    return (low + high) / 2


def changed(plan: ObjectivePlan, minimum: Tensor, factor: float, more: float) -> Tensor:
    """Return the minimum with its weights times ``factor`` and ``more`` added to the intercept."""
    d = plan.facts.columns
    return torch.cat([factor * minimum[:d], minimum[d:] + more])
