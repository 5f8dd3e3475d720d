"""Composition rules for costs that differ between steps, for comparison with the panel's sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.bayesian.accounting.answer import AnswerTerms, Solution, settle, solve_by_order
from bdpvi.bayesian.accounting.estimators import MeanEstimate, student_t
from bdpvi.privacy.conversions import Orders
from bdpvi.privacy.cost import Bound

Costs = Callable[[str, Tensor], Tensor]
"""Of one step: from a direction and orders (K,) to λ·D_{λ+1} of each record, (K, m)."""


@dataclass(frozen=True)
class ByPanel:
    """Follow the same records through every step and add up before the expectation: exact."""

    name = "panel"

    def bounds(self, steps: int) -> int:
        """Return 1: the expectation is taken once, at the end."""
        return 1

    def total(self, costs: Sequence[Tensor], gamma: float) -> MeanEstimate:
        """Return the bound on c(λ), (K,)."""
        return student_t(torch.stack(list(costs)).sum(0), gamma)


@dataclass(frozen=True)
class ByHolder:
    """Hölder's inequality, for records that differ from step to step.

    c(λ) ≤ Σ_t (1/T) log E_x′ exp(T λ D_{λ+1}^(t)(x′)) (Triastcyn & Faltings 2020, Theorem 1).

    Args:
        steps: T, fixed before the first step.
    """

    steps: int
    name = "Hölder"

    def __post_init__(self) -> None:
        validate.positive_int("steps", self.steps)

    def bounds(self, steps: int) -> int:
        """Return one for each step."""
        return steps

    def total(self, costs: Sequence[Tensor], gamma: float) -> MeanEstimate:
        """Return the sum of the bounds, with the diagnostics of the worst of them."""
        result: MeanEstimate | None = None
        for cost in costs:
            result = added(result, student_t(self.steps * cost, gamma), 1 / self.steps)
        assert result is not None
        return result


@dataclass(frozen=True)
class Naive(ByHolder):
    """Σ_t log E_x′ exp(λ D^(t)): NOT SOUND, since x′ is the same in every step.

    Hölder's sum with T = 1, for any number of steps. Only to reproduce published figures that used
    it (arXiv 1901.09697v2).
    """

    steps: int = 1
    name = "naive (unsound)"


def added(total: MeanEstimate | None, one: MeanEstimate, weight: float) -> MeanEstimate:
    """Return ``total`` + ``weight`` · ``one``, with the worse diagnostics of the two."""
    bound, mean = weight * one.log_bound, weight * one.log_mean
    if total is None:
        return replace(one, log_bound=bound, log_mean=mean)
    return MeanEstimate(
        log_bound=total.log_bound + bound,
        log_mean=total.log_mean + mean,
        sample_size=one.sample_size,
        constant=total.constant | one.constant,
        skewness=torch.maximum(total.skewness, one.skewness),
        distribution_free=total.distribution_free and one.distribution_free,
    )


def composed(
    steps: Sequence[Costs],
    directions: Sequence[str],
    rule: ByPanel | ByHolder,
    *,
    delta: float,
    gamma: float,
    orders: Orders,
) -> Bound:
    """Return ε of all steps by this rule, by the Chernoff conversion."""
    terms = AnswerTerms(
        orders, len(orders) * rule.bounds(len(steps)), gamma, "chernoff", "student_t"
    )

    def bound(direction: str, order: Tensor) -> MeanEstimate:
        return rule.total([step(direction, order) for step in steps], gamma)

    def solve(direction: str, beta: float, enough: float) -> Solution:
        return solve_by_order(lambda order: bound(direction, order), beta, orders, "chernoff")

    return settle(solve, directions, delta, terms)
