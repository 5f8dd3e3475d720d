"""How the costs of several events become the cost of all of them, c(λ)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from bdpvi import _validate
from bdpvi.accounting.estimators import Estimate

Estimator = Callable[[Tensor], Estimate]
"""From log y (K, m) to a bound on log E y, at a fixed failure probability."""

S = TypeVar("S")


class Composition(Protocol[S]):
    """A rule that bounds c(λ) = log E_x′ exp(λ Σ_t D_{λ+1}^(t)(x′)), event by event.

    Its state S after some events needs memory for records × orders at the most.
    """

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def limit(self) -> int | None:
        """The number of events agreed on beforehand, if the rule needs one."""

    def bounds(self, events: int) -> int:
        """Return how many bounds by the estimator one order takes after distinct ``events``."""

    def add(self, state: S | None, cost: Tensor, count: int, estimator: Estimator) -> S:
        """Return the state after ``count`` more events.

        Args:
            state: after the events before; None at the start.
            cost: λ·D_{λ+1} of one such event for each record, (K, m).
            count: how many.
            estimator: bounds an expectation.
        """

    def total(self, state: S, estimator: Estimator) -> Estimate:
        """Return the bound on c(λ), (K,)."""


@dataclass(frozen=True)
class ByPanel:
    """Follow the same records through every event and add up before the expectation: exact.

    No inequality is spent, and the number of events need not be known beforehand. Source: the
    definition of c(λ), with a per-record cost that does not depend on what was released before.
    """

    name = "panel"
    limit = None

    def bounds(self, events: int) -> int:
        """Return 1: the expectation is taken once, at the end."""
        return 1

    def add(self, state: Tensor | None, cost: Tensor, count: int, estimator: Estimator) -> Tensor:
        """Return the sum per record."""
        return count * cost if state is None else torch.add(state, cost, alpha=count)

    def total(self, state: Tensor, estimator: Estimator) -> Estimate:
        """Return the estimate of log E_x′ exp(λ Σ_t D^(t))."""
        return estimator(state)


@dataclass(frozen=True)
class ByHolder:
    """Hölder's inequality, for records that differ from event to event.

    c(λ) ≤ Σ_t (1/T) log E_x′ exp(T λ D_{λ+1}^(t)(x′)) (Triastcyn & Faltings 2020, Theorem 1).

    Args:
        steps: T, fixed before the first event. One event more is an error.
    """

    steps: int
    name = "Hölder"

    def __post_init__(self) -> None:
        _validate.positive_int("steps", self.steps)

    @property
    def limit(self) -> int:
        """T."""
        return self.steps

    def bounds(self, events: int) -> int:
        """Return one for each distinct event."""
        return events

    def add(
        self, state: Estimate | None, cost: Tensor, count: int, estimator: Estimator
    ) -> Estimate:
        """Return the sum of the bounds, with the diagnostics of the worst of them."""
        return _plus(state, estimator(self.steps * cost), count / self.steps)

    def total(self, state: Estimate, estimator: Estimator) -> Estimate:
        """Return the sum."""
        return state


@dataclass(frozen=True)
class Naive:
    """Σ_t log E_x′ exp(λ D^(t)): NOT SOUND, since x′ is the same in every event.

    Only to reproduce published figures that used it (arXiv 1901.09697v2).
    """

    name = "naive (unsound)"
    limit = None

    def bounds(self, events: int) -> int:
        """Return one for each distinct event."""
        return events

    def add(
        self, state: Estimate | None, cost: Tensor, count: int, estimator: Estimator
    ) -> Estimate:
        """Return the sum of the bounds of the single events, which bounds nothing."""
        return _plus(state, estimator(cost), count)

    def total(self, state: Estimate, estimator: Estimator) -> Estimate:
        """Return the sum."""
        return state


def _plus(total: Estimate | None, one: Estimate, weight: float) -> Estimate:
    """Return ``total`` + ``weight`` · ``one``, with the worse diagnostics of the two."""
    bound, mean = weight * one.log_bound, weight * one.log_mean
    if total is None:
        return replace(one, log_bound=bound, log_mean=mean)
    return Estimate(
        log_bound=total.log_bound + bound,
        log_mean=total.log_mean + mean,
        sample_size=one.sample_size,
        constant=total.constant | one.constant,
        top_share=torch.maximum(total.top_share, one.top_share),
        effective_size=torch.minimum(total.effective_size, one.effective_size),
        pareto_k=torch.maximum(total.pareto_k, one.pareto_k),
        skewness=torch.maximum(total.skewness, one.skewness),
        distribution_free=total.distribution_free and one.distribution_free,
    )
