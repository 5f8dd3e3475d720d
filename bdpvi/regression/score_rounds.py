"""Rounds of noisy scores: the sums of one, their noise, and what later ones take from the first."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from bdpvi.datasets.records import Records
from bdpvi.models.scores import Parts, ScoreParts
from bdpvi.noise.keys import Key
from bdpvi.privacy.solve import root
from bdpvi.regression.score_posterior import NormalPrior, Round, at_least, closed_form
from bdpvi.releases.exact_sums import exact_sum, symmetric, triangle_weights
from bdpvi.releases.noisy_sum import noisy_total

_LEAST = 0.02
_SMALLEST = 0.05
EMPTY = 2.0
"""Standard deviations of noise below which a level's count says nothing."""


@dataclass(frozen=True, eq=False)
class Place:
    """Where a round's sums are taken, all of it public.

    Attributes:
        family, radius: of the plan.
        point: the point; None for the first round.
        clip: κ.
        longest: v of the sandwich; None for a round without its middle.
    """

    family: ScoreParts
    radius: float
    point: Tensor | None = None
    clip: float = math.inf
    longest: float | None = None

    def parts(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Parts:
        """Return the contributions of some records, which may have weights ω, (N,)."""
        if self.point is None:
            made = self.family.first(x, y, self.radius)
        else:
            made = self.family.parts(x, y, self.radius, self.point, self.clip)
        made = made if weights is None else made.times(weights)
        return made if self.longest is None else made.robust(x, self.longest)


def _sums(records: tuple[Tensor, ...], place: Place) -> Tensor:
    """Return a round's sums over some records, without noise, (size,)."""
    return summed(place.parts(*records), records[0])


def release_round(
    records: Records[tuple[Tensor, ...]],
    place: Place,
    point: Tensor,
    multiplier: float,
    key: Key,
) -> tuple[Round, Tensor | None]:
    """Return one round, its noisy sums; and the lengths of contributions in memory."""
    lengths = None
    if records.in_memory:
        x, *others = records.first()
        parts = place.parts(x, *others)
        flat, lengths = summed(parts, x), parts.lengths(x) / parts.bound
    else:
        flat = records.sum(_sums, place)
    numbers = place.parts(point.new_empty(0, len(point)), point.new_empty(0))
    return noisy(flat, numbers, point, multiplier, key), lengths


def noisy(flat: Tensor, parts: Parts, point: Tensor, multiplier: float, key: Key) -> Round:
    """Return one round from its sums, (size,); of the parts, only their public numbers matter."""
    k = len(point)
    weight = triangle_weights(torch.triu_indices(k, k))
    found, deviation = noisy_total(flat, parts.bound, multiplier, key)
    score, upper, rest = found[:k], found[k : k + len(weight)] / weight, found[k + len(weight) :]
    curvature = symmetric(upper / parts.ratio, k)
    one = Round(point, score, curvature, deviation, deviation / parts.ratio)
    if parts.square is not None:
        e = parts.square_ratio
        one = replace(one, square=float(rest[0]) / e, square_noise=deviation / e)
        rest = rest[1:]
    if parts.middle is None:
        return one
    middle, noise = (
        symmetric(rest / weight / parts.middle_ratio, k),
        deviation / parts.middle_ratio,
    )
    return replace(one, middle=middle, middle_noise=noise)


def summed(parts: Parts, x: Tensor) -> Tensor:
    """Return the sums of contributions, (size,): scores, matrices as upper triangles, squares."""
    above = torch.triu_indices(x.shape[1], x.shape[1])
    weight = triangle_weights(above)
    matrix = exact_sum(parts.curvature[:, None] * x, x) * parts.ratio
    flat = [exact_sum(parts.score, x), weight * matrix[above[0], above[1]]]
    if parts.square is not None:
        total = exact_sum(parts.square, x.new_ones(len(x), 1))
        flat.append(total * parts.square_ratio)
    if parts.middle is not None:
        middle = exact_sum(parts.middle[:, None] * x, x) * parts.middle_ratio
        flat.append(weight * middle[above[0], above[1]])
    return torch.cat(flat)


def start(
    family: ScoreParts, first: Round, radius: float, prior: NormalPrior
) -> tuple[Tensor, Tensor, float, float]:
    """Return a first point, second moments of the features, their noise, and σ² of the target."""
    k = len(first.point)
    if family.link == "logit":
        moments, noise = 4 * first.curvature, 4 * first.curvature_noise
        newton = closed_form([first], prior).mean
        size = _unattenuated(newton, at_least(moments, 1.0) / count_of(moments))
        return newton * size, moments, noise, 1.0
    moments, noise = first.curvature, first.curvature_noise
    if family.link == "identity":
        scale = family.largest / radius
        products = first.score * scale / math.sqrt(2)
        square = first.square * scale**2
        least = max(2 * noise * math.sqrt(k), _LEAST * count_of(moments))
        variance = square / count_of(moments)
        slope, fitted = torch.zeros_like(products), at_least(moments, least)
        slope = torch.linalg.solve(fitted + prior.precision * max(variance, 1e-9), products)
        left = float(square - 2 * slope @ products + slope @ fitted @ slope)
        size = float(slope.norm())
        error = noise * math.hypot(scale**2, math.sqrt(2) * size * scale, size**2)
        # If all residuals are clipped they say nothing, so κ may be too large but not too small.
        left = (max(left, 0.0) + 2 * error) / count_of(moments)
        return slope, moments, noise, within(left, float(variance), family.largest)
    return _log_linear(first.score * family.largest, moments, noise), moments, noise, 1.0


def within(left: float, whole: float, largest: float) -> float:
    """Return a residual variance clamped between a public minimum and the target's variance."""
    least = (_SMALLEST * largest / 10) ** 2
    return min(max(left, least), max(whole, least))


class Joined(NamedTuple):
    """Which columns later rounds have. Public, as it follows from the first round.

    Attributes:
        used: columns that later rounds have, (k,).
        pooled: levels that have one coefficient together, that of the first of them, (k,).
        aside: levels whose records have no part in later rounds, (k,).
        place: the map from the m coefficients to all, (k, m).
    """

    used: Tensor
    pooled: Tensor
    aside: Tensor
    place: Tensor

    @property
    def estimated_columns(self) -> Tensor:
        """Columns whose coefficients the later rounds estimate, (k,)."""
        return self.used | self.pooled


def join_levels(first: Round, levels: Tensor | None) -> Joined:
    """Return which columns have coefficients after the first round, and how the others count.

    Levels of a category that few records have get one coefficient together, if together they are
    enough. Otherwise their records are set aside: counted to another level they would move its
    coefficient, and weights that depend on features alone bias none. The coefficient of a level
    that is left out is then the mean of its column's. A blank of a number counts as the number's
    noisy mean: it is encoded as 0, which may be far from all numbers.

    Args:
        first: the first round.
        levels: as for :func:`bdpvi.regression.score_release.measure`.
    """
    k = len(first.point)
    place, none = torch.eye(k, dtype=torch.float64), torch.zeros(k, dtype=torch.bool)
    if levels is None:
        return Joined(~none, none, none, place)
    least, counts = EMPTY * first.curvature_noise, first.curvature.diagonal()
    own = (levels == -1) | (counts >= least)
    pooled, aside, used = none.clone(), none.clone(), own.clone()
    means = first.curvature[:, -1] / count_of(first.curvature)
    for group in levels[~own].unique().tolist():
        out = ~own & (levels == group)
        places = torch.nonzero(out).flatten()
        place[out] = 0.0
        of_levels = group >= 0 and int(levels[group]) == group
        if of_levels and float(counts[out].sum()) >= least * math.sqrt(len(places)):
            pooled |= out
            used[places[0]] = True
            place[out, places[0]] = 1.0
        elif group >= 0:
            aside |= out & of_levels
            others = own & (levels == group)
            others[group] |= not of_levels
            place[out] = others * means / max(1 - float(means[out].sum()), 0.5)
    return Joined(used, pooled, aside, place[:, used])


def count_of(moments: Tensor) -> float:
    """Return the noisy number of records, from the column of ones."""
    return max(float(moments[-1, -1]), 1.0)


def _unattenuated(newton: Tensor, moments: Tensor) -> float:
    """Return the factor that corrects a Newton step from 0, for normal features (Stein's lemma).

    The step is 4 E[p(1 − p)] β then, with a linear predictor of variance s²; s is the root.
    """
    step = math.sqrt(max(float(newton @ moments @ newton), 1e-12))
    nodes = torch.linspace(-6, 6, 121, dtype=torch.float64)
    density = (-nodes.square() / 2).exp()
    density /= density.sum()

    def excess(s: float) -> float:
        p = torch.sigmoid(s * nodes)
        return 4 * s * float((density * p * (1 - p)).sum()) - step

    return 3.0 / step if excess(3.0) < 0 else root(excess, 1e-9, 3.0) / step


def _log_linear(products: Tensor, moments: Tensor, noise: float) -> Tensor:
    """Return a start for counts, as if features were normal: slopes S⁻¹(E xy/E y − E x)."""
    n, k = count_of(moments), len(products)
    mean_y = max(float(products[-1]) / n, 0.05)
    mean = moments[:-1, -1] / n
    spread = at_least(moments[:-1, :-1] / n - torch.outer(mean, mean), 0.1)
    ridge = noise * math.sqrt(k) / n / 2 * torch.eye(k - 1, dtype=torch.float64)
    slopes = torch.linalg.solve(spread + ridge, products[:-1] / n / mean_y - mean)
    size = math.sqrt(float(slopes @ spread @ slopes))
    slopes = slopes * min(1.0, 1.2 / max(size, 1e-9))
    ones = math.log(mean_y) - float(slopes @ spread @ slopes) / 2 - float(mean @ slopes)
    return torch.cat([slopes, slopes.new_tensor([ones])])


def standardising(moments: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Return M^-½ and M^½ of the second moments, with eigenvalues bounded below by their noise."""
    n, k = count_of(moments), len(moments)
    values, vectors = torch.linalg.eigh(moments / n)
    values = values.clamp(min=max(2 * noise * math.sqrt(k) / n, _LEAST))
    return (vectors / values.sqrt()) @ vectors.T, (vectors * values.sqrt()) @ vectors.T
