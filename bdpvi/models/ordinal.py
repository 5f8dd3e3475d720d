"""Bayesian ordinal regression of ordered classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from bdpvi._ground import validate
from bdpvi.models.contract import Prior, log_prior
from bdpvi.models.multinomial import Classes

_REACH = 20.0
"""Log distances between cut points are clipped at ± this."""


@dataclass(frozen=True, kw_only=True)
class BayesianOrdinalRegression(Classes):
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
    ratio: ClassVar[str] = "odds ratio"

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
