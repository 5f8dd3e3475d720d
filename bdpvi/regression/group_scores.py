r"""Noisy scores of groups: logistic and Poisson mixed models from a few Gaussian rounds.

With z a row's features and 1, and e_g the indicator of its group, x = (z, ce_g) is a design, and a
round is one of noisy scores (:mod:`bdpvi.models.scores`): a row adds s x and h xxᵀ, together at
most B long. As it touches one group, many groups cost what few do; entries for pairs of groups are
0 for any table, and are not released. The first round has no groups, and gives a start, and counts
a narrower bound.

A round is taken at a point w, u, where t = Σ s x ≈ M(δ, u' − u) + ε for the true w + δ and u', M =
Σ h xxᵀ and Var ε ≤ M: t + M(0, u) are the moments of a linear mixed model with σ = 1, and
:mod:`bdpvi.regression.group_posterior` has its posterior. Effects are known with a variance v only,
so the mean of a row is E g(zᵀw + u + ξ), ξ ~ N(0, v), as in the M step of variational Bayes;
without ξ the estimate is attenuated (Breslow and Lin, Biometrika 82, 1995). It is g at κ(zᵀw + u),
κ² = 1/(1 + πv/8), of the logit (MacKay, Neural Computation 4, 1992), whose slope has the factor κ;
and at zᵀw + u + v/2 of the logarithm. As h then is at most that of the mean, no row gets longer.
Given another τ, v is another, 1/v = 1/τ² + 1/e², and so is w for the same mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bdpvi.datasets.dataset import Data
from bdpvi.models.contract import Prior
from bdpvi.models.mixed import MixedRegression
from bdpvi.models.poisson import PoissonScores
from bdpvi.models.scores import Parts, ScoreParts
from bdpvi.regression.group_moments import GroupedRows, GroupPlan
from bdpvi.regression.group_posterior import (
    GroupMoments,
    MixedPosterior,
    mixed_posterior,
    shrunk,
)
from bdpvi.regression.score_posterior import NormalPrior, Round
from bdpvi.regression.score_rounds import EMPTY, Place, count_of, noisy, start, summed
from bdpvi.releases.exact_sums import exact_sum, symmetric, triangle_weights
from bdpvi.releases.noisy_sum import noisy_total

if TYPE_CHECKING:
    from bdpvi.noise.keys import Key


_FEW, _TIMES = 4.0, 4.0
"""Later rounds cut counts at the sum of this and as many times their noisy mean, if it is less."""


class GroupPoint(NamedTuple):
    """Where a round is taken.

    Attributes:
        w: weights, (p,).
        u: effects, (G,).
        spread: the τ² that they were drawn to 0 by.
        error: the variance of their errors before that; infinite where nothing is known of them.
    """

    w: Tensor
    u: Tensor
    spread: float
    error: float = math.inf

    def variance(self, spread: float) -> float:
        """Return v, of the effects given u, for this τ²."""
        return spread if math.isinf(self.error) else 1 / (1 / spread + 1 / self.error)

    def given(self, logit: bool, step: Tensor, spread: float) -> Tensor:
        """Return the step from w whose mean for this τ² is that of another step for the point's.

        >>> point = GroupPoint(torch.tensor([1.0, 0.0]), torch.zeros(3), 0.0)
        >>> point.given(False, torch.zeros(2), 0.5).tolist()
        [0.0, -0.25]
        """
        used, own = self.variance(self.spread), self.variance(spread)
        if not logit:
            moved = step.clone()
            moved[-1] += (used - own) / 2
            return moved
        return (self.w + step) * (_shrinkage(used) / _shrinkage(own)) - self.w

    def relative(self, logit: bool) -> Tensor:
        """Return what Σ h of a group is in proportion to where its other features are 0, (G,)."""
        if not logit:
            return self.u.exp()
        p = torch.sigmoid(self.w[-1] + self.u)
        return p * (1 - p)

    def from_zero(self, made: GroupMoments) -> GroupMoments:
        """Return the moments that effects would have from 0, not from here."""
        known = shrunk(made).sums
        return replace(
            made,
            products=made.products + known.T @ self.u,
            by_group=made.by_group + known[:, -1] * self.u,
            away=self.variance(self.spread),
        )

    def moved(
        self, logit: bool, found: MixedPosterior, furthest: float
    ) -> tuple[GroupPoint, MixedPosterior]:
        """Return the next point, and the posterior of w itself, from that of a step."""
        p = len(self.w)
        step, u = found.mean[:p], found.mean[p:]
        long = float(step.norm())
        near = furthest / 2 if long < furthest else 0.0
        whole = replace(found, mean=torch.cat([self.w + step, u]), near=near)
        step = step * min(1.0, furthest / max(long, 1e-12))
        if not logit:  # a sum of e^a, linear at a too small a, asks for too much
            far = (u - self.u - furthest).clamp(min=0)
            u = u - far + far.log1p()
        spread = math.exp(2 * found.log_spread[0])
        known = 1 / found.uncertain - 1 / spread
        error = 1 / known if known > 0 else math.inf
        return GroupPoint(self.w + step, u, spread, error), whole


@dataclass(frozen=True, kw_only=True)
class ScoredGroups(GroupPlan):
    """Public settings of noisy scores of groups.

    Attributes:
        family: what a round takes from a row.
    """

    family: ScoreParts

    @property
    def length(self) -> float:
        """The longest x, √(R² + c²)."""
        return math.hypot(self.radius, self.part)

    @property
    def logit(self) -> bool:
        """Whether the predictor is a logit; otherwise a logarithm."""
        return self.family.link == "logit"

    def parts(self, rows: GroupedRows, at: GroupPoint) -> tuple[Tensor, Parts]:
        """Return the design x of rows, (n, p + G), and their contributions."""
        x = torch.cat([rows.x, rows.groups.to(rows.x) * self.part], 1)
        shrinkage, w = 1.0, at.w.clone()
        if self.logit:
            shrinkage = _shrinkage(at.variance(at.spread))
        else:
            w[-1] += at.variance(at.spread) / 2
        point = torch.cat([w, at.u / self.part]) * shrinkage
        made = self.family.parts(x, rows.y, self.length, point, math.inf)
        return x, made._replace(curvature=made.curvature * shrinkage)

    def sums(self, rows: GroupedRows, at: GroupPoint) -> Tensor:
        """Return the sums of a round over some rows, (size,), without noise."""
        _, made = self.parts(rows, at)
        p, root, ratio = self.columns, math.sqrt(2), made.ratio
        above = torch.triu_indices(p, p)
        weighted = made.curvature[:, None] * rows.x
        inner, there = exact_sum(weighted, rows.x), rows.groups.to(rows.x) * self.part
        of_groups = exact_sum(there, torch.cat([weighted, made.score[:, None]], 1))
        own = exact_sum(there, self.part * made.curvature[:, None])
        return torch.cat(
            [
                exact_sum(made.score, rows.x),
                ratio * triangle_weights(above) * inner[above[0], above[1]],
                ratio * root * of_groups[:, :-1].flatten(),
                of_groups[:, -1],
                ratio * own[:, 0],
            ]
        )

    def released(self, flat: Tensor, multiplier: float, key: Key) -> GroupMoments:
        """Return the moments of sums, (size − 1,), with noise."""
        p, groups, part = self.columns, self.groups, self.part
        empty = torch.zeros(0, p + groups, dtype=torch.float64)
        none = torch.zeros(p + groups, dtype=torch.float64)
        public = self.family.parts(empty, empty[:, 0], self.length, none, math.inf)
        found, of_score = noisy_total(flat, public.bound, multiplier, key)
        above = torch.triu_indices(p, p)
        lengths = [p, above.shape[1], groups * p, groups, groups]
        products, upper, of_groups, scores, own = found.split(lengths)
        noise = of_score / public.ratio
        first, second = noise / (math.sqrt(2) * part), noise / part**2  # of Σ h, twice
        share = first**-2 / (first**-2 + second**-2)
        sums = of_groups.view(groups, p) / (public.ratio * math.sqrt(2) * part)
        sums[:, -1] = share * sums[:, -1] + (1 - share) * own / (public.ratio * part**2)
        return GroupMoments(
            features=symmetric(upper / (public.ratio * triangle_weights(above)), p),
            sums=sums,
            products=products,
            by_group=scores / part,
            square=0.0,
            feature_noise=noise,
            sum_noise=first,
            count_noise=math.hypot(share * first, (1 - share) * second),
            product_noise=of_score,
            group_noise=of_score / part,
            square_noise=0.0,
        )

    def _narrowed(self, begun: Round) -> ScoreParts:
        """Return the family with a bound of counts by their noisy mean, from the first round."""
        if not isinstance(self.family, PoissonScores):
            return self.family
        largest = self.family.largest
        mean = largest * float(begun.score[-1]) / count_of(begun.curvature)
        return replace(
            self.family, largest=min(largest, float(math.ceil(_FEW + _TIMES * max(mean, 0.0))))
        )

    def posterior(self, data: Data, model: MixedRegression, key: Key) -> MixedPosterior:
        """Release all rounds, and return the posterior that follows from the last."""
        p = self.columns
        priors = model.priors(torch.zeros(1, len(data.feature_names), dtype=torch.float64))
        others = torch.ones(len(priors["w"].mean), dtype=torch.bool)
        others[list(model.groups)] = False
        mean, sd, spread = priors["w"].mean[others], priors["w"].sd, priors["log_spread"]
        prior = NormalPrior(mean, torch.eye(p, dtype=torch.float64) / sd.square())
        first, *later = (
            self.event.noise_multiplier / math.sqrt(share) for share in self.family.shares
        )
        place, zero = Place(self.family, self.radius), mean.new_zeros(p)
        flat = data.parts.sum(_first, model, place)
        numbers = place.parts(mean.new_empty(0, p), mean.new_empty(0))
        begun = noisy(flat, numbers, zero, first, key.child("scores", 0))
        w, *_ = start(self.family, begun, self.radius, prior)
        seen = begun.curvature.diagonal() >= EMPTY * begun.curvature_noise
        seen[-1] = True
        kept = replace(self, columns=int(seen.sum()), family=self._narrowed(begun))
        at = GroupPoint(w[seen], mean.new_zeros(self.groups), math.exp(2 * float(spread.mean)))
        for number, multiplier in enumerate(later, 1):
            flat = data.parts.sum(_scores, model, kept, seen, at)
            made = kept.released(flat, multiplier, key.child("scores", number))
            made = at.from_zero(replace(made, relative=at.relative(self.logit)))
            step, given = Prior(mean[seen] - at.w, sd), partial(at.given, self.logit)
            found = mixed_posterior(made, step, spread, 0.0, given)
            at, found = at.moved(self.logit, found, self.family.furthest)
        return found.among(seen, Prior(mean, sd))


def _shrinkage(variance: float) -> float:
    """Return κ."""
    return 1 / math.sqrt(1 + math.pi * variance / 8)


def _first(records: tuple[Tensor, ...], model: MixedRegression, place: Place) -> Tensor:
    """Return the sums of the first round over some records."""
    rows = GroupedRows.of(records, model)
    return summed(place.parts(rows.x, rows.y), rows.x)


def _scores(
    records: tuple[Tensor, ...],
    model: MixedRegression,
    plan: ScoredGroups,
    seen: Tensor,
    at: GroupPoint,
) -> Tensor:
    """Return the sums of a later round over some records, of some columns."""
    rows = GroupedRows.of(records, model)
    return plan.sums(rows._replace(x=rows.x[:, seen]), at)
