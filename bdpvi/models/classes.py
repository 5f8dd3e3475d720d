"""Bayesian multinomial and ordinal regression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from bdpvi._ground import validate
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.design import Design
from bdpvi.models.losses import Softmax
from bdpvi.models.priors import Prior, log_prior

_REACH = 20.0
"""Log distances between cut points are clipped at ± this."""


@dataclass(frozen=True, kw_only=True)
class _Classes(Design):
    """A regression with targets 0 to K − 1.

    Args:
        classes: number of classes K, public.
        prior_scale, limit, levels: as in :class:`Design`.
    """

    classes: int

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.positive_int("classes", self.classes, least=2)

    def fits(self, y: Tensor) -> Tensor:
        """Return a mask of the targets that are valid classes."""
        return (y >= 0) & (y < self.classes) & (y == y.round())

    def takes(self, x: Tensor, y: Tensor) -> Tensor:
        """Return a mask of the records that the model accepts, (N,)."""
        return self.fits(y)

    def check(self, data: Dataset) -> None:
        """Raise ValueError unless every target is a whole number from 0 to K − 1.

        Raises:
            ValueError: also as in :meth:`Design.check`.
        """
        super().check(data)
        validate.every(
            "y", data.y, self.fits(data.y), f"be whole numbers from 0 to {self.classes - 1}"
        )

    def logits(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return log P(y = k), (N, K), up to a constant for each record."""
        raise NotImplementedError

    def likelihood(self, latents: Mapping[str, Tensor], x: Tensor) -> Any:
        """Return the Pyro distribution of the targets."""
        import pyro.distributions as dist

        return dist.Categorical(logits=self.logits(latents, x))

    def probabilities(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return P(y = k), (N, K)."""
        return self.logits(latents, x).softmax(1)


@dataclass(frozen=True, kw_only=True)
class BayesianMultinomialRegression(_Classes):
    """Bayesian multinomial logistic regression of K classes.

    Latent variables are the weights ``w``, (d + 1, K), with a column for each class and the
    intercepts in the last row. The prior is N(0, s²I); P(y = k) is the softmax of the linear
    predictors. There is no base class, so all are shrunk alike; only differences between columns
    matter. Each record's score has norm at most √2 times the norm of its features. With
    :meth:`bounded` draws have a certificate.

    Args:
        classes: number K of classes, public. Targets are 0 to K − 1.
        prior_scale: the prior's standard deviation s.
        limit: features are clipped at ± limit; None does not clip.
        levels: column numbers of the levels of each category.
        class_weights: public weights of the classes' records in the likelihood; only their ratio
            matters, as the largest counts as 1. A record's weighted score is clipped like any, so
            weights have no price. Posteriors are then of the weighted likelihood, and P(y = k) is
            that of a table in which classes are as frequent as the weights say.

    >>> model = BayesianMultinomialRegression(classes=3)
    >>> model.priors(torch.zeros(4, 2))["w"].mean.shape
    torch.Size([3, 3])
    """

    kind: ClassVar[str] = "multinomial"

    class_weights: tuple[float, ...] = field(default=(), metadata={"absent": ()})

    def __post_init__(self) -> None:
        super().__post_init__()
        for one in self.class_weights:
            validate.positive("class_weights", one)
        if self.class_weights and len(self.class_weights) != self.classes:
            raise ValueError(
                f"class_weights must have one number for each of {self.classes} classes, got "
                f"{self.class_weights}"
            )
        if self.class_weights and self.weighs:
            raise ValueError(
                f"class_weights={self.class_weights}: weighted records have none; leave it out"
            )

    def weights_of(self, x: Tensor, y: Tensor | None) -> Tensor | None:
        """Return the weight of each record's log-likelihood, (N,); None if all are 1."""
        if not self.class_weights or y is None:
            return super().weights_of(x, y)
        weights = torch.tensor(self.class_weights, dtype=x.dtype, device=x.device)
        return (weights / weights.max())[y.long().clamp(0, self.classes - 1)]

    @property
    def loss(self) -> Softmax | None:
        """The loss of a weighted record."""
        return Softmax(self.classes) if self.weighs else None

    def identified(self, features: int) -> Tensor:
        """Return the identified sums of weights, each minus its mean over the classes."""
        less = torch.eye(self.classes, dtype=torch.float64) - 1 / self.classes
        return torch.kron(super().identified(features), less)

    def priors(self, x: Tensor) -> dict[str, Prior]:
        """Return the prior of the weights, a column for each class."""
        return {"w": self.weight_prior(x, self.classes)}

    def logits(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the linear predictors, (N, K)."""
        return self.predictors(latents, x)


@dataclass(frozen=True, kw_only=True)
class BayesianOrdinalRegression(_Classes):
    """Bayesian ordinal regression of K ordered classes, with proportional odds.

    P(y > k) = σ(η − c_k) with the linear predictor η and cut points 0 = c₀ < c₁ < … (McCullagh,
    "Regression Models for Ordinal Data", 1980). The intercept replaces the first cut point, so with
    two classes this is logistic regression. Latent variables are the weights ``w``, the intercept
    last, with the prior N(0, s²I), and ``log_gaps``, (K − 2,), the logarithms of c_k − c_{k−1},
    with the prior N(0, 2²I).

    Args:
        classes: number K of classes, public, at least 3. Targets are 0 to K − 1, in order.
        prior_scale: the prior's standard deviation s.
        limit: features are clipped at ± limit; None does not clip.
        levels: column numbers of the levels of each category.

    >>> model = BayesianOrdinalRegression(classes=4)
    >>> priors = model.priors(torch.zeros(4, 2))
    >>> priors["w"].mean.shape, priors["log_gaps"].mean.shape
    (torch.Size([3]), torch.Size([2]))
    """

    kind: ClassVar[str] = "ordinal"
    certifies: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.positive_int("classes", self.classes, least=3)

    def priors(self, x: Tensor) -> dict[str, Prior]:
        """Return the priors of the weights and the logarithms of the gaps."""
        return {**super().priors(x), "log_gaps": log_prior(x, self.classes - 2)}

    def logits(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return log P(y = k), (N, K)."""
        gaps = latents["log_gaps"].clamp(-_REACH, _REACH).exp()
        return ordered_logits(self.predictors(latents, x), gaps)


def ordered_logits(predictors: Tensor, gaps: Tensor) -> Tensor:
    """Return log P(y = k) of ordered classes, (N, K), accurately even for rare classes.

    With b = c_k − η and a = c_{k−1} − η it is log(σ(b) − σ(a)) = log σ(b) + log σ(−a) +
    log(1 − e^(a−b)), which avoids cancellation.

    Args:
        predictors: η, (N,).
        gaps: c_k − c_{k−1}, (K − 2,), positive; c₀ = 0.

    >>> ordered_logits(torch.tensor([0.0]), torch.tensor([1.0])).exp()
    tensor([[0.5000, 0.2311, 0.2689]])
    """
    cuts = pad(gaps.cumsum(0), (1, 0))
    upper = pad(logsigmoid(cuts - predictors[:, None]), (0, 1))
    lower = pad(logsigmoid(predictors[:, None] - cuts), (1, 0))
    return upper + lower + pad((-torch.expm1(-gaps)).log(), (1, 1))
