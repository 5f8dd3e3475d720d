r"""Noisy moments of groups: a linear mixed model from one Gaussian mechanism, with intervals.

With z a row's clipped-weight features and 1, e_g the indicator of its group and y its target in
units of its bound, a row adds ω vvᵀ to a matrix, v = (z, ce_g, uy). With ω = min(1, R²/|z|²) and
c² = u² = R²/2 its Frobenius norm is ω|v|² ≤ R² + c² + u² = 2R²: as a row touches one group, many
groups cost what few do. The entries for pairs of groups are 0 for any table, and are not released.
:mod:`bdpvi.regression.group_posterior` has the posterior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi.datasets.dataset import Data, sample_of_form
from bdpvi.models.contract import Model, Prior
from bdpvi.models.linear import BayesianLinearRegression
from bdpvi.models.mixed import FEWEST_GROUPS, MixedRegression
from bdpvi.models.scores import row_weights
from bdpvi.noise.secure import sum_rounding
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.regression.group_posterior import GroupMoments, MixedPosterior, mixed_posterior
from bdpvi.releases.estimate import Gaussian, Output
from bdpvi.releases.exact_sums import SLACK, exact_sum, symmetric, triangle_weights
from bdpvi.releases.noisy_sum import NoisySum

if TYPE_CHECKING:
    from bdpvi.noise.keys import Key
    from bdpvi.releases.route import Allowance

_WIDER = 1.25
"""R over the root of a row's expected squared length."""
_PRIOR = 0.25
"""The standard deviation of a measured weight is below this, in those of the prior."""
_KNOWN = math.sqrt(0.5)
"""That of a measured effect, in τ's; and of log τ."""


@dataclass(frozen=True, kw_only=True)
class MomentPlan:
    """Public settings of noisy moments of groups.

    Attributes:
        event: the mechanism.
        columns: p, features of a row and 1, without groups.
        groups: G.
        radius: R.
        largest: the bound of targets.
    """

    event: SampledGaussian
    columns: int
    groups: int
    radius: float
    largest: float

    @property
    def events(self) -> tuple[SampledGaussian]:
        """The events to charge."""
        return (self.event,)

    def with_noise(self, noise_multiplier: float) -> MomentPlan:
        """Return the settings with another noise multiplier."""
        return replace(self, event=replace(self.event, noise_multiplier=noise_multiplier))

    @property
    def size(self) -> int:
        """The number of released numbers."""
        return sizes(self.columns, self.groups)

    @property
    def part(self) -> float:
        """c and u, R/√2."""
        return self.radius / math.sqrt(2)

    def sums(self, x: Tensor, groups: Tensor, y: Tensor) -> Tensor:
        """Return the sums over some rows, (size,), without noise.

        Args:
            x: features and 1, (n, p).
            groups: whether a row is of a group, at most one, (n, G).
            y: targets around their middle, (n,).
        """
        above, root, part = torch.triu_indices(x.shape[1], x.shape[1]), math.sqrt(2), self.part
        w = row_weights(x, self.radius)[:, None]
        cut = (y.clamp(-self.largest, self.largest) / self.largest * part)[:, None]
        inner = exact_sum(w * x, torch.cat([x, cut], 1))
        of_groups = exact_sum(groups.to(x) * part, torch.cat([w * x, w * cut], 1))
        own = exact_sum(groups.to(x) * part**2, w)
        return torch.cat(
            [
                triangle_weights(above) * inner[above[0], above[1]],
                root * inner[:, -1],
                root * of_groups.flatten(),
                own[:, 0],
                exact_sum(w * cut, cut).flatten(),
            ]
        )

    def released(self, flat: Tensor, key: Key) -> GroupMoments:
        """Return the moments of sums, (size,), with noise."""
        mechanism = NoisySum(
            rate=1.0,
            clip=2 * self.radius**2 * (1 + SLACK),
            noise_multiplier=self.event.noise_multiplier,
            size=len(flat),
            records=1,
        )
        (found,) = mechanism.noisy([flat], key)
        return self.moments(found, mechanism.deviation)

    def moments(self, flat: Tensor, noise: float) -> GroupMoments:
        """Return the moments of noisy sums, (size,), whose noise has this standard deviation."""
        p, part, root, unit = self.columns, self.part, math.sqrt(2), self.largest / self.part
        above = torch.triu_indices(p, p)
        lengths = [above.shape[1], p, self.groups * (p + 1), self.groups, 1]
        upper, products, of_groups, own, square = flat.split(lengths)
        sums = of_groups.view(self.groups, p + 1) / (root * part)
        first, second = noise / (root * part), noise / part**2  # of the number of rows, twice
        share = first**-2 / (first**-2 + second**-2)
        sums[:, -2] = share * sums[:, -2] + (1 - share) * own / part**2
        return GroupMoments(
            features=symmetric(upper / triangle_weights(above), p),
            sums=sums[:, :-1],
            products=products / root * unit,
            by_group=sums[:, -1] * unit,
            square=float(square) * unit**2,
            feature_noise=noise,
            sum_noise=first,
            count_noise=math.hypot(share * first, (1 - share) * second),
            product_noise=noise / root * unit,
            group_noise=first * unit,
            square_noise=noise * unit**2,
        )


def sizes(columns: int, groups: int) -> int:
    """Return the number of released numbers."""
    return columns * (columns + 1) // 2 + columns + groups * (columns + 2) + 1


@dataclass(frozen=True, kw_only=True)
class NoisyGroups:
    """Linear mixed models whose groups are features, with intervals for sampling and privacy noise.

    One Gaussian mechanism releases second moments of rows and of each group's rows
    (:mod:`bdpvi.regression.group_moments`); effects of groups, τ and the weights follow from these
    only, so draws cost nothing. Features should have about unit size, by public scales.

    Args:
        draws: number of posterior draws; any number has the same price.
        columns: number of raw columns that the features encode, if known, without the groups'.
    """

    kind: ClassVar[str] = "noisy moments of groups"
    count: ClassVar[float] = 0.0

    draws: int = 1000
    columns: int | None = None

    def __post_init__(self) -> None:
        validate.positive_int("draws", self.draws)

    def of_rows(self, rows: float) -> NoisyGroups:
        """Return the route, which needs no number of records."""
        return self

    def of_columns(self, columns: int | None) -> NoisyGroups:
        """Return the route for features that encode this many raw columns, without the groups'."""
        return replace(self, columns=columns)

    def adapt(self, model: Model, data: Data, guide: object) -> NoisyGroups:
        """Return the route; raise ValueError unless the model is a linear mixed one with groups."""
        known = mixed_of(model)
        if guide is not None:
            raise ValueError(
                f"guide={guide!r:.80}: route=NoisyGroups() computes its own posterior and takes no "
                "guide; leave it out"
            )
        if len(known.groups) < FEWEST_GROUPS:
            raise ValueError(
                f"groups: there are {several(len(known.groups), 'group')} of {known.column!r}, and "
                f"τ needs {FEWEST_GROUPS} at least: make it a category (leave the group out)"
            )
        known.check(sample_of_form(data))
        return self

    def plan(self, model: Model, features: int, left: Allowance) -> MomentPlan:
        """Return the settings, a function of public numbers."""
        known = mixed_of(model)
        variance = largest_variance(left.epsilon, left.delta) - left.variance
        columns, groups = features - len(known.groups) + 1, len(known.groups)
        event = SampledGaussian(
            noise_multiplier=left.rows / math.sqrt(variance),
            rounding=sum_rounding(sizes(columns, groups)),
        )
        expected = columns if self.columns is None else min(self.columns + 1, columns)
        return MomentPlan(
            event=event,
            columns=columns,
            groups=groups,
            radius=_WIDER * math.sqrt(expected),
            largest=known.of.largest,  # type: ignore[union-attr]
        )

    def predicting(self, model: Model, plan: MomentPlan) -> Model:
        """Return the model."""
        return model

    def words(self, plan: MomentPlan) -> str:
        """Return "": the settings are for any number of rows."""
        return ""

    def caution(self, plan: MomentPlan, delta: float) -> str:
        """Return "": the summary says what is not measured."""
        return ""

    def draw(self, model: Model, data: Data, plan: MomentPlan, key: Key) -> Output:
        """Return the posterior, with a secret key's noise."""
        known = mixed_of(model)
        used = torch.ones(len(data.feature_names), dtype=torch.bool)
        used[list(known.groups)] = False
        made = plan.released(data.parts.sum(_sums, known, used, plan), key.child("moments"))
        like = torch.zeros(1, len(data.feature_names), dtype=torch.float64)
        priors = known.priors(like)
        prior = Prior(like.new_zeros(plan.columns), priors["w"].sd)
        found = mixed_posterior(made, prior, priors["log_spread"], plan.largest)
        guide = _guide(found, known, used, float(prior.sd), float(priors["log_spread"].sd))
        flat = guide.draws(self.draws, key.child("draws"))
        return Output(guide.latents(known, flat, len(used)), guide=guide, flat=flat)


def mixed_of(model: Model) -> MixedRegression:
    """Return a linear mixed model with groups.

    Raises:
        ValueError: if it is another one.
    """
    fits = isinstance(model, MixedRegression) and isinstance(model.of, BayesianLinearRegression)
    if not fits or not model.groups:  # type: ignore[attr-defined]
        raise ValueError(
            f"model={model!r:.80}: route=NoisyGroups() is for a linear MixedRegression with "
            "groups; DPVI() takes records that are groups"
        )
    return model  # type: ignore[return-value]


def _sums(
    records: tuple[Tensor, ...], model: MixedRegression, used: Tensor, plan: MomentPlan
) -> Tensor:
    """Return the sums over some records."""
    x, y, *_ = (record.detach().cpu().double() for record in records)
    design = model.of.design(x)
    there = design[:, :-1][:, ~used] > 0.5
    there &= there.cumsum(1) == 1  # one group, whatever the features are
    rows = torch.cat([design[:, :-1][:, used], design[:, -1:]], 1)
    return plan.sums(rows, there, y - model.of.middle)  # type: ignore[union-attr]


def _guide(
    found: MixedPosterior, model: MixedRegression, used: Tensor, scale: float, width: float
) -> Gaussian:
    """Return the posterior of the latent variables, in the model's order.

    Args:
        found: the posterior of the other weights, the intercept, and the groups' effects.
        used: which features are not groups, (d,).
        scale: the prior's standard deviation of weights.
        width: that of log τ.
    """
    d, p = len(used), int(used.sum()) + 1
    place = torch.empty(d + 1, dtype=torch.int64)
    place[:-1][used], place[-1] = torch.arange(p - 1), p - 1
    place[:-1][~used] = torch.arange(p, d + 1)
    logs = (found.log_scale, found.log_spread)
    variances = torch.cat([found.variances[place], torch.tensor([sd**2 for _, sd in logs])])
    mean = torch.cat([found.mean[place], torch.tensor([mean for mean, _ in logs])])
    mean[d] += model.of.middle  # type: ignore[union-attr]
    covariance: tuple[tuple[float, ...], ...] = ()
    if found.covariance is not None:
        whole = variances.diag()
        inside = found.covariance[place][:, place]
        whole[: d + 1, : d + 1] = (inside + inside.T) / 2
        covariance = tuple(map(tuple, whole.tolist()))
    limit = torch.full((d + 1,), _PRIOR * scale, dtype=torch.float64)
    limit[:-1][~used] = _KNOWN * math.exp(found.log_spread[0])
    measured = (variances[:-2].sqrt() < limit).tolist()
    return Gaussian(
        mean=tuple(mean.tolist()),
        variances=tuple(variances.tolist()),
        covariance=covariance,
        sites={"w": (d + 1,), "log_scale": (), "log_spread": ()},
        measured=(*measured, True, found.log_spread[1] < _KNOWN * width),
    )
