r"""A likelihood of one predictor or of several, as everything else asks it: one file holds each.

A family also has a loss (:mod:`.losses`) and, for noisy scores, :mod:`.scores` of its records.

*Weighted records.* A record with features x, clipped at ±limit, and z = (x, 2) has the weight
ω(x) = min(1, C/‖z‖). With d columns, counting a category as one, C = ½√(d + 4), B is the length of
the longest z, and the prior's precision is λ = 4MsCB, s and M the bounds of the loss. As
λ_min(F″) ≥ λ, the influence of any record of any table is bounded: hc ≤ MB·sC/λ = ¼ and
a ≤ κCB/λ = κ/(4Ms), which is 1/16 for logistic regression and at most ⅛ for the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.contract import Prior
from bdpvi.models.losses import LossBound
from bdpvi.models.scores import ScoreParts

if TYPE_CHECKING:
    from typing_extensions import Self

LIMIT = 2.0
"""Default limit at which standardised features are clipped, ±, where records are weighted."""
CONSTANT = 2.0
"""The intercept's column where records are weighted: the intercept gets a quarter of the ridge."""
SCALE = 5.0
"""Default standard deviation of weights where records are not weighted."""


class Family:
    """What is asked of a regression; arguments ``weights`` count the columns n of the design."""

    target: ClassVar[Literal["label", "number", "count", "class", "time"]]
    """What a target is: 0 or 1, a number, a count, one of several classes, or a signed time."""
    rule: ClassVar[str] = "be finite"
    """What targets must do, in words."""
    option: ClassVar[str] = ""
    """What a command needs of it beside its name, which is public."""
    ratio: ClassVar[str] = ""
    """What the exponential of a coefficient is, in tables; "" for nothing."""
    correlation: float = 0.0

    prior_scale: float | None
    limit: float | None
    weight_norm: float | None
    levels: tuple[tuple[int, ...], ...]
    """Column numbers of the levels of each category, which a summary compares."""
    intercept: bool | None

    @property
    def weighs(self) -> bool:
        """Whether records have weights."""
        return self.weight_norm != math.inf

    @property
    def constant(self) -> float:
        """The column of the intercept."""
        return CONSTANT if self.weighs else 1.0

    @property
    def baselines(self) -> tuple[str, ...]:
        """The names of the last weights, which belong to no feature: that of the intercept."""
        return ("intercept",) * bool(self.intercept)

    @property
    def centre(self) -> float:
        """The intercept's prior mean."""
        return 0.0

    @property
    def loss(self) -> Any:
        """The loss of a weighted record; None if it has no bounds."""
        return None

    @property
    def smooth(self) -> bool:
        """Whether the loss is convex in one predictor, and there is no other unknown."""
        return False

    @property
    def score_parts(self) -> ScoreParts | None:
        """A record's contribution to noisy scores; None if they are not for this likelihood."""
        return None

    def _columns(self, weights: int) -> int:
        """Return d, the number of features, counting each category as one."""
        extra = sum(len(group) - 1 for group in self.levels)
        return max(weights - bool(self.intercept) - extra, 0)

    def weighted_norm(self, weights: int) -> float:
        """Return C, the largest norm of a weighted row; inf if there is none."""
        if self.weight_norm is not None:
            return float(self.weight_norm)
        return math.sqrt(self._columns(weights) + (bool(self.intercept) * self.constant) ** 2) / 2

    def score_bound(self, weights: int) -> float:
        """Return sC, the bound on the norm of any record's score; inf if there is none."""
        if self.loss is None:
            return math.inf
        return float(self.loss.bound.score * self.weighted_norm(weights))

    def longest(self, weights: int) -> float:
        """Return B, the length of the longest row of a design; inf without a limit."""
        counted, limit = self._columns(weights), self.limit
        if limit is None or self.correlation:
            limit = math.inf
        of_features = counted * float(limit) ** 2 if counted else 0.0
        return math.sqrt(of_features + (bool(self.intercept) * self.constant) ** 2)

    def precision(self, weights: int) -> float:
        """Return the prior's precision, λ = 4MsCB by default where records are weighted."""
        if self.prior_scale is not None:
            return float(self.prior_scale**-2)
        bound: LossBound = self.loss.bound
        whole = bound.concordance * bound.score * self.weighted_norm(weights)
        return 4 * whole * self.longest(weights)

    def record_weights(self, design: Tensor) -> Tensor:
        """Return ω, the weight of every record, (N,): 1 where records are not weighted."""
        norms = torch.linalg.vector_norm(design, dim=1)
        norm = self.weighted_norm(design.shape[1]) if self.weighs else math.inf
        if math.isinf(norm):
            return torch.ones_like(norms)
        weights: Tensor = (norm / norms).clamp(max=1)
        return weights

    def departure(self, w: Tensor) -> Tensor:
        """Return the weights minus their prior mean, (..., n)."""
        return departure(w, self.centre / self.constant)

    def weights(self, features: int) -> int:
        """Return the number of weights, of all predictors, for d features."""
        predictors = 1 if self.loss is None else int(self.loss.predictors)
        return self.design(torch.zeros(1, features)).shape[1] * predictors

    def columns(self, features: int) -> list[int]:
        """Return the numbers of the columns with weights, in order."""
        return list(range(features))

    def identified(self, features: int) -> Tensor:
        """Return the identified sums of weights, one for each of p weights, (p, p).

        The indicators of a category's levels sum to the intercept's column, so raising all its
        weights and lowering the intercept equally changes no prediction. These sums do not change
        either: a level's weight plus the intercept and the mean of each other category's weights;
        the intercept plus all such means; and the weight of any other feature. Of several
        intercepts each has such a sum, and a level has their mean.

        Raises:
            ValueError: if there are fewer columns than ``levels`` names.

        >>> Regression(levels=((1, 2),)).identified(3)
        tensor([[1.0000, 0.0000, 0.0000, 0.0000],
                [0.0000, 1.0000, 0.0000, 1.0000],
                [0.0000, 0.0000, 1.0000, 1.0000],
                [0.0000, 0.5000, 0.5000, 1.0000]], dtype=torch.float64)
        """
        columns = self.columns(features)
        if missing := sorted({at for group in self.levels for at in group} - set(columns)):
            raise ValueError(
                f"levels={self.levels!r}: column {missing[0]} has no weight; there are {features} "
                "columns, from 0 on, and an exposure's has none"
            )
        groups = [[columns.index(at) for at in group] for group in self.levels]
        sums = torch.eye(len(columns) + len(self.baselines), dtype=torch.float64)
        for places in groups:
            sums[len(columns) :, places] = 1 / len(places)
        usual = sums[len(columns) :].mean(0)
        for places in groups:
            sums[places] += usual.index_fill(0, torch.tensor(places), 0.0)
        return sums

    def design(self, x: Tensor) -> Tensor:
        """Return the design, (N, n)."""
        raise NotImplementedError

    def terms(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of the design, (N, n), and the targets within their bounds, (N,)."""
        return self.design(x), self.cut(y)

    def mark(self, rows: Tensor, y: Tensor) -> Tensor:
        """Return what :meth:`.PredictorLoss.smoothed` takes beside a record's predictor, (N,)."""
        return y

    def weight_prior(self, x: Tensor, *columns: int) -> Prior:
        """Return the prior of the weights ``w``, (n, ...), for features ``x``."""
        n = len(self.columns(x.shape[1])) + bool(self.intercept)
        mean = -self.departure(x.new_zeros(n, *columns))
        return Prior(mean, x.new_tensor(self._weight_scale(n)))

    def _weight_scale(self, weights: int) -> float:
        """Return the prior's standard deviation of a weight."""
        if self.weighs or self.prior_scale is None:
            return float(self.precision(weights) ** -0.5)
        return self.prior_scale

    def priors(self, x: Tensor) -> dict[str, Prior]:
        """Return the priors of the latent variables, by name, for features ``x``."""
        return {"w": self.weight_prior(x)}

    def predictors(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the linear predictors, (N, ...)."""
        return self.design(x) @ latents["w"]

    def means(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the expected targets, (N,)."""
        return self.predictors(latents, x)

    def probabilities(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the probability of each class, (N, K), for targets that are labels or classes."""
        raise NotImplementedError

    def likelihood(self, latents: Mapping[str, Tensor], x: Tensor) -> Any:
        """Return the Pyro distribution of the targets."""
        raise NotImplementedError

    def weights_of(self, x: Tensor, y: Tensor | None) -> Tensor | None:
        """Return the weight of each record's log-likelihood, (N,); None if all are 1."""
        return self.record_weights(self.design(x)) if self.weighs else None

    def observed(
        self, latents: Mapping[str, Tensor], x: Tensor, y: Tensor | None
    ) -> tuple[Any, Tensor | None]:
        """Return the distribution of the targets, and the weights of :meth:`weights_of`."""
        return self.likelihood(latents, x), self.weights_of(x, y)

    def __call__(self, x: Tensor, y: Tensor | None = None) -> None:
        """Sample the latent variables and observe the records."""
        import pyro
        import pyro.distributions as dist

        latents = {
            name: pyro.sample(name, dist.Normal(mean, sd).to_event(mean.ndim))
            for name, (mean, sd) in self.priors(x).items()
        }
        law, weights = self.observed(latents, x, y)
        weighted = nullcontext() if weights is None else pyro.poutine.scale(scale=weights)
        with pyro.plate("records", len(x)), weighted:
            target = None if y is None else self.cut(y)
            pyro.sample("y", law, obs=target)

    def cut(self, y: Tensor) -> Tensor:
        """Return the targets within their bounds."""
        return y

    def fits(self, y: Tensor) -> Tensor:
        """Return a mask of the valid targets, (N,)."""
        return y.isfinite()

    def takes(self, x: Tensor, y: Tensor) -> Tensor:
        """Return a mask of the records that the model accepts, (N,)."""
        return self.fits(y)

    def check(self, data: Dataset) -> None:
        """Raise ValueError unless every target fits, and every column in ``levels`` has a weight.

        A single class is accepted: the prior keeps the posterior proper, and a mechanism that
        refused some tables would distinguish them from their neighbours.
        """
        self.identified(data.x.shape[1])
        validate.every("y", data.y, self.fits(data.y), self.rule)


@dataclass(frozen=True, kw_only=True)
class Regression(Family):
    """A design of features and ones, and a prior N(0, s²I) for the weights.

    Args:
        prior_scale: the prior's standard deviation s.
        limit: features are clipped at ± limit; None does not clip. Public, like all arguments.
        levels: column numbers, from 0, of the levels of each category; in each row one of these
            columns is 1. :class:`bdpvi.DPVI` uses them to measure the information about each level,
            and a summary compares the levels of a category.
        weight_norm: C, the largest norm of a weighted row; inf for no weights. See :meth:`bounded`.
    """

    prior_scale: float | None = SCALE
    limit: float | None = None
    levels: tuple[tuple[int, ...], ...] = ()
    weight_norm: float | None = field(default=math.inf, metadata={"absent": math.inf})

    intercept: ClassVar[bool] = True  # type: ignore[misc]
    certifies: ClassVar[bool] = True
    """Whether :meth:`bounded` bounds what a record moves."""
    known: ClassVar[str] = ""
    """The scale that is known only where records are weighted, if there is one."""

    def __post_init__(self) -> None:
        if self.prior_scale is not None:
            validate.positive("prior_scale", self.prior_scale)
        if self.limit is not None:
            validate.single("limit", self.limit)
        object.__setattr__(self, "levels", validate.disjoint("levels", self.levels))
        check_norm(self.weight_norm)
        if self.prior_scale is None and (self.limit is None or self.weight_norm == math.inf):
            raise ValueError(
                f"prior_scale must be given with limit={self.limit!r} and "
                f"weight_norm={self.weight_norm!r}: no longest record is known to set it by"
            )
        if self.weighs and not self.certifies:
            raise ValueError(
                f"weight_norm={self.weight_norm!r}: {type(self).__name__} has no bound on what a "
                "record moves; leave it out"
            )
        if self.known and (value := getattr(self, self.known)) is not None:
            validate.positive(self.known, value)
            if not self.weighs:
                raise ValueError(
                    f"{self.known}={value!r} needs weighted records, as made by "
                    f"{type(self).__name__}.bounded"
                )

    @classmethod
    def bounded(cls, **settings: Any) -> Self:
        """Return the model with weighted records, whose draws have a certified Bayesian ε.

        Records with features clipped at ±2 and z = (x, 2) are weighted by min(1, C/‖z‖), and the
        prior's scale follows from the width: :mod:`bdpvi.models.family`. The last weight is half
        the intercept. It is for :class:`bdpvi.guides.Laplace`, as
        :class:`~bdpvi.BayesianLogisticRegression` is by default, and for mean-field and full-rank
        guides with a ``noise_scale``.

        ``settings`` are arguments of the class.
        """
        return cls(**{"weight_norm": None, "prior_scale": None, "limit": LIMIT, **settings})

    @classmethod
    def of_option(cls, value: Any) -> Self:
        """Return the model for a value of its ``option``."""
        return cls(**{cls.option: value})

    @property
    def plain(self) -> Self:
        """The model without record weights, for mechanisms that bound influence themselves."""
        if not self.weighs:
            return self
        scale = SCALE if self.prior_scale is None else self.prior_scale
        unknown: dict[str, Any] = {self.known: None} if self.known else {}
        return replace(self, weight_norm=math.inf, prior_scale=scale, **unknown)

    def design(self, x: Tensor) -> Tensor:
        """Return the clipped features and the intercept's column, (N, d + 1)."""
        if self.limit is not None and self.weighs:
            x = within(
                x, self.limit, [torch.tensor(level, device=x.device) for level in self.levels]
            )
        elif self.limit is not None:
            x = x.clamp(-self.limit, self.limit)
        return torch.cat([x, x.new_full((len(x), 1), self.constant)], dim=1)


def weighing(model: object) -> Family | None:
    """Return a regression whose loss has public bounds, None for any other model."""
    return model if isinstance(model, Family) and model.loss is not None else None


def smooth(model: object) -> Family | None:
    """Return a regression with a convex loss of one predictor alone, None for any other model."""
    return model if isinstance(model, Family) and model.smooth else None


def departure(w: Tensor, intercept_mean: float) -> Tensor:
    """Return weights minus their prior mean, 0 except for the intercept, the last, (..., d).

    >>> departure(torch.tensor([[1.0, 2.0]]), 0.5)
    tensor([[1.0000, 1.5000]])
    """
    if not intercept_mean:
        return w
    return torch.cat([w[..., :-1], w[..., -1:] - intercept_mean], -1)


def within(x: Tensor, limit: float, categories: Sequence[Tensor]) -> Tensor:
    """Return features clipped at ±limit, and each category's columns together at that length."""
    x = x.clamp(-limit, limit)
    for columns in categories:
        some = x[:, columns]
        length = torch.linalg.vector_norm(some, dim=1, keepdim=True)
        x = x.index_copy(1, columns, some * (limit / length).clamp(max=1))
    return x


def check_norm(weight_norm: float | None) -> None:
    """Refuse a largest norm of a weighted row that is not positive."""
    if weight_norm is not None and not weight_norm > 0:
        raise ValueError(f"weight_norm must be positive, got {weight_norm!r}")
