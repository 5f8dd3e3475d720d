"""The route of noisy groups: mixed models whose groups are features."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi.datasets.dataset import Data, sample_of_form
from bdpvi.models.contract import Model
from bdpvi.models.linear import LinearScores
from bdpvi.models.mixed import FEWEST_GROUPS, MixedRegression
from bdpvi.noise.secure import sum_rounding
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.regression.group_moments import GroupPlan, MomentPlan, sizes
from bdpvi.regression.group_posterior import MixedPosterior
from bdpvi.regression.group_scores import ScoredGroups
from bdpvi.regression.noisy_scores import parts_of
from bdpvi.releases.estimate import Gaussian, Output

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
class NoisyGroups:
    """Mixed models whose groups are features, with intervals for sampling and privacy noise.

    Gaussian mechanisms release sums over rows and over each group's rows: second moments of linear
    models (:mod:`bdpvi.regression.group_moments`), rounds of scores of logistic and Poisson ones
    (:mod:`bdpvi.regression.group_scores`). Effects of groups, τ and the weights follow from these
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
        """Return the route; raise ValueError unless the model is a mixed one with groups."""
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
        parts_of(known.of, "NoisyGroups")
        known.check(sample_of_form(data))
        return self

    def plan(self, model: Model, features: int, left: Allowance) -> GroupPlan:
        """Return the settings, a function of public numbers."""
        known = mixed_of(model)
        variance = largest_variance(left.epsilon, left.delta) - left.variance
        columns, groups = features - len(known.groups) + 1, len(known.groups)
        family = parts_of(known.of)
        rounds = 1 if isinstance(family, LinearScores) else len(family.shares)
        event = SampledGaussian(
            noise_multiplier=left.rows / math.sqrt(variance),
            rounding=rounds * sum_rounding(sizes(columns, groups)),
        )
        expected = columns if self.columns is None else min(self.columns + 1, columns)
        made = GroupPlan(
            event=event,
            columns=columns,
            groups=groups,
            radius=_WIDER * math.sqrt(expected),
        )
        if isinstance(family, LinearScores):
            return MomentPlan(**vars(made), largest=family.largest)
        return ScoredGroups(**vars(made), family=family)

    def predicting(self, model: Model, plan: GroupPlan) -> Model:
        """Return the model."""
        return model

    def words(self, plan: GroupPlan) -> str:
        """Return "": the settings are for any number of rows."""
        return ""

    def caution(self, plan: GroupPlan, delta: float) -> str:
        """Return "": the summary says what is not measured."""
        return ""

    def draw(self, model: Model, data: Data, plan: GroupPlan, key: Key) -> Output:
        """Return the posterior, with a secret key's noise."""
        known = mixed_of(model)
        found = plan.posterior(data, known, key)
        guide = _guide(found, known, len(data.feature_names))
        flat = guide.draws(self.draws, key.child("draws"))
        return Output(guide.latents(known, flat, len(data.feature_names)), guide=guide, flat=flat)


def mixed_of(model: Model) -> MixedRegression:
    """Return a mixed model with groups.

    Raises:
        ValueError: if it is another one.
    """
    if not isinstance(model, MixedRegression) or not model.groups:
        raise ValueError(
            f"model={model!r:.80}: route=NoisyGroups() is for a MixedRegression with groups; "
            "DPVI() takes records that are groups"
        )
    return model


def _guide(found: MixedPosterior, model: MixedRegression, features: int) -> Gaussian:
    """Return the posterior of the latent variables, in the model's order.

    Args:
        found: the posterior of the other weights, the intercept, and the groups' effects.
        model: the model.
        features: d, with those that are groups.
    """
    priors = model.priors(torch.zeros(1, features, dtype=torch.float64))
    used = torch.ones(features, dtype=torch.bool)
    used[list(model.groups)] = False
    d, p = features, int(used.sum()) + 1
    place = torch.empty(d + 1, dtype=torch.int64)
    place[:-1][used], place[-1] = torch.arange(p - 1), p - 1
    place[:-1][~used] = torch.arange(p, d + 1)
    scale, spread = (float(priors[name].sd) for name in ("w", "log_spread"))
    logs = {
        "log_scale": (*found.log_scale, True),
        "log_spread": (*found.log_spread, found.near > 0 and found.log_spread[1] < _KNOWN * spread),
    }
    own = [logs[name] for name in logs if name in priors]
    variances = torch.cat([found.variances[place], torch.tensor([sd**2 for _, sd, _ in own])])
    mean = torch.cat([found.mean[place], torch.tensor([mean for mean, *_ in own])])
    mean[d] += getattr(model.of, "middle", 0.0)
    covariance: tuple[tuple[float, ...], ...] = ()
    if found.covariance is not None:
        whole = variances.diag()
        inside = found.covariance[place][:, place]
        whole[: d + 1, : d + 1] = (inside + inside.T) / 2
        covariance = tuple(map(tuple, whole.tolist()))
    limit = mean.new_full((d + 1,), min(_PRIOR * scale, found.near))
    limit[:-1][~used] = _KNOWN * math.exp(found.log_spread[0])
    measured = (found.variances[place].sqrt() < limit).tolist()
    return Gaussian(
        mean=tuple(mean.tolist()),
        variances=tuple(variances.tolist()),
        covariance=covariance,
        sites={"w": (d + 1,), **{name: () for name in logs if name in priors}},
        measured=(*measured, *(known for *_, known in own)),
    )
