"""Weights of few columns, from a noisy minimum: a spike and a slab learned from it alone.

Of many columns few may matter, and then most released weights are noise. The noise has a public
law, so the minimum itself shows it. For about independent columns of variance v, N rows of weight
ω, residuals r and a curvature h, a weight is about

    w = aθ + se,    a = h/(h + λ),    s² = (σ² + Nω²v E min(r, k)²)/(h + λ)²,    e ~ N(0, 1),
    h = Nωv E[p(1 − p); r < k],

with expectations at the minimum, where logits are about N(intercept, v‖w‖²) and targets have chance
p. Of the law of aθ, 0 with chance 1 − π and else N(0, τ²), the likelihood of all weights decides π
and τ. Many small weights may look so, which is one normal law, and so may columns that are hardly
ever other than 0, where noise is as wide as σ/λ. So the most likely slab wider than that must be e⁵
times as likely as one normal law, and as any narrower slab; if so, the released weight is
E[aθ | w]/√a. Otherwise the minimum is left as it is: where many columns matter a little, nothing is
lost. 1/√a lies between 1, right for columns that move together, and 1/a, for independent ones that
matter little; it and e⁵ were chosen on simulated tables. Features that are no standardised numbers
have variances that are not public; their weights are left as they are.

All of it follows from the released minimum and from public settings, so it is post-processing: no
ε, worst-case or Bayesian, changes.

Source: T. J. Mitchell, J. J. Beauchamp, Bayesian variable selection in linear regression, JASA 83,
1988; I. M. Johnstone, B. W. Silverman, Needles and straw in haystacks: empirical Bayes estimates of
possibly sparse sequences, Annals of Statistics 32, 2004.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bdpvi.regression.objective_plan import Facts, ObjectivePlan

EVIDENCE = 5.0
"""The least logarithm of the likelihood, over that without few columns that stand out."""
SHARES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95)
"""Values of π."""
WIDTHS = tuple(2.0 ** (step / 2) for step in range(-4, 25))
"""Values of τ/s."""
POINTS = torch.linspace(-6, 6, 601, dtype=torch.float64)
_CHANCE = torch.softmax(-(POINTS**2) / 2, 0)


class Noise(NamedTuple):
    """The law of a released weight of a feature, given its true value.

    Attributes:
        kept: a, the share of the true weight that the ridge leaves.
        deviation: s.
        widest: σ/λ, the deviation in a column of zeros.
    """

    kept: float
    deviation: float
    widest: float


class Slab(NamedTuple):
    """The law of weights without noise, in units of the noise.

    Attributes:
        share: π, of the weights that are not 0.
        width: τ/s.
        evidence: logarithm of the likelihood, over that without few columns that stand out.
    """

    share: float
    width: float
    evidence: float


def numbers_of(facts: Facts, numbers: Sequence[int] | None) -> Sequence[int]:
    """Return ``numbers``; by default all features, or none if some columns have several."""
    if numbers is not None:
        return numbers
    return range(facts.columns) if (facts.sources or facts.columns) >= facts.columns else ()


def variance_of(plan: ObjectivePlan) -> float:
    """Return v of a standardised number: the variance of a normal one that is cut at the limit."""
    return float(_CHANCE @ POINTS.clamp(-plan.limit, plan.limit) ** 2)


class Moments(NamedTuple):
    """Sums over typical records, for weighted scores: residuals times weights.

    Attributes:
        curvature: h/v, in a feature of variance 1.
        squares: of weighted scores of such a feature.
        pull: of weighted scores times u: what records add to each released weight, dotted with the
            weights.
        scores: of weighted scores: what records add to the intercept.
        rate: the mean chance that a target is 1; not a sum.
    """

    curvature: Tensor
    squares: Tensor
    pull: Tensor
    scores: Tensor
    rate: Tensor


def moments_of(
    plan: ObjectivePlan,
    intercept: float,
    spread: float,
    factor: Tensor,
    right: Tensor | None = None,
    every: int = 1,
) -> Moments:
    """Return sums over records with logits of the model about N(intercept, spread²).

    Args:
        plan: the settings of the release; N must be known.
        intercept: of the model.
        spread: standard deviation of the rest of its logit, u.
        factor: targets are 1 with chance sigmoid(right + factor · u), any shape.
        right: the same shape; by default the model's intercept.
        every: take every so many of the points of u.

    Returns:
        The sums, in the shape of ``factor``.
    """
    facts, k = plan.facts, plan.actual_event.residual
    assert facts.rows is not None
    point = POINTS[::every]
    chance = torch.softmax(-(point**2) / 2, 0)
    ratio = plan.clip / math.sqrt(facts.squared)
    omega = min(1.0, ratio, plan.bend * ratio**2) * sum(plan.class_weights) / 2
    u = spread * point
    p = torch.sigmoid(intercept + u)
    start = intercept if right is None else right.double()[..., None]
    t = torch.sigmoid(start + factor.double()[..., None] * u)
    curvature = squares = pull = scores = torch.zeros(())
    for of, residual, sign in ((t, 1 - p, 1), (1 - t, p, -1)):
        cut = residual.clamp(max=k)
        curvature = curvature + of @ (chance * torch.where(residual < k, p * (1 - p), 0.0))
        squares = squares + of @ (chance * cut**2)
        pull = pull + of @ (chance * sign * cut * u)
        scores = scores + of @ (chance * sign * cut)
    many = facts.rows * omega
    return Moments(many * curvature, many * omega * squares, many * pull, many * scores, t @ chance)


def noise_of(plan: ObjectivePlan, intercept: float, w: Tensor) -> Noise:
    """Return the law of the noise in a minimum, by public numbers; N must be known.

    Args:
        plan: the settings of the release.
        intercept: as released.
        w: released weights of standardised numbers, (m,).
    """
    v = variance_of(plan)
    spread = math.sqrt(v) * float(torch.linalg.vector_norm(w))
    curvature, squares, *_ = map(float, moments_of(plan, intercept, spread, torch.ones(())))
    h = v * curvature
    deviation = math.sqrt(plan.sigma**2 + v * squares) / (h + plan.ridge)
    return Noise(h / (h + plan.ridge), deviation, plan.sigma / plan.ridge)


def slab_of(scores: Tensor, widest: float) -> Slab:
    """Return the most likely slab.

    Args:
        scores: weights over the deviation of their noise, (m,).
        widest: the deviation of the widest noise, in the same units.

    >>> slab_of(torch.tensor([9.0] * 3 + [-1.0, 1.0] * 50).double(), 2.0)[:2]
    (0.05, 8.0)
    """
    squares = scores.double() ** 2
    mean = max(1.0, float(squares.mean()))
    without = -len(squares) * math.log(mean) / 2 - float(squares.sum()) / mean / 2
    shares = torch.tensor(SHARES, dtype=torch.float64)[:, None]
    share, most, best = 0.0, 0.0, -math.inf
    for width in WIDTHS:
        spike, slab = _parts(squares, shares, width)
        each = torch.logaddexp(spike, slab).sum(1)
        place = int(each.argmax())
        found = float(each[place])
        if math.hypot(1.0, width) <= widest:
            without = max(without, found)
        elif found > best:
            share, most, best = SHARES[place], width, found
    return Slab(share, most, best - without)


def without_noise(scores: Tensor, slab: Slab) -> Tensor:
    """Return the posterior mean of the weights without noise, in its units, (d,)."""
    spike, wide = _parts(scores**2, torch.tensor(slab.share, dtype=torch.float64), slab.width)
    return torch.sigmoid(wide - spike) * scores * (slab.width**2 / (1 + slab.width**2))


def of_few_columns(
    plan: ObjectivePlan, minimum: Tensor, numbers: Sequence[int] | None = None
) -> Tensor | None:
    """Return the weights of a minimum where few columns stand out, (d + 1,); else None.

    Args:
        plan: the settings of the release.
        minimum: as released, (d + 1,); the intercept, which comes last, stays as it is.
        numbers: the features that are standardised numbers; all by default, or none where several
            features come from one column.
    """
    facts, numbers = plan.facts, numbers_of(plan.facts, numbers)
    if facts.rows is None or not numbers:
        return None
    places = torch.tensor(numbers)
    w = minimum[places]
    noise = noise_of(plan, float(minimum[-1]) if facts.intercept else 0.0, w)
    scores = w / noise.deviation
    slab = slab_of(scores, noise.widest / noise.deviation)
    if slab.evidence < EVIDENCE:
        return None
    shrunk = without_noise(scores, slab) * noise.deviation / math.sqrt(noise.kept)
    return minimum.index_copy(0, places, shrunk)


def _parts(squares: Tensor, share: Tensor, width: float) -> tuple[Tensor, Tensor]:
    """Return the logarithms of both densities, without the constant, times their chances."""
    wide = 1 + width**2
    slab = -squares / wide / 2 - math.log(wide) / 2
    return -squares / 2 + torch.log1p(-share), slab + torch.log(share)
