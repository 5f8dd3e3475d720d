"""The design and the prior that regressions share, and the bounds of one with weighted records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.logistic import departure, disjoint, identified
from bdpvi.models.losses import Loss, Softmax
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

if TYPE_CHECKING:
    from typing_extensions import Self

SCALE = 5.0
"""Default standard deviation of weights where records are not weighted."""


@dataclass(frozen=True, kw_only=True)
class Design:
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

    intercept: ClassVar[bool] = True
    certifies: ClassVar[bool] = True
    """Whether :meth:`bounded` bounds what a record moves."""
    known: ClassVar[Mapping[str, Any]] = {}
    """Scales that are known only where records are weighted, as unknown."""

    def __post_init__(self) -> None:
        if self.prior_scale is not None:
            validate.positive("prior_scale", self.prior_scale)
        if self.limit is not None:
            validate.single("limit", self.limit)
        object.__setattr__(self, "levels", disjoint("levels", self.levels))
        if self.weight_norm is not None and not self.weight_norm > 0:
            raise ValueError(f"weight_norm must be positive, got {self.weight_norm!r}")
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

    @classmethod
    def bounded(cls, **settings: Any) -> Self:
        """Return the model with weighted records, whose draws have a certified Bayesian ε.

        Records with features clipped at ±2 and z = (x, 2) are weighted by min(1, C/‖z‖), and the
        prior's scale follows from the width: :mod:`bdpvi.models.weighing`. The last weight is half
        the intercept. It is for :class:`bdpvi.guides.Laplace`, as
        :class:`~bdpvi.BayesianLogisticRegression` is by default, and for mean-field and full-rank
        guides with a ``noise_scale``.

        Args:
            settings: arguments of the class.
        """
        usual: dict[str, Any] = {"weight_norm": None, "prior_scale": None, "limit": LIMIT}
        return cls(**(usual | settings))

    @property
    def plain(self) -> Self:
        """The model without record weights, for mechanisms that bound influence themselves."""
        if not self.weighs:
            return self
        scale = SCALE if self.prior_scale is None else self.prior_scale
        return replace(self, weight_norm=math.inf, prior_scale=scale, **self.known)

    @property
    def weighs(self) -> bool:
        """Whether records have weights."""
        return self.weight_norm != math.inf

    @property
    def constant(self) -> float:
        """The column of the intercept."""
        return CONSTANT if self.weighs else 1.0

    @property
    def loss(self) -> Loss | Softmax | None:
        """The loss of a weighted record; None if it has no bounds."""
        return None

    def terms(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of the design, (N, n), and the targets within their bounds, (N,)."""
        target = self.cut(y)
        assert target is not None
        return self.design(x), target

    def _counted(self, weights: int) -> int:
        """Return d, the number of features, counting each category as one."""
        return max(weights - 1 - sum(len(group) - 1 for group in self.levels), 0)

    def weighted_norm(self, weights: int) -> float:
        """Return C, the largest norm of a weighted row; inf if there is none."""
        if self.weight_norm is not None:
            return float(self.weight_norm)
        return usual_norm(self._counted(weights), self.constant)

    def score_bound(self, weights: int) -> float:
        """Return sC, the bound on the norm of any record's score; inf if there is none."""
        return (
            math.inf if self.loss is None else self.loss.bound.score * self.weighted_norm(weights)
        )

    def longest(self, weights: int) -> float:
        """Return B, the length of the longest row; inf without a limit."""
        limit = math.inf if self.limit is None else float(self.limit)
        return longest_row(self._counted(weights), limit, self.constant)

    def precision(self, weights: int) -> float:
        """Return the prior's precision, λ = 4MsCB by default where records are weighted."""
        if self.prior_scale is not None:
            return float(self.prior_scale**-2)
        assert self.loss is not None
        return usual_precision(self.loss.bound, self.weighted_norm(weights), self.longest(weights))

    def record_weights(self, design: Tensor) -> Tensor:
        """Return ω, the weight of every record, (N,): 1 where records are not weighted."""
        return weights_within(design, self.weighted_norm(design.shape[1]))

    def departure(self, w: Tensor) -> Tensor:
        """Return the weights minus their prior mean, (..., n)."""
        return w

    def weighted(self, features: int) -> list[int]:
        """Return the numbers of the columns with weights, in order."""
        return list(range(features))

    def identified(self, features: int) -> Tensor:
        """Return the identified sums of weights, one for each of p weights, (p, p).

        The indicators of a category's levels sum to the intercept's column, so raising all its
        weights and lowering the intercept equally changes no prediction. These sums do not change
        either: a level's weight plus the intercept and the mean of each other category's weights;
        the intercept plus all such means; and the weight of any other feature.

        Raises:
            ValueError: if there are fewer columns than ``levels`` names.

        >>> Design(levels=((1, 2),)).identified(3)
        tensor([[1.0000, 0.0000, 0.0000, 0.0000],
                [0.0000, 1.0000, 0.0000, 1.0000],
                [0.0000, 0.0000, 1.0000, 1.0000],
                [0.0000, 0.5000, 0.5000, 1.0000]], dtype=torch.float64)
        """
        columns = self.weighted(features)
        if missing := sorted({at for group in self.levels for at in group} - set(columns)):
            raise ValueError(
                f"levels={self.levels!r}: column {missing[0]} has no weight; there are {features} "
                "columns, from 0 on, and an exposure's has none"
            )
        groups = [[columns.index(at) for at in group] for group in self.levels]
        return identified(len(columns) + 1, groups)

    def design(self, x: Tensor) -> Tensor:
        """Return the clipped features and the intercept's column, (N, d + 1)."""
        if self.limit is not None and self.weighs:
            x = within(x, self.limit, [torch.tensor(one, device=x.device) for one in self.levels])
        elif self.limit is not None:
            x = x.clamp(-self.limit, self.limit)
        return torch.cat([x, x.new_full((len(x), 1), self.constant)], dim=1)

    def check(self, data: Dataset) -> None:
        """Raise ValueError unless every column named in ``levels`` exists and has a weight."""
        self.identified(data.x.shape[1])

    def weight_prior(self, x: Tensor, *columns: int, intercept_mean: float = 0.0) -> Prior:
        """Return the prior of the weights ``w``, (d + 1, ...), for features ``x``."""
        zero = x.new_zeros(len(self.weighted(x.shape[1])) + 1, *columns)
        scale = self.precision(len(zero)) ** -0.5 if self.weighs else self.prior_scale
        mean = -departure(zero, intercept_mean / self.constant)
        return Prior(mean, x.new_tensor(scale))

    def priors(self, x: Tensor) -> dict[str, Prior]:
        """Return the priors of the latent variables, by name, for features ``x``."""
        return {"w": self.weight_prior(x)}

    def predictors(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the linear predictors, (N, ...)."""
        return self.design(x) @ latents["w"]

    def likelihood(self, latents: Mapping[str, Tensor], x: Tensor) -> Any:
        """Return the Pyro distribution of the targets."""
        raise NotImplementedError

    def cut(self, y: Tensor | None) -> Tensor | None:
        """Return the targets within their bounds, if there are any."""
        return y

    def weights_of(self, x: Tensor, y: Tensor | None) -> Tensor | None:
        """Return the weight of each record's log-likelihood, (N,); None if all are 1."""
        return self.record_weights(self.design(x)) if self.weighs else None

    def __call__(self, x: Tensor, y: Tensor | None = None) -> None:
        """Sample the latent variables and observe the records."""
        import pyro
        import pyro.poutine

        latents, weights = sampled(self.priors(x)), self.weights_of(x, y)
        weighted = nullcontext() if weights is None else pyro.poutine.scale(scale=weights)
        with pyro.plate("records", len(x)), weighted:
            pyro.sample("y", self.likelihood(latents, x), obs=self.cut(y))
