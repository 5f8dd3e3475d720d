"""Models that weigh their records, so that no record does much: what a certificate needs of them.

A record with features x, clipped at ±limit, and z = (x, 2) has the weight ω(x) = min(1, C/‖z‖).
With d columns, counting a category as one, C = ½√(d + 4), B is the length of the longest z, and the
prior's precision is λ = 4MsCB, s and M the bounds of the loss (:mod:`bdpvi.models.losses`). As
λ_min(F″) ≥ λ, the influence of any record of any table is bounded: hc ≤ MB·sC/λ = ¼ and
a ≤ κCB/λ = κ/(4Ms), which is 1/16 for logistic regression and at most ⅛ for the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from bdpvi.models.losses import Loss, LossBound, Softmax

LIMIT = 2.0
"""Default limit at which standardised features are clipped, ±."""
CONSTANT = 2.0
"""The intercept's column where records are weighted: the intercept gets a quarter of the ridge."""


class Weighing(Protocol):
    """A regression of linear predictors with weighted records and a ridge.

    Arguments ``weights`` are the number n of columns of the design, the weights of one predictor.
    """

    @property
    def loss(self) -> Loss | Softmax | None:
        """The loss of a record; None if it has no bounds."""

    def terms(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of the design, (N, n), and the targets that the loss takes, (N,)."""

    def design(self, x: Tensor) -> Tensor:
        """Return the design, (N, n)."""

    def record_weights(self, design: Tensor) -> Tensor:
        """Return ω, (N,)."""

    def weighted_norm(self, weights: int) -> float:
        """Return C, the largest ω‖z‖, for a number of weights n; inf if there is none."""

    def longest(self, weights: int) -> float:
        """Return B, the largest ‖z‖."""

    def precision(self, weights: int) -> float:
        """Return the prior's precision λ."""

    def departure(self, w: Tensor) -> Tensor:
        """Return the weights minus their prior mean, (..., n)."""


def weights_of(model: Weighing, features: int) -> int:
    """Return the number of weights, of all predictors, for d features."""
    predictors = 1 if model.loss is None else model.loss.predictors
    return model.design(torch.zeros(1, features)).shape[1] * predictors


def usual_norm(columns: int, constant: float) -> float:
    """Return C = ½√(d + c²), for d columns and an intercept's column c, 0 for none."""
    return math.sqrt(columns + constant**2) / 2


def longest_row(columns: int, limit: float, constant: float) -> float:
    """Return B, the length of the longest row: d columns within ±limit and the intercept's."""
    of_features = columns * limit**2 if columns else 0.0
    return math.sqrt(of_features + constant**2)


def usual_precision(bound: LossBound, norm: float, longest: float) -> float:
    """Return λ = 4MsCB."""
    return 4 * bound.concordance * bound.score * norm * longest


def weights_within(design: Tensor, norm: float) -> Tensor:
    """Return ω = min(1, C/‖z‖), (N,)."""
    norms = torch.linalg.vector_norm(design, dim=1)
    if math.isinf(norm):
        return torch.ones_like(norms)
    weights: Tensor = (norm / norms).clamp(max=1)
    return weights


def within(x: Tensor, limit: float, categories: Sequence[Tensor]) -> Tensor:
    """Return features clipped at ±limit, and each category's columns together at that length."""
    x = x.clamp(-limit, limit)
    for columns in categories:
        some = x[:, columns]
        length = torch.linalg.vector_norm(some, dim=1, keepdim=True)
        x = x.index_copy(1, columns, some * (limit / length).clamp(max=1))
    return x
