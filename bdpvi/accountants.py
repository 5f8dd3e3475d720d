"""From events to (ε, δ)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bdpvi import _validate, estimators
from bdpvi.conversions import REAL_ORDERS, Orders, minimise_epsilon, split_delta
from bdpvi.estimators import Estimate
from bdpvi.events import Event, View
from bdpvi.types import Diagnostics, Spent

Estimator = Callable[[Tensor, float], Estimate]

GUARANTEE = (
    "Bayesian differential privacy, not worst-case differential privacy: for a record x′ drawn "
    "from the distribution that the panel's records represent, Pr[S | D] ≤ e^ε Pr[S | D′] + δ for "
    "every set S of outputs and either order of D and D′, where D′ has {change}"
)
CHANGES = {"remove": "x′ removed", "add": "x′ added", "replace": "x′ replaced"}


class BayesianAccountant:
    """Composes events record by record (the panel) and converts their cost to Bayesian DP.

    The cost of all events together is c(λ) = log E_x′ exp(λ Σ_t D_{λ+1}^(t)(x′)); following the
    same records through every event spends no inequality on composition. Each direction of each
    neighbour relation is estimated by itself and the largest ε counts.

    Args:
        estimator: upper bound on the expectation, from sampled records.
        failure_probability: γ, with which each estimate may fail.
        orders: the orders λ that ε is minimised over.
        conversion: "cks" or "chernoff", see :mod:`bdpvi.conversions`.
    """

    composition = "panel"

    def __init__(
        self,
        *,
        estimator: Estimator = estimators.student_t,
        failure_probability: float = 1e-15,
        orders: Orders = REAL_ORDERS,
        conversion: str = "cks",
    ) -> None:
        self.estimator = estimator
        self.failure_probability = _validate.probability("failure_probability", failure_probability)
        self.orders = orders
        self.conversion = conversion
        self._events: list[tuple[Event, int]] = []

    def step(self, event: Event, *, count: int = 1) -> None:
        """Charge ``event`` ``count`` times.

        Raises:
            ValueError: if its records or directions are not those of the events before it.
        """
        _validate.positive_int("count", count)
        if self._events:
            before, now = self._events[0][0].views(), event.views()
            if set(before) != set(now):
                raise ValueError(f"event: has directions {sorted(now)}, not {sorted(before)}")
            for name, view in now.items():
                if not torch.equal(view.ids, before[name].ids):
                    raise ValueError(
                        f"event: its record ids in {name!r} are not those of the events before it"
                    )
        self._events.append((event, count))

    def estimate(self, direction: str, order: Tensor) -> Estimate:
        """Return the bound on c(λ) for one direction, at orders (K,)."""
        views = [(event.views()[direction], count) for event, count in self._events]
        return self.estimator(_panel(views, order), self.failure_probability)

    def get_epsilon(self, delta: float) -> float:
        """Return the Bayesian-DP ε at ``delta`` for everything charged so far."""
        return self.spent(delta).epsilon

    def spent(self, delta: float) -> Spent:
        """Return ε at ``delta`` with all that belongs to it.

        Raises:
            ValueError: if nothing was charged, δ does not exceed what the estimates take of it,
                or no order has a finite divergence.
        """
        _validate.probability("delta", delta)
        if not self._events:
            raise ValueError("nothing has been charged yet, so there is no ε to report")
        directions = self._events[0][0].views()
        estimates = len(self.orders) * len(directions)
        beta = split_delta(delta, self.failure_probability, estimates)
        minima = {
            name: minimise_epsilon(
                lambda order, name=name: self.estimate(name, order).log_bound,  # type: ignore[misc]
                beta,
                self.orders,
                self.conversion,
            )
            for name in directions
        }
        direction = max(minima, key=lambda name: minima[name].value)
        epsilon, order = minima[direction]
        if not math.isfinite(epsilon):
            raise ValueError(
                f"order: no λ from {self.orders.values[0]:g} to {self.orders.values[-1]:g} has a "
                f"finite divergence in direction {direction!r}; one record moves the posterior too "
                "far"
            )
        at_order = self.estimate(direction, torch.tensor([order], dtype=torch.float64))
        diagnostics = Diagnostics(
            top_share=float(at_order.top_share[0]),
            effective_size=float(at_order.effective_size[0]),
            pareto_k=float(at_order.pareto_k[0]),
        )
        kinds = sorted({name.split()[0] for name in directions})
        return Spent(
            epsilon=epsilon,
            delta=delta,
            guarantee=GUARANTEE.format(change=" or ".join(CHANGES[kind] for kind in kinds)),
            order=order,
            direction=direction,
            composition=self.composition,
            conversion=self.conversion,
            estimator=getattr(self.estimator, "__name__", repr(self.estimator)),
            failure_probability=self.failure_probability,
            estimates=estimates,
            sample_size=at_order.sample_size,
            diagnostics=diagnostics,
            reliable=diagnostics.pareto_k <= 0.7,
        )


def _panel(views: Sequence[tuple[View, int]], order: Tensor) -> Tensor:
    """Add up what every event costs each record, (K, m)."""
    total = torch.zeros((), dtype=torch.float64)
    for view, count in views:
        total = total + count * view.log_moment(order)
    return total
