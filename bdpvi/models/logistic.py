"""Bayesian logistic regression with a bound on every record's score.

*Noisy scores.* With p the probability of the label that was observed, |s| = w(1 − p),
h = wp(1 − p), and a contribution's length is w|x|(1 − p)√(1 + a²p²), a = c|x|. (1 − p)²(1 + a²p²)
is at most 1 for all p iff a² ≤ min (2 − p)/(p(1 − p)²) = (11 + 5√5)/2, at p = (3 − √5)/2. Let A be
the root of that, c = A/R. The matrix is then free: up to |x| = R the length is at most |x|. Beyond
R, the maximum m(a) is at p = (1 + √(1 − 8/a²))/4, and w = R/(|x| m(a)). At β = 0 every record has
|s| = w/2 and h = w/4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi._ground.types import BELOW
from bdpvi.models.contract import Model
from bdpvi.models.family import LIMIT, Family, check_norm, within
from bdpvi.models.losses import LossBound, PredictorLoss, logistic_slopes
from bdpvi.models.scores import Parts, ScoreParts

FREE = math.sqrt((11 + 5 * math.sqrt(5)) / 2)
"""A of noisy scores."""


@dataclass(frozen=True)
class LogisticLoss(PredictorLoss):
    """ln(1 + e^{−a}), a the predictor times 2y − 1: the rows of the design have that sign."""

    bound = LossBound(1.0, 0.25, 1.0)

    def value(self, a: Tensor, y: Tensor) -> Tensor:
        """Return ℓ; the target is in the rows' sign."""
        return -logsigmoid(a)

    def slopes(self, a: Tensor, y: Tensor, degree: int) -> list[Tensor]:
        """Return the derivatives."""
        return logistic_slopes(a, degree)

    def smoothed(self, mean: Tensor, variance: Tensor, mark: Tensor, order: int) -> Tensor:
        """Return the expectations; the mark bounds a record's slope."""
        from bdpvi.models.quadrature import derivatives

        return derivatives(mean, variance, mark, order)

    def steepest(self, mark: Tensor) -> Tensor:
        """Return a bound on the slope of each record's loss, (N,)."""
        return mark.clamp(max=1)


@dataclass(frozen=True)
class LogisticScores(ScoreParts):
    """Labels 0 and 1."""

    link = "logit"
    furthest: ClassVar[float] = 3.0
    typical: ClassVar[float] = 0.115
    widest: ClassVar[float] = 2.5

    def first(self, x: Tensor, y: Tensor, radius: float) -> Parts:
        """Return the parts at 0."""
        bound, ratio = radius / math.sqrt(2), 2 / radius
        lengths = torch.linalg.vector_norm(x, dim=1)
        long = lengths / 2 * (1 + (ratio * lengths / 2) ** 2).sqrt()
        w = BELOW * (bound / long).clamp(max=1)
        return Parts(w * (y - 0.5), w / 4, None, bound, ratio)

    def parts(self, x: Tensor, y: Tensor, radius: float, point: Tensor, clip: float) -> Parts:
        """Return the parts at a point."""
        lengths, p = torch.linalg.vector_norm(x, dim=1), torch.sigmoid(x @ point)
        w = BELOW * (radius / (lengths * largest_logistic(FREE * lengths / radius))).clamp(max=1)
        return Parts(w * (y - p), w * p * (1 - p), None, radius, FREE / radius)

    def longest(self, radius: float, clip: float, variance: float) -> float:
        """Return v = R: no score is cut."""
        return radius

    def unit(self, columns: int, radius: float) -> float:
        """Return B/c."""
        return radius**2 / FREE


def largest_logistic(a: Tensor) -> Tensor:
    """Return m(a) = max over p of (1 − p)√(1 + a²p²).

    >>> largest_logistic(torch.tensor([1.0, FREE, 8.0], dtype=torch.float64))
    tensor([1.0000, 1.0000, 2.0635], dtype=torch.float64)
    """
    at = (1 + (1 - 8 / (a * a).clamp(min=8)).sqrt()) / 4
    return ((1 - at) * (1 + (a * at) ** 2).sqrt()).clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class BayesianLogisticRegression(Family):
    """Bayesian logistic regression with prior N(0, s²I) and bounded influence of every record.

    By default a record with features x, clipped at ±limit, and z = (x, 2) has the weight
    ω(x) = min(1, C/‖z‖) in the likelihood, so that its score has norm at most C. Because the weight
    depends on x alone, the score has mean 0 at the truth, and the posterior is consistent
    (Mallows-type estimators: Künsch, Stefanski and Carroll, JASA 84, 1989). With d columns,
    counting a category as one, C = ½√(d + 4), and the prior's precision is λ = 4CB, B the length of
    the longest z: then the posterior's own draws have a worst-case ε, and a certified Bayesian ε
    (:mod:`bdpvi.bayesian.mode`).

    Args:
        prior_scale: the prior's standard deviation s of every weight. None means λ^-½, or 1 if
            records are not weighted.
        intercept: whether the last weight is an intercept. Its column is 2, so the last weight is
            half the intercept; if records are not weighted the column is 1. None means True, or
            False if records are not weighted.
        intercept_mean: prior mean of the intercept; for a rare class, the logit of a public base
            rate. The other weights' prior means are 0.
        weight_norm: C, the largest norm of a record's weighted score. None means ½√(d + 4), inf no
            weights: see :meth:`unweighted`.
        clip: norm bound of each record's score (the gradient of its log-likelihood in the model's
            weights), instead of record weights; a record x has the bound clip/‖x‖ on its
            derivative in the logit. See :class:`bdpvi.models.clipped.ClippedBernoulli`.
        limit: features are clipped at ±limit, which bounds their size. None means 2, or no clipping
            if records are not weighted. Public, like all arguments: choose it without looking at
            the data.
        correlation: ρ in [0, 1), the assumed correlation of any two features of a group. The
            weights then multiply M^-½ x with M = (1 - ρ)I + ρ11ᵀ: the group's mean, and the
            features minus that mean, are scaled separately. If the features are correlated, like
            measurements of one body, prior, clip and public noise then treat all directions alike.
        groups: column numbers of the features in each group; groups are disjoint, and features in
            no group stay unchanged. None means one group of all features.
        one_hot: column numbers of the indicators of each category. With a ``limit`` they are scaled
            together to at most that length, and count as one column in C and B. None, if records
            are weighted, takes them from the data's encoding.

    ``limit`` acts first, then ``correlation``, then the intercept's column is added.

    >>> model = BayesianLogisticRegression()
    >>> model.priors(torch.zeros(4, 2))["w"].mean.shape
    torch.Size([3])
    >>> round(model.score_bound(3), 3), round(model.precision(3), 2)
    (1.225, 16.97)
    >>> told = BayesianLogisticRegression(one_hot=((0, 1, 2),))
    >>> told.score_bound(5) == model.score_bound(3), told.longest(5) == model.longest(3)
    (True, True)
    """

    target = "label"
    rule: ClassVar[str] = "be 0 or 1"
    ratio: ClassVar[str] = "odds ratio"

    prior_scale: float | None = None
    intercept: bool | None = None
    clip: float | None = None
    limit: float | None = None
    correlation: float = 0.0
    groups: tuple[tuple[int, ...], ...] | None = None
    intercept_mean: float = 0.0
    weight_norm: float | None = field(default=None, metadata={"absent": math.inf})
    one_hot: tuple[tuple[int, ...], ...] | None = field(default=None, metadata={"absent": None})

    def __post_init__(self) -> None:
        for name in ("groups", "one_hot"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, validate.disjoint(name, value))
        for name in ("prior_scale", "clip", "limit"):
            if (value := getattr(self, name)) is not None:
                validate.single(name, value)
        check_norm(self.weight_norm)
        if self.clip is not None and self.weight_norm not in (None, math.inf):
            raise ValueError(
                f"clip={self.clip!r} and weight_norm={self.weight_norm!r} both bound scores: give "
                "one of them"
            )
        # Checks that do not depend on the data's width.
        if self.weighs:
            usual: dict[str, object] = {"intercept": True, "limit": LIMIT}
        else:
            usual = {"intercept": False, "prior_scale": 1.0, "weight_norm": math.inf}
        for name, value in usual.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if not math.isfinite(self.intercept_mean):
            raise ValueError(f"intercept_mean must be finite, got {self.intercept_mean!r}")
        if self.intercept_mean and not self.intercept:
            raise ValueError(f"intercept_mean={self.intercept_mean!r} needs intercept=True")
        if not 0 <= self.correlation < 1:
            raise ValueError(f"correlation must lie in [0, 1), got {self.correlation!r}")
        if self.prior_scale is None and math.isinf(self.longest(2)):
            raise ValueError(
                f"prior_scale must be given with limit={self.limit!r} and "
                f"correlation={self.correlation!r}: no longest record is known to set it by"
            )

    @classmethod
    def unweighted(cls, **settings: Any) -> BayesianLogisticRegression:
        """Return the model without record weights: plain logistic regression, s = 1.

        Args:
            settings: arguments of the class.

        >>> BayesianLogisticRegression.unweighted().score_bound(3)
        inf
        """
        return cls(weight_norm=math.inf, **settings)

    @property
    def plain(self) -> BayesianLogisticRegression:
        """The model without record weights, for mechanisms that bound influence themselves."""
        return replace(self, weight_norm=math.inf) if self.weighs else self

    @property
    def weighs(self) -> bool:
        """Whether records have weights."""
        return self.clip is None and self.weight_norm != math.inf

    @property
    def centre(self) -> float:
        """The intercept's prior mean."""
        return self.intercept_mean

    @property
    def loss(self) -> LogisticLoss | None:
        """The loss of a record; None with clipped scores, whose curvature ends at once."""
        return LogisticLoss() if self.clip is None else None

    @property
    def smooth(self) -> bool:
        """Whether it is this model itself: a subclass may observe anything."""
        return type(self) is BayesianLogisticRegression

    @property
    def score_parts(self) -> LogisticScores:
        """A record's contribution to noisy scores."""
        return LogisticScores()

    @property
    def levels(self) -> tuple[tuple[int, ...], ...]:  # type: ignore[override]
        """Column numbers of the levels of each category, which a summary compares."""
        return self.one_hot or ()

    def weighted_norm(self, weights: int) -> float:
        """Return C, the largest norm of a weighted row; inf if there is none."""
        return super().weighted_norm(weights) if self.clip is None else self.clip

    def score_bound(self, weights: int) -> float:
        """Return C, the bound on the norm of any record's score; inf if there is none.

        Args:
            weights: number of weights, including the intercept.
        """
        return self.weighted_norm(weights)

    def _weight_scale(self, weights: int) -> float:
        return float(self.precision(weights) ** -0.5)

    def terms(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of the design times 2y − 1, (N, n), and the targets."""
        return (2 * y - 1).unsqueeze(1) * self.design(x), y

    def mark(self, rows: Tensor, y: Tensor) -> Tensor:
        """Return the bound on the slope of each record's loss in the logit, (N,)."""
        return self.slope_bound(rows)

    def identified(self, features: int) -> Tensor:
        """Return the identified sums of weights: without an intercept, each alone.

        >>> told = BayesianLogisticRegression.unweighted(intercept=True, one_hot=((0, 1),))
        >>> told.identified(2)[2]
        tensor([0.5000, 0.5000, 1.0000], dtype=torch.float64)
        """
        if not self.intercept or self.correlation:
            return torch.eye(features + bool(self.intercept), dtype=torch.float64)
        return super().identified(features)

    def design(self, x: Tensor) -> Tensor:
        """Return the design matrix, (N, d): the features transformed by the arguments.

        >>> model = BayesianLogisticRegression(prior_scale=0.3, limit=3.0, correlation=0.5)
        >>> model.design(torch.tensor([[1.0, 1.0, 1.0], [-9.0, 0.0, 3.0]]))
        tensor([[ 0.7071,  0.7071,  0.7071,  2.0000],
                [-4.2426,  0.0000,  4.2426,  2.0000]])

        Raises:
            ValueError: if a group or a category has a feature that ``x`` lacks.
        """
        if self.limit is not None:
            categories = [_places("one_hot", one, x) for one in self.one_hot or ()]
            x = within(x, float(self.limit), categories)
        if self.correlation:
            x = self._apart(x)
        if not self.intercept:
            return x
        return torch.cat([x, x.new_full((len(x), 1), self.constant)], dim=1)

    def _apart(self, x: Tensor) -> Tensor:
        """Return M^-½ x for each group of features."""
        groups = (tuple(range(x.shape[1])),) if self.groups is None else self.groups
        for group in groups:
            columns = _places("groups", group, x)
            some, apart = x[:, columns], 1 - self.correlation
            mean, together = some.mean(1, keepdim=True), apart + self.correlation * len(group)
            some = (some - mean) / math.sqrt(apart) + mean / math.sqrt(together)
            x = x.index_copy(1, columns, some)
        return x

    def slope_bound(self, design: Tensor) -> Tensor:
        """Return the bound on each record's derivative in the logit, (N,); inf if unclipped."""
        norms = torch.linalg.vector_norm(design, dim=1)
        return torch.full_like(norms, math.inf) if self.clip is None else self.clip / norms

    def scores(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        """Return each record's gradient of its log-likelihood in w, (N, d), in closed form.

        Args:
            x: features, (N, features).
            y: labels, (N,).
            w: weights, (d,).

        >>> x, y = torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([1.0, 0.0])
        >>> BayesianLogisticRegression.unweighted().scores(x, y, torch.zeros(2))
        tensor([[ 1.5000,  2.0000],
                [-0.5000, -0.0000]])
        """
        from bdpvi.models.clipped import likelihood_slope  # loads Pyro

        design = self.design(x)
        signed = (2 * y - 1).unsqueeze(1) * design
        slope = likelihood_slope(signed @ w, self.slope_bound(design)) * self.record_weights(design)
        return slope.unsqueeze(1) * signed

    def means(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the probabilities of 1, (N,); a clip only concerns the fit."""
        return torch.sigmoid(self.predictors(latents, x))

    def probabilities(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the probabilities of 0 and 1, (N, 2)."""
        of_one = self.means(latents, x)
        return torch.stack([1 - of_one, of_one], dim=-1)

    def observed(
        self, latents: Mapping[str, Tensor], x: Tensor, y: Tensor | None
    ) -> tuple[Any, Tensor | None]:
        """Return the distribution of the targets and the records' weights, from one design."""
        import pyro.distributions as dist

        from bdpvi.models.clipped import ClippedBernoulli

        design = self.design(x)
        logits, weights = design @ latents["w"], None
        if self.clip is not None:
            return ClippedBernoulli(logits, self.slope_bound(design)), weights
        if self.weighs:
            weights = self.record_weights(design)
        return dist.Bernoulli(logits=logits), weights

    def fits(self, y: Tensor) -> Tensor:
        """Return a mask of the labels 0 and 1."""
        return (y == 0) | (y == 1)


def with_categories(model: Model, one_hot: tuple[tuple[int, ...], ...] | None) -> Model:
    """Return the model with these categories, if it weights records and has none yet."""
    if type(model) is BayesianLogisticRegression and model.weighs and model.one_hot is None:
        return replace(model, one_hot=one_hot) if one_hot else model
    return model


def _places(name: str, group: tuple[int, ...], x: Tensor) -> Tensor:
    """Return the column numbers of a group as a tensor; ``name`` is the argument's name."""
    if max(group) >= x.shape[1]:
        raise ValueError(f"{name} has column {max(group)} of {several(x.shape[1], 'feature')}")
    return torch.tensor(group, device=x.device)
