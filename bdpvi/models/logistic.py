"""Bayesian logistic regression with a bound on every record's score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.contract import Model
from bdpvi.models.losses import Logistic
from bdpvi.models.priors import Prior, sampled
from bdpvi.models.weighing import (
    CONSTANT,
    LIMIT,
    longest_row,
    usual_norm,
    usual_precision,
    weights_within,
    within,
)


def departure(w: Tensor, intercept_mean: float) -> Tensor:
    """Return weights minus their prior mean, 0 except for the intercept, the last, (..., d).

    >>> departure(torch.tensor([[1.0, 2.0]]), 0.5)
    tensor([[1.0000, 1.5000]])
    """
    if not intercept_mean:
        return w
    return torch.cat([w[..., :-1], w[..., -1:] - intercept_mean], -1)


@dataclass(frozen=True, kw_only=True)
class BayesianLogisticRegression:
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
                object.__setattr__(self, name, disjoint(name, value))
        for name in ("prior_scale", "clip", "limit"):
            if (value := getattr(self, name)) is not None:
                validate.single(name, value)
        if self.weight_norm is not None and not self.weight_norm > 0:
            raise ValueError(f"weight_norm must be positive, got {self.weight_norm!r}")
        if self.clip is not None and self.weight_norm not in (None, math.inf):
            raise ValueError(
                f"clip={self.clip!r} and weight_norm={self.weight_norm!r} both bound scores: give "
                "one of them"
            )
        # Checks that do not depend on the data's width.
        if self.weighted:
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
        return replace(self, weight_norm=math.inf) if self.weighted else self

    @property
    def weighted(self) -> bool:
        """Whether records have weights."""
        return self.clip is None and self.weight_norm != math.inf

    @property
    def constant(self) -> float:
        """The column of the intercept."""
        return CONSTANT if self.weighted else 1.0

    def score_bound(self, weights: int) -> float:
        """Return C, the bound on the norm of any record's score; inf if there is none.

        Args:
            weights: number of weights, including the intercept.
        """
        if self.clip is not None:
            return self.clip
        if self.weight_norm is not None:
            return float(self.weight_norm)
        return usual_norm(self._counted(weights), bool(self.intercept) * self.constant)

    def weighted_norm(self, weights: int) -> float:
        """Return C, the largest norm of a weighted row; inf if there is none."""
        return self.score_bound(weights)

    @property
    def loss(self) -> Logistic | None:
        """The loss of a record; None with clipped scores, whose curvature ends at once."""
        return Logistic() if self.clip is None else None

    def terms(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of the design times 2y − 1, (N, n), and the targets."""
        return (2 * y - 1).unsqueeze(1) * self.design(x), y

    def _counted(self, weights: int) -> int:
        """Return d, the number of features, counting each category as one."""
        extra = sum(len(group) - 1 for group in self.one_hot or ())
        return max(weights - bool(self.intercept) - extra, 0)

    def longest(self, weights: int) -> float:
        """Return B, the length of the longest row of a design; inf without a limit."""
        limit = math.inf if self.limit is None or self.correlation else float(self.limit)
        return longest_row(self._counted(weights), limit, bool(self.intercept) * self.constant)

    def precision(self, weights: int) -> float:
        """Return 1/s², the prior's precision: λ = 4CB by default."""
        if self.prior_scale is not None:
            return self.prior_scale**-2
        return usual_precision(Logistic.bound, self.score_bound(weights), self.longest(weights))

    def record_weights(self, design: Tensor) -> Tensor:
        """Return ω, the weight of every record, (N,): 1 where records are not weighted."""
        norm = self.score_bound(design.shape[1]) if self.weighted else math.inf
        return weights_within(design, norm)

    @property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Column numbers of the levels of each category, which a summary compares."""
        return self.one_hot or ()

    def identified(self, features: int) -> Tensor:
        """Return the identified sums of weights, as :meth:`.regression.Design.identified`.

        >>> told = BayesianLogisticRegression.unweighted(intercept=True, one_hot=((0, 1),))
        >>> told.identified(2)[2]
        tensor([0.5000, 0.5000, 1.0000], dtype=torch.float64)
        """
        if not self.intercept or self.correlation:
            return torch.eye(features + bool(self.intercept), dtype=torch.float64)
        return identified(features + 1, self.levels)

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

    def departure(self, w: Tensor) -> Tensor:
        """Return the weights minus their prior mean, (..., d)."""
        return departure(w, self.intercept_mean / self.constant)

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

    def priors(self, x: Tensor) -> dict[str, Prior]:
        """Return the prior of the weights ``w``, (d,), for features ``x``."""
        weights = x.shape[1] + bool(self.intercept)
        mean = -self.departure(x.new_zeros(weights))
        return {"w": Prior(mean, x.new_tensor(self.precision(weights) ** -0.5))}

    def means(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the probabilities of 1, (N,); a clip only concerns the fit."""
        return torch.sigmoid(self.design(x) @ latents["w"])

    def __call__(self, x: Tensor, y: Tensor | None = None) -> None:
        """Sample the weights and observe the records."""
        import pyro
        import pyro.distributions as dist

        from bdpvi.models.clipped import ClippedBernoulli

        w = sampled(self.priors(x))["w"]
        design = self.design(x)
        weights = self.record_weights(design)
        with pyro.plate("records", len(x)), pyro.poutine.scale(scale=weights):
            if self.clip is None:
                likelihood = dist.Bernoulli(logits=design @ w)
            else:
                likelihood = ClippedBernoulli(design @ w, self.slope_bound(design))
            pyro.sample("y", likelihood, obs=y)

    def takes(self, x: Tensor, y: Tensor) -> Tensor:
        """Return a mask of the records that the model accepts, with targets 0 or 1, (N,)."""
        return (y == 0) | (y == 1)

    def check(self, data: Dataset) -> None:
        """Raise ValueError unless every target of ``data`` is 0 or 1.

        A single class is accepted: the prior keeps the posterior proper, and a mechanism that
        refused some tables would distinguish them from their neighbours.
        """
        values = torch.unique(data.y)
        if not bool(((values == 0) | (values == 1)).all()):
            raise ValueError(f"y must be 0 or 1, got {values[:5].tolist()}")


def with_categories(model: Model, one_hot: tuple[tuple[int, ...], ...] | None) -> Model:
    """Return the model with these categories, if it weights records and has none yet."""
    if type(model) is BayesianLogisticRegression and model.weighted and model.one_hot is None:
        return replace(model, one_hot=one_hot) if one_hot else model
    return model


def identified(weights: int, levels: Sequence[Sequence[int]]) -> Tensor:
    """Return the identified sums of p weights, the last of them the intercept, (p, p).

    Args:
        weights: p.
        levels: places of the weights of each category's levels.
    """
    sums = torch.eye(weights, dtype=torch.float64)
    for places in levels:
        sums[-1, list(places)] = 1 / len(places)
    for places in map(list, levels):
        sums[places] += sums[-1].index_fill(0, torch.tensor(places), 0.0)
    return sums


def _places(name: str, group: tuple[int, ...], x: Tensor) -> Tensor:
    """Return the column numbers of a group as a tensor; ``name`` is the argument's name."""
    if max(group) >= x.shape[1]:
        raise ValueError(f"{name} has column {max(group)} of {several(x.shape[1], 'feature')}")
    return torch.tensor(group, device=x.device)


def disjoint(name: str, groups: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return disjoint groups of column numbers as tuples; ``name`` is the argument's name."""
    columns = [column for group in groups for column in group]
    whole = all(isinstance(column, int) and column >= 0 for column in columns)
    if not whole or not all(groups) or len(set(columns)) < len(columns):
        raise ValueError(
            f"{name} must hold column numbers from 0 on, each at most once, got {groups!r}"
        )
    return tuple(tuple(group) for group in groups)
