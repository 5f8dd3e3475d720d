"""Bayesian multinomial regression of classes without an order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.models.contract import Prior
from bdpvi.models.family import Regression
from bdpvi.models.losses import LossBound

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Softmax:
    """The loss of classes: −ln of the target's share of the sum of exponentials of K predictors.

    Score and curvature are in the predictors' Euclidean norm: the score p − e_y has s = √2, the
    curvature's largest eigenvalue is κ = ½, and M = √2 as a vector of length 1 has at most that
    range (:mod:`bdpvi.bayesian.mode.classes`). Predictors that are equal for all classes change
    nothing, so weights are counted in a basis of the rest.

    >>> torch.allclose(Softmax(3).basis.T @ Softmax(3).basis, torch.eye(2).double())
    True
    """

    classes: int

    kink, stated = math.inf, False
    bound = LossBound(math.sqrt(2), 0.5, math.sqrt(2))

    @property
    def predictors(self) -> int:
        """K − 1."""
        return self.classes - 1

    @property
    def basis(self) -> Tensor:
        """Q: orthonormal columns that sum to 0, (K, K − 1)."""
        return _basis(self.classes)

    def score(self, b: Tensor, y: Tensor) -> Tensor:
        """Return the gradient in the predictors' coordinates (..., N, K − 1)."""
        expected: Tensor = (b @ self.basis.T).softmax(-1) @ self.basis
        score: Tensor = expected - self.basis[y]
        return score


@cache
def _basis(classes: int) -> Tensor:
    """Return Helmert's contrasts, (K, K − 1)."""
    contrasts = torch.zeros(classes, classes - 1, dtype=torch.float64)
    for j in range(1, classes):
        contrasts[:j, j - 1], contrasts[j, j - 1] = 1.0, -float(j)
    lengths: Tensor = torch.linalg.vector_norm(contrasts, dim=0)
    return contrasts / lengths


@dataclass(frozen=True, kw_only=True)
class Classes(Regression):
    """A regression with targets 0 to K − 1.

    Args:
        classes: number of classes K, public.
        prior_scale, limit, levels: as in :class:`.Regression`.
    """

    target = "class"
    option: ClassVar[str] = "classes"

    classes: int

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.positive_int("classes", self.classes, least=2)

    @classmethod
    def of_option(cls, value: Any) -> Self:
        """Return the model for these names of classes."""
        return cls(classes=len(value))

    def fits(self, y: Tensor) -> Tensor:
        """Return a mask of the targets that are valid classes."""
        return (y >= 0) & (y < self.classes) & (y == y.round())

    @property
    def rule(self) -> str:  # type: ignore[override]
        """What targets must do, in words."""
        return f"be whole numbers from 0 to {self.classes - 1}"

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
class BayesianMultinomialRegression(Classes):
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
        for weight in self.class_weights:
            validate.positive("class_weights", weight)
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
