"""Bayesian logistic regression, with a likelihood that bounds every record's score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import logsigmoid

from bdpvi._runtime import validate
from bdpvi.types import Dataset


class ClippedBernoulli(dist.TorchDistribution):  # type: ignore[misc]
    """Bernoulli likelihood whose derivative in the logit is at most ``bound`` in absolute value.

    With a = (2y − 1)·logit, log σ(a) has the derivative σ(−a). Below a_c = log((1 − c)/c) that
    exceeds c = ``bound``, and log σ is replaced by its tangent line at a_c: the score is the
    norm-clipped score of the Bernoulli likelihood, and the result is concave, so an ordinary
    (unnormalised) likelihood. From ``bound`` = 1 on nothing is clipped.

    Args:
        logits: any shape.
        bound: largest |d log p / d logit|, positive, broadcastable to ``logits``.

    >>> ClippedBernoulli(torch.tensor([-5.0, 5.0]), torch.tensor(0.5)).log_prob(torch.ones(2))
    tensor([-3.1931, -0.0067])
    """

    arg_constraints = {"logits": constraints.real, "bound": constraints.positive}  # noqa: RUF012
    support = constraints.boolean

    def __init__(self, logits: Tensor, bound: Tensor, validate_args: bool | None = None) -> None:
        self.logits, self.bound = torch.broadcast_tensors(logits, bound)
        super().__init__(self.logits.shape, validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-likelihood of ``value`` in {0, 1}."""
        signed = (2 * value - 1) * self.logits
        slope = self.bound.clamp(max=1)
        knee = torch.log1p(-slope) - torch.log(slope)
        tangent: Tensor = slope * (signed - knee).clamp(max=0)
        return logsigmoid(torch.maximum(signed, knee)) + tangent

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Draw from the Bernoulli that is clipped (clipping only concerns the fit)."""
        return torch.bernoulli(self.mean.expand(self._extended_shape(sample_shape)))

    @property
    def mean(self) -> Tensor:
        """Probability of 1."""
        return torch.sigmoid(self.logits)


def likelihood_slope(signed: Tensor, bound: Tensor) -> Tensor:
    """Return the derivative of :class:`ClippedBernoulli`'s log-likelihood in a = (2y − 1)·logit."""
    return likelihood_slope_(torch.neg(signed), bound)


def likelihood_slope_(negative: Tensor, bound: Tensor) -> Tensor:
    """Return :func:`likelihood_slope` at a = −``negative``, which it overwrites."""
    return torch.minimum(negative.sigmoid_(), bound, out=negative)


def departure(w: Tensor, intercept_mean: float) -> Tensor:
    """Return weights less a prior mean that is 0 but for the last, the intercept's, (..., d).

    >>> departure(torch.tensor([[1.0, 2.0]]), 0.5)
    tensor([[1.0000, 1.5000]])
    """
    if not intercept_mean:
        return w
    return torch.cat([w[..., :-1], w[..., -1:] - intercept_mean], -1)


@dataclass(frozen=True, kw_only=True)
class BayesianLogisticRegression:
    """Bayesian logistic regression with prior N(0, s²I), optionally with bounded influence.

    Args:
        prior_scale: the prior's standard deviation s.
        intercept: whether a column of ones is added to the features.
        intercept_mean: prior mean of the intercept; a rare class wants the logit of a public base
            rate here. The other weights' prior means are 0.
        clip: norm bound C of each record's score (the gradient of its log-likelihood in the
            weights); None leaves the likelihood as it is. See :class:`ClippedBernoulli`; a record
            x has the bound C/‖x‖ on its derivative in the logit.
        limit: features are cut off at ±limit, which bounds how far out a record can lie; None
            leaves them as they are. Public: chosen without the data, as all of these are.
        correlation: ρ in [0, 1), how strongly any two features of a group are taken to be
            correlated. The weights then multiply M^-½ x with M = (1 - ρ)I + ρ11ᵀ: the group's
            features less their mean, and the mean, each on a scale of its own. Where features do
            move together, as measurements of one body do, prior, clip and public noise then treat
            all directions alike.
        groups: column numbers of the features in each group, which no two groups share; a feature
            in none stays as it is. None is one group of all features.

    ``limit`` acts first, then ``correlation``, then the column of ones is added.

    >>> model = BayesianLogisticRegression(clip=0.5)
    >>> pyro.poutine.trace(model).get_trace(torch.zeros(4, 2)).nodes["w"]["value"].shape
    torch.Size([2])
    """

    prior_scale: float = 1.0
    intercept: bool = False
    clip: float | None = None
    limit: float | None = None
    correlation: float = 0.0
    groups: tuple[tuple[int, ...], ...] | None = None
    intercept_mean: float = 0.0

    def __post_init__(self) -> None:
        if self.groups is not None:
            object.__setattr__(self, "groups", disjoint("groups", self.groups))
        validate.positive("prior_scale", self.prior_scale)
        if self.clip is not None:
            validate.positive("clip", self.clip)
        if self.limit is not None:
            validate.positive("limit", self.limit)
        if not math.isfinite(self.intercept_mean):
            raise ValueError(f"intercept_mean must be finite, got {self.intercept_mean!r}")
        if self.intercept_mean and not self.intercept:
            raise ValueError(f"intercept_mean={self.intercept_mean!r} needs intercept=True")
        if not 0 <= self.correlation < 1:
            raise ValueError(f"correlation must lie in [0, 1), got {self.correlation!r}")

    def design(self, x: Tensor) -> Tensor:
        """Return the design matrix, (N, d): the features as the arguments change them.

        >>> model = BayesianLogisticRegression(limit=3.0, correlation=0.5, intercept=True)
        >>> model.design(torch.tensor([[1.0, 1.0, 1.0], [-9.0, 0.0, 3.0]]))
        tensor([[ 0.7071,  0.7071,  0.7071,  1.0000],
                [-4.2426,  0.0000,  4.2426,  1.0000]])

        Raises:
            ValueError: if a group has a feature that ``x`` lacks.
        """
        if self.limit is not None:
            x = x.clamp(-float(self.limit), float(self.limit))
        if self.correlation:
            x = self._apart(x)
        return torch.cat([x, x.new_ones(len(x), 1)], dim=1) if self.intercept else x

    def _apart(self, x: Tensor) -> Tensor:
        """Return M^-½ x for each group of features."""
        groups = (tuple(range(x.shape[1])),) if self.groups is None else self.groups
        for group in groups:
            if max(group) >= x.shape[1]:
                raise ValueError(f"groups has column {max(group)} of {x.shape[1]} features")
            columns = torch.tensor(group, device=x.device)
            some, apart = x[:, columns], 1 - self.correlation
            mean, together = some.mean(1, keepdim=True), apart + self.correlation * len(group)
            some = (some - mean) / math.sqrt(apart) + mean / math.sqrt(together)
            x = x.index_copy(1, columns, some)
        return x

    def departure(self, w: Tensor) -> Tensor:
        """Return the weights less their prior mean, (..., d)."""
        return departure(w, self.intercept_mean)

    def slope_bound(self, design: Tensor) -> Tensor:
        """Return the bound on each record's derivative in the logit, (N,); inf if unclipped."""
        norms = torch.linalg.vector_norm(design, dim=1)
        return torch.full_like(norms, math.inf) if self.clip is None else self.clip / norms

    def __call__(self, x: Tensor, y: Tensor | None = None) -> None:
        """Sample the weights and observe the records."""
        design = self.design(x)
        mean = -self.departure(x.new_zeros(design.shape[1]))
        w = pyro.sample("w", dist.Normal(mean, x.new_tensor(self.prior_scale)).to_event(1))
        with pyro.plate("records", len(x)):
            if self.clip is None:
                likelihood = dist.Bernoulli(logits=design @ w)
            else:
                likelihood = ClippedBernoulli(design @ w, self.slope_bound(design))
            pyro.sample("y", likelihood, obs=y)

    def takes(self, x: Tensor, y: Tensor) -> Tensor:
        """Return which records it can have: those of targets 0 and 1, (N,)."""
        return (y == 0) | (y == 1)

    def check(self, data: Dataset) -> None:
        """Raise ValueError unless every target of ``data`` is 0 or 1.

        One class will do: the prior gives the posterior its mean and its width, and a mechanism
        that refused some tables would tell them apart from their neighbours.
        """
        values = torch.unique(data.y)
        if not bool(((values == 0) | (values == 1)).all()):
            raise ValueError(f"y must be 0 or 1, got {values[:5].tolist()}")


def disjoint(name: str, groups: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return groups of column numbers as tuples; ``name`` is the argument's."""
    columns = [column for group in groups for column in group]
    whole = all(isinstance(column, int) and column >= 0 for column in columns)
    if not whole or not all(groups) or len(set(columns)) < len(columns):
        raise ValueError(
            f"{name} must hold column numbers from 0 on, each at most once, got {groups!r}"
        )
    return tuple(tuple(group) for group in groups)
