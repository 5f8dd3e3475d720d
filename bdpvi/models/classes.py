"""Bayesian regression of classes: several without an order, or ordered ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from bdpvi._runtime import validate
from bdpvi.models.regression import Design
from bdpvi.types import Dataset

_REACH = 20.0
"""Logarithms of the distances between cut points are cut at ± this."""


@dataclass(frozen=True, kw_only=True)
class _Classes(Design):
    """A regression of targets 0 to K − 1.

    Args:
        classes: their number K, public.
        prior_scale, limit, levels: as of :class:`Design`.
    """

    classes: int

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.positive_int("classes", self.classes, least=2)

    def fits(self, y: Tensor) -> Tensor:
        """Return which numbers are classes."""
        return (y >= 0) & (y < self.classes) & (y == y.round())

    def takes(self, x: Tensor, y: Tensor) -> Tensor:
        """Return which records it can have, (N,)."""
        return self.fits(y)

    def check(self, data: Dataset) -> None:
        """Raise ValueError unless every target is a whole number from 0 to K − 1.

        Raises:
            ValueError: also as :meth:`Design.check`.
        """
        super().check(data)
        validate.every(
            "y", data.y, self.fits(data.y), f"be whole numbers from 0 to {self.classes - 1}"
        )


@dataclass(frozen=True, kw_only=True)
class BayesianMultinomialRegression(_Classes):
    """Bayesian multinomial logistic regression of K classes.

    Latent variables are the weights ``w``, (d + 1, K), a column for each class and the last row
    of the intercepts, with the prior N(0, s²I): P(y = k) is the softmax of the linear predictors.
    No class is the base, so none is shrunk less than others; only differences between columns
    count. Each record's score has a norm of at most √2 times that of its features.

    Args:
        classes: number K of classes, public. Targets are 0 to K − 1.
        prior_scale: the prior's standard deviation s.
        limit: features are cut off at ± limit; None leaves them as they are.
        levels: column numbers of the levels of each category.

    >>> model = BayesianMultinomialRegression(classes=3)
    >>> pyro.poutine.trace(model).get_trace(torch.zeros(4, 2)).nodes["w"]["value"].shape
    torch.Size([3, 3])
    """

    kind: ClassVar[str] = "multinomial"

    def identified(self, features: int) -> Tensor:
        """Return sums of weights that records identify, each less its mean over the classes."""
        less = torch.eye(self.classes, dtype=torch.float64) - 1 / self.classes
        return torch.kron(super().identified(features), less)

    def __call__(self, x: Tensor, y: Tensor | None = None) -> None:
        """Sample the weights and observe the records."""
        logits = self.predictors(x, self.classes)
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)


@dataclass(frozen=True, kw_only=True)
class BayesianOrdinalRegression(_Classes):
    """Bayesian ordinal regression of K ordered classes, with proportional odds.

    P(y > k) = σ(η − c_k) at the linear predictor η and cut points 0 = c₀ < c₁ < … (McCullagh,
    "Regression Models for Ordinal Data", 1980). The intercept takes the first cut point's part, so
    with two classes this is logistic regression. Latent variables are the weights ``w``, the last
    of the intercept, with the prior N(0, s²I), and ``log_gaps``, (K − 2,), the logarithms of
    c_k − c_{k−1}, with the prior N(0, 2²I).

    Args:
        classes: number K of classes, public, at least 3. Targets are 0 to K − 1, in order.
        prior_scale: the prior's standard deviation s.
        limit: features are cut off at ± limit; None leaves them as they are.
        levels: column numbers of the levels of each category.

    >>> model = BayesianOrdinalRegression(classes=4)
    >>> trace = pyro.poutine.trace(model).get_trace(torch.zeros(4, 2))
    >>> trace.nodes["w"]["value"].shape, trace.nodes["log_gaps"]["value"].shape
    (torch.Size([3]), torch.Size([2]))
    """

    kind: ClassVar[str] = "ordinal"

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.positive_int("classes", self.classes, least=3)

    def __call__(self, x: Tensor, y: Tensor | None = None) -> None:
        """Sample the latent variables and observe the records."""
        predictors = self.predictors(x)
        zero = x.new_zeros(self.classes - 2)
        log_gaps = pyro.sample("log_gaps", dist.Normal(zero, x.new_tensor(2.0)).to_event(1))
        logits = ordered_logits(predictors, log_gaps.clamp(-_REACH, _REACH).exp())
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)


def ordered_logits(predictors: Tensor, gaps: Tensor) -> Tensor:
    """Return log P(y = k) of ordered classes, (N, K), that stay exact where a class is rare.

    With b = c_k − η and a = c_{k−1} − η it is log(σ(b) − σ(a)) = log σ(b) + log σ(−a) +
    log(1 − e^(a−b)), of which no part is a difference of numbers that are nearly the same.

    Args:
        predictors: η, (N,).
        gaps: c_k − c_{k−1} of the cut points after c₀ = 0, (K − 2,), positive.

    >>> ordered_logits(torch.tensor([0.0]), torch.tensor([1.0])).exp()
    tensor([[0.5000, 0.2311, 0.2689]])
    """
    cuts = pad(gaps.cumsum(0), (1, 0))
    upper = pad(logsigmoid(cuts - predictors[:, None]), (0, 1))
    lower = pad(logsigmoid(predictors[:, None] - cuts), (1, 0))
    return upper + lower + pad((-torch.expm1(-gaps)).log(), (1, 1))
