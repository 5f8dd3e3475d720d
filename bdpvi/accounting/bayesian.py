"""From events to Bayesian-DP (ε, δ)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bdpvi import _validate
from bdpvi.accounting import conversions, estimators
from bdpvi.accounting.betting import betting
from bdpvi.accounting.composition import ByPanel, Composition
from bdpvi.accounting.conversions import Orders, minimise_delta, minimise_epsilon, split_delta
from bdpvi.accounting.estimators import Estimate, Estimator, quantile_certificate
from bdpvi.accounting.events import Event, Tally
from bdpvi.accounting.hockey_stick import EPSILONS, Deltas, certified, mean_delta, smallest_epsilon
from bdpvi.accounting.inversion import equal_covariance
from bdpvi.accounting.panel import Panel
from bdpvi.accounting.reliability import predicted_miss_rate, reliable, why
from bdpvi.accounting.totals import Recorded, Streamed, Totals, Views
from bdpvi.accounting.worst_case import cap, gaussian_epsilon, gaussian_guarantee, rounding_delta
from bdpvi.types import Diagnostics, Exposure, Spent, WorstCase

GUARANTEE = (
    "Bayesian differential privacy, not worst-case differential privacy: for a record x′ drawn "
    "from the distribution that the panel's records represent, Pr[S | D] ≤ e^ε Pr[S | D′] + δ for "
    "every set S of outputs and either order of D and D′, where D′ has {change}. δ is a mean over "
    "such records: one that is rarer than δ may be exposed altogether"
)
FOUND_FROM_DATA = (
    ". The temperature was chosen by looking at the data, on a coarse public grid, and nothing is "
    "charged for that choice"
)
CHANGES = {"remove": "x′ removed", "add": "x′ added"}
HOCKEY_STICK = "hockey-stick"
CONVERSIONS = ("cks", "chernoff", HOCKEY_STICK)

MISSES = 0.01
"""What the misses that an estimate's skewness predicts may add up to, as a share of δ, over all
estimates used, for the result to be called reliable."""


class Solution(NamedTuple):
    """ε of one direction, the order it was found at, and the estimate it rests on."""

    epsilon: float
    order: float | None
    estimate: Estimate


class BayesianAccountant:
    """Composes events and converts their cost to Bayesian DP.

    Each direction of each neighbour relation is estimated by itself and the largest ε counts: the
    cost is c(λ) = log E_x′ exp(λ Σ_t D_{λ+1}^(t)(x′)) in either order of D and D′.

    With conversion="hockey-stick", where the releases bound what any record whatever can cost
    (:attr:`bdpvi.accounting.panel.Panel.largest`), the mean is bounded by
    :func:`~bdpvi.accounting.betting.betting` instead of ``estimator``: for every distribution of
    the records, whatever the diagnostics say, as long as they are independent draws from it. (The
    panel is the training table itself, each record held against the others: exchangeable, not
    quite independent.)

    Args:
        estimator: upper bound on an expectation, from sampled records.
        failure_probability: γ, with which each estimate may fail.
        orders: the orders λ that ε is minimised over. With orders given, an event is added up when
            it is charged and forgotten, so memory does not grow with the number of events. By
            default they follow from the events: real ones where every event has a cost at those.
        conversion: "cks", "chernoff" (see :mod:`bdpvi.accounting.conversions`) or "hockey-stick"
            (see :mod:`bdpvi.accounting.hockey_stick`; for releases from Gaussian guides, by panel).
        composition: how the costs of several events add up, by default :class:`ByPanel`.

    >>> from bdpvi.accounting.events import SubsampledGaussian
    >>> distances = torch.linspace(0, 1, 100, dtype=torch.float64)
    >>> accountant = BayesianAccountant()
    >>> accountant.step(SubsampledGaussian(torch.arange(100), distances, 4.0, 0.01), count=1000)
    >>> round(accountant.get_epsilon(delta=1e-5), 3)
    0.271
    """

    def __init__(
        self,
        *,
        estimator: Estimator = estimators.student_t,
        failure_probability: float = 1e-15,
        orders: Orders | None = None,
        conversion: str = "cks",
        composition: Composition[Any] | None = None,
    ) -> None:
        if conversion not in CONVERSIONS:
            raise ValueError(f"conversion must be one of {CONVERSIONS}, got {conversion!r}")
        self.estimator = estimator
        self.failure_probability = _validate.probability("failure_probability", failure_probability)
        self.conversion = conversion
        self.composition: Composition[Any] = composition or ByPanel()
        self._totals: Totals = (
            Recorded(self.composition, self._bound)
            if orders is None
            else Streamed(self.composition, self._bound, orders)
        )
        self._first: Views | None = None
        self._taken = self._distinct = 0
        self._rounding = 0.0
        self._from_data = False

    def step(self, event: Event, *, count: int = 1) -> None:
        """Charge ``event`` ``count`` times.

        Raises:
            ValueError: if its records or directions are not those of the events before it, or there
                are more events than the composition was made for.
        """
        _validate.positive_int("count", count)
        views, limit = event.views(), self.composition.limit
        if self._first is not None:
            _check_same_records(self._first, views)
        if limit is not None and self._taken + count > limit:
            raise ValueError(
                f"count={count}: {self.composition.name} was fixed at {limit} events, and "
                f"{self._taken} have been charged"
            )
        self._totals.add(views, count)
        self._first = self._first or views
        self._taken += count
        self._distinct += 1
        self._rounding += count * event.rounding
        self._from_data |= event.from_data

    def get_epsilon(self, delta: float) -> float:
        """Return the Bayesian-DP ε at ``delta`` for everything charged so far."""
        return self.spent(delta).epsilon

    def get_delta(self, epsilon: float, *, near: float = 1e-5) -> float:
        """Return the Bayesian-DP δ at ``epsilon``, with what the estimates take of it.

        It is at most δ where :meth:`get_epsilon` at δ is at most ``epsilon``, and far quicker. As
        many estimates are charged as there: the answer could be that of any order or ε. It is 1
        where rounding and estimates leave nothing of ``near``.

        Args:
            epsilon: ε ≥ 0.
            near: δ about where the answer is expected, or wanted: with conversion="hockey-stick"
                records whose δ is negligible beside it are not looked at closely. The answer is
                valid whatever it is.

        Raises:
            ValueError: if nothing was charged, epsilon is not finite and at least 0, or ``near``
                does not exceed what the estimates take of it.
        """
        _validate.non_negative("epsilon", epsilon)
        _validate.probability("near", near)
        directions, choices = self._charged()
        gamma, estimates = self.failure_probability, len(directions) * choices
        beta = split_delta(near, gamma, estimates)
        # Where rounding makes ε too dear, what holds at a smaller one holds here too.
        while epsilon > 1 and rounding_delta(self._rounding, epsilon) > beta / 2:
            epsilon = cap(epsilon) - 0.25
        rounding = rounding_delta(self._rounding, epsilon)
        rest = beta - rounding
        if not rest > 0:
            return 1.0
        beta_at = partial(self._beta, epsilon, rest)
        return min(1.0, max(map(beta_at, directions)) + estimates * gamma + rounding)

    def cost(self, direction: str, order: Tensor) -> Estimate:
        """Return the bound on c(λ) of one direction, such as "remove D‖D′", at orders (K,)."""
        return self._totals.cost(direction, order)

    def tally(self) -> Tally:
        """Return all events as one, to be charged together with later ones elsewhere.

        Raises:
            ValueError: unless the accountant has fixed orders and composes by panel.
        """
        totals = self._totals
        if self._first is None or not isinstance(totals, Streamed):
            raise ValueError("orders must be fixed, and something charged, before a tally")
        if not isinstance(self.composition, ByPanel):
            raise ValueError(f"composition={self.composition.name} has no sum per record")
        ids = next(iter(self._first.values())).ids
        return Tally(ids, totals.orders, dict(totals.states), self._rounding, self._from_data)

    def spent(self, delta: float) -> Spent:
        """Return ε at ``delta`` with all that belongs to it.

        Raises:
            ValueError: if nothing was charged, δ does not exceed what the estimates and the
                rounding of the draws take of it, or no order has a finite divergence.
        """
        _validate.probability("delta", delta)
        directions, choices = self._charged()
        ranged = self.conversion == HOCKEY_STICK and self._ranged()
        used = betting if ranged else self.estimator
        solve = self._by_hockey_stick if self.conversion == HOCKEY_STICK else self._by_order
        found = with_rounding(
            partial(
                settle,
                solve,
                directions,
                delta,
                orders=self._totals.orders,
                choices=choices,
                failure_probability=self.failure_probability,
                composition=self.composition.name,
                conversion=self.conversion,
                estimator=getattr(used, "__name__", repr(used)),
            ),
            self._rounding,
            delta,
        )
        guarantee = found.guarantee + (FOUND_FROM_DATA if self._from_data else "")
        worst = self.worst_case(delta)
        if worst is not None and worst.epsilon < found.epsilon:
            found = replace(
                found,
                epsilon=worst.epsilon,
                order=None,
                reliable=True,
                reason="the worst-case guarantee is the smaller one, and implies this one",
            )
        return replace(found, guarantee=guarantee, worst_case=worst, from_data=self._from_data)

    def exposure(self, delta: float, failure_probability: float = 1e-6) -> Exposure:
        """Return what single records of the panel pay for everything charged, each at ``delta``.

        Exact where covariances are equal; elsewhere by the conversion of Canonne, Kamath and
        Steinke at 200 orders, which is some 10 % more.

        Args:
            delta: δ of each record's own guarantee.
            failure_probability: γ of the certified quantile.

        Raises:
            ValueError: if nothing was charged, or events are not composed by panel.
        """
        _validate.probability("delta", delta)
        if self.composition != ByPanel():
            raise ValueError(f"composition={self.composition.name} has no cost per record")
        directions, _ = self._charged()
        variances = [self._variance(name) for name in directions]
        if all(v is not None for v in variances):
            own = torch.stack([v for v in variances if v is not None]).amax(0)
            price: Callable[[float], float] = partial(gaussian_epsilon, delta=delta)
        else:
            own = torch.stack([self._own_epsilon(name, delta) for name in directions]).amax(0)
            price = float
        ranked = own.sort().values
        certified = float(quantile_certificate(own, failure_probability, 0.99))
        return Exposure(
            delta=delta,
            largest=price(float(ranked[-1])),
            most=price(float(ranked[math.ceil(0.99 * len(own)) - 1])),
            median=price(float(ranked[(len(own) - 1) // 2])),
            certified=price(certified) if math.isfinite(certified) else math.inf,
            failure_probability=failure_probability,
        )

    def _own_epsilon(self, direction: str, delta: float) -> Tensor:
        """Return the ε of each record by itself, (m,)."""
        orders = self._totals.orders.values
        some = orders[:: max(1, len(orders) // 200)]
        best = torch.tensor(math.inf, dtype=torch.float64)
        for order in some.split(1):
            cost = self._totals.state(direction, order)[0]
            best = torch.minimum(best, conversions.epsilon(cost, order, delta))
        return best

    def _ranged(self) -> bool:
        """Whether every event bounds what any record whatever can cost."""
        bounds = [v.largest for views, _ in self._events() for v in views.values()]
        return bool(bounds) and None not in bounds

    def worst_case(self, delta: float) -> WorstCase | None:
        """Return the guarantee for any record whatever: all events are one Gaussian mechanism.

        A function of public numbers alone. None without any event, where nothing bounds a record's
        influence, or where a temperature was found from the records.
        """
        if self._from_data or not self._ranged():
            return None
        variance = max(
            sum(count * (views[name].largest or 0.0) for views, count in self._events())
            for name in self._first or ()
        )
        return gaussian_guarantee(variance, delta, self._rounding)

    def _events(self) -> Sequence[tuple[Views, int]]:
        return self._totals.events if isinstance(self._totals, Recorded) else []

    def _charged(self) -> tuple[Sequence[str], int]:
        """Return the directions and the number of estimates, in each, behind an answer."""
        if self._first is None:
            raise ValueError("nothing has been charged yet, so there is no ε to report")
        if self.conversion == HOCKEY_STICK:
            return tuple(self._first), len(EPSILONS)
        choices = len(self._totals.orders) * self.composition.bounds(self._distinct)
        return tuple(self._first), choices

    def _by_order(self, direction: str, beta: float, enough: float) -> Solution:
        cost = partial(self.cost, direction)
        return solve_by_order(cost, beta, self._totals.orders, self.conversion)

    def _by_hockey_stick(self, direction: str, beta: float, enough: float) -> Solution:
        deltas = self._deltas(direction, beta)
        epsilon, estimate = smallest_epsilon(deltas, beta, self._bound, enough)
        return Solution(epsilon, None, estimate)

    def _beta(self, epsilon: float, near: float, direction: str) -> float:
        """Return what one direction has for δ at ε, less what the estimates take."""
        if self.conversion != HOCKEY_STICK:
            cost = partial(self.cost, direction)
            orders, rule = self._totals.orders, self.conversion
            return minimise_delta(lambda order: cost(order).log_bound, epsilon, orders, rule).value
        return mean_delta(self._deltas(direction, near), epsilon, self._bound)

    def _deltas(self, direction: str, beta: float) -> Deltas:
        """Return every record's own δ as a function of ε."""
        views = [(views[direction], count) for views, count in self._events()]
        if (
            not views
            or self.composition != ByPanel()
            or any(v.log_mgf_of is None for v, _ in views)
        ):
            raise ValueError(
                "conversion='hockey-stick' needs releases from Gaussian guides, composed by panel "
                "and without fixed orders"
            )
        variance = self._variance(direction)
        if variance is not None:
            bounds = [count * v.largest for v, count in views if v.largest is not None]
            if len(bounds) < len(views):
                return Deltas(partial(equal_covariance, variance))
            largest = torch.tensor([sum(bounds)], dtype=torch.float64)
            return Deltas(
                partial(equal_covariance, variance.clamp(max=largest)),
                largest=lambda epsilon: float(equal_covariance(largest, epsilon)),
            )

        def log_mgf_of(records: Tensor | slice) -> Callable[[Tensor], Tensor]:
            parts = [(n, v.log_mgf_of(records)) for v, n in views if v.log_mgf_of is not None]
            return lambda s: sum((n * log_mgf(s) for n, log_mgf in parts), torch.zeros(()))

        return certified(log_mgf_of, beta)

    def _variance(self, direction: str) -> Tensor | None:
        """Return the variance of each record's loss in all events, (m,), if it is Gaussian."""
        views = [(views[direction], count) for views, count in self._events()]
        variances = [count * v.variance for v, count in views if v.variance is not None]
        if not views or len(variances) < len(views):
            return None
        return torch.stack(variances).sum(0)

    def _bound(self, log_values: Tensor, log_largest: float | None = None) -> Estimate:
        if log_largest is None:
            return self.estimator(log_values, self.failure_probability)
        return betting(log_values, self.failure_probability, log_largest, -math.inf)


def nothing_spent(delta: float, panels: Sequence[Panel]) -> Spent:
    """Return what a fit has cost before anything was released from it: ε = 0."""
    kinds = sorted({panel.kind for panel in panels})
    return Spent(
        epsilon=0.0,
        delta=delta,
        guarantee=GUARANTEE.format(change=" or ".join(CHANGES[kind] for kind in kinds)),
        order=None,
        direction="none",
        composition=ByPanel.name,
        conversion="none",
        estimator="none",
        failure_probability=0.0,
        estimates=0,
        sample_size=sum(len(panel.ids) for panel in panels),
        diagnostics=Diagnostics(0.0, 0.0, 0.0, 0.0),
        reliable=True,
        reason="nothing was released",
        worst_case=WorstCase(0.0, delta, "nothing was released"),
    )


def solve_by_order(
    cost: Callable[[Tensor], Estimate], beta: float, orders: Orders, conversion: str
) -> Solution:
    """Return the smallest ε over ``orders`` with β to spare, given bounds on c(λ)."""
    epsilon, order = minimise_epsilon(lambda order: cost(order).log_bound, beta, orders, conversion)
    return Solution(epsilon, order, cost(torch.tensor([order], dtype=torch.float64)))


def settle(
    solve: Callable[[str, float, float], Solution],
    directions: Sequence[str],
    delta: float,
    *,
    orders: Orders,
    choices: int,
    failure_probability: float,
    composition: str,
    conversion: str,
    estimator: str,
    rounding: float = 0.0,
) -> Spent:
    """Return ε at ``delta`` of the direction that costs most, with all that belongs to it.

    Args:
        solve: from a direction, the β that is left for it, and the ε that another direction
            costs, below which nothing smaller is needed, to its ε.
        directions: of the neighbour relations, such as "remove D‖D′".
        delta: δ.
        orders: that an answer may have.
        choices: number of estimates, in each direction, that an answer could have rested on.
        failure_probability: γ of each.
        composition, conversion, estimator: names for the report.
        rounding: what the rounding of the draws takes of δ.

    Raises:
        ValueError: if δ does not exceed what the estimates and rounding take of it, or no order has
            a finite divergence.
    """
    gamma, estimates = failure_probability, len(directions) * choices
    beta = split_delta(delta, gamma, estimates) - rounding
    if not beta > 0:
        raise ValueError(
            f"delta={delta:g} does not pay for the rounding of the draws: {rounding:.2g}"
        )
    tolerated = max(gamma, MISSES * delta / estimates)
    solutions: dict[str, Solution] = {}
    for name in directions:
        enough = max((s.epsilon for s in solutions.values()), default=0.0)
        solutions[name] = solve(name, beta, enough)
    direction = max(solutions, key=lambda name: solutions[name].epsilon)
    epsilon, order, estimate = solutions[direction]
    if not math.isfinite(epsilon):
        raise ValueError(
            f"order: no λ from {orders.values[0]:g} to {orders.values[-1]:g} has a finite "
            f"divergence in direction {direction!r}; one record moves the posterior too far"
        )
    # ε claims that no direction costs more, so the estimate of every direction has to support it.
    for name, found in solutions.items():
        if found.order is None and not reliable(found.estimate, gamma, tolerated)[0]:
            solutions[name] = solve(name, beta, epsilon)  # at ε, which may be more than its own
    least = max(
        solutions,
        key=lambda name: (_doubt(solutions[name].estimate, gamma, tolerated), name == direction),
    )
    doubtful = solutions[least].estimate
    reason = why(doubtful, gamma, tolerated)
    kinds = sorted({name.split()[0] for name in directions})
    return Spent(
        epsilon=epsilon,
        delta=delta,
        guarantee=GUARANTEE.format(change=" or ".join(CHANGES[kind] for kind in kinds)),
        order=order,
        direction=direction,
        composition=composition,
        conversion=conversion,
        estimator=estimator,
        failure_probability=gamma,
        estimates=estimates,
        sample_size=estimate.sample_size,
        diagnostics=Diagnostics(
            top_share=float(estimate.top_share[0]),
            effective_size=float(estimate.effective_size[0]),
            pareto_k=float(estimate.pareto_k[0]),
            skewness=float(estimate.skewness[0]),
        ),
        reliable=bool(reliable(doubtful, gamma, tolerated)[0]),
        reason=reason if least == direction else f"in direction {least}: {reason}",
        rounding=rounding,
    )


def with_rounding(settled: Callable[..., Spent], error: float, delta: float) -> Spent:
    """Return what :func:`settle` returns where part of δ pays for rounding at the ε that is found.

    Args:
        settled: from ``rounding``, the part of δ that is set aside, to the answer.
        error: θ of all draws, see :func:`bdpvi.accounting.worst_case.rounding_delta`.
        delta: δ.

    Raises:
        ValueError: if rounding leaves nothing of δ, or as :func:`settle`.
    """
    epsilon = 0.0
    while True:
        within, rounding = cap(epsilon), rounding_delta(error, epsilon)
        if rounding >= delta and epsilon > 0:
            raise ValueError(
                f"delta={delta:g} does not pay for the rounding of the draws at an ε of about "
                f"{within:g}: (1 + e^ε) · {error:.2g}. Draw fewer samples, at a higher "
                "temperature, or from a guide with a coarser grid"
            )
        found = settled(rounding=rounding)
        epsilon = found.epsilon
        if not error or epsilon <= within:
            return found


def _doubt(estimate: Estimate, gamma: float, tolerated: float) -> float:
    """Return 0 for an estimate that is reliable, else its predicted miss rate."""
    if reliable(estimate, gamma, tolerated)[0]:
        return 0.0
    return float(predicted_miss_rate(estimate.skewness, estimate.sample_size, gamma)[0])


def _check_same_records(before: Views, now: Views) -> None:
    if set(before) != set(now):
        raise ValueError(f"event: has directions {sorted(now)}, not {sorted(before)}")
    for name, view in now.items():
        if not torch.equal(view.ids, before[name].ids):
            raise ValueError(
                f"event: its record ids in {name!r} are not those of the events before it"
            )
