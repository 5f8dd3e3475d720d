"""One round of noisy scores: the sums over the records, and their noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bdpvi.datasets.records import Held, Records
from bdpvi.models.scores import Parts, ScoreParts
from bdpvi.noise.keys import Key
from bdpvi.regression.score_posterior import Round
from bdpvi.releases.exact_sums import SLACK, exact_sum, symmetric, triangle_weights
from bdpvi.releases.noisy_sum import NoisySum


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

    def parts(self, x: Tensor, y: Tensor) -> Parts:
        """Return the contributions of some records."""
        if self.point is None:
            return self.family.first(x, y, self.radius)
        made = self.family.parts(x, y, self.radius, self.point, self.clip)
        return made if self.longest is None else made.robust(x, self.longest)


def _sums(records: tuple[Tensor, Tensor], place: Place) -> Tensor:
    """Return a round's sums over some records, without noise, (size,)."""
    x, y = records
    return summed(place.parts(x, y), x)


def release_round(
    records: Records[tuple[Tensor, Tensor]],
    place: Place,
    point: Tensor,
    multiplier: float,
    key: Key,
) -> tuple[Round, Tensor | None]:
    """Return one round, its noisy sums; and the lengths of contributions in memory."""
    lengths = None
    if isinstance(records, Held):
        x, y = records.part
        parts = place.parts(x, y)
        flat, lengths = summed(parts, x), parts.lengths(x) / parts.bound
    else:
        flat = records.sum(_sums, place)
    numbers = place.parts(point.new_empty(0, len(point)), point.new_empty(0))
    return noisy(flat, numbers, point, multiplier, key), lengths


def noisy(flat: Tensor, parts: Parts, point: Tensor, multiplier: float, key: Key) -> Round:
    """Return one round from its sums, (size,); of the parts, only their public numbers matter."""
    k = len(point)
    weight = triangle_weights(torch.triu_indices(k, k))
    mechanism = NoisySum(
        rate=1.0,
        clip=parts.bound * (1 + SLACK),
        noise_multiplier=multiplier,
        size=len(flat),
        records=1,
    )
    (found,) = mechanism.noisy([flat], key)
    score, upper, rest = found[:k], found[k : k + len(weight)] / weight, found[k + len(weight) :]
    deviation = mechanism.deviation
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
