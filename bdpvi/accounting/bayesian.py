"""From events to Bayesian-DP (ε, δ)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bdpvi import _validate
from bdpvi.accounting import conversions, estimators
from bdpvi.accounting.betting import betting
from bdpvi.accounting.composition import ByPanel, Composition, Totals
from bdpvi.accounting.conversions import Orders, minimise_delta, split_delta
from bdpvi.accounting.estimators import Estimate, Estimator
from bdpvi.accounting.events import Event, PosteriorDraws, Tally
from bdpvi.accounting.hockey_stick import (
    EPSILONS,
    Deltas,
    deltas_of,
    loss_variance,
    mean_delta,
    smallest_epsilon,
    variance_bound,
)
from bdpvi.accounting.panel import Panel
from bdpvi.accounting.plain import check_settings, from_plain, to_plain
from bdpvi.accounting.quantiles import quantile_certificate
from bdpvi.accounting.settling import (
    Solution,
    Terms,
    guarantee_for,
    settle,
    solve_by_order,
    supported,
    tolerated_rate,
)
from bdpvi.accounting.worst_case import cap, gaussian_epsilon, gaussian_guarantee, rounding_delta
from bdpvi.types import Diagnostics, Exposure, Spent, WorstCase

FOUND_FROM_DATA = (
    ". The temperature was chosen by looking at the data, on a coarse public grid, and nothing is "
    "charged for that choice"
)
HOCKEY_STICK = "hockey-stick"
_CHARGED = ("records", "taken", "distinct", "rounding", "from_data")
"""What an accountant knows of the events besides their cost."""
CONVERSIONS = ("cks", "chernoff", HOCKEY_STICK)


class BayesianAccountant:
    """Composes events and converts their cost to Bayesian DP.

    Each direction of each neighbour relation is estimated by itself and the largest ε counts: the
    cost is c(λ) = log E_x′ exp(λ Σ_t D_{λ+1}^(t)(x′)) in either order of D and D′.

    With conversion="hockey-stick", where the releases bound the cost of every conceivable record
    (:attr:`bdpvi.accounting.panel.Panel.largest`), the mean is bounded by
    :func:`~bdpvi.accounting.betting.betting` instead of ``estimator``: for every distribution of
    the records, whatever the diagnostics are, if the records are independent draws from it. (The
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
        only_reliable: answer with the smallest ε whose estimate is reliable: at a lower order than
            the smallest ε of all, where exposed records weigh less. Not for "hockey-stick".

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
        only_reliable: bool = False,
    ) -> None:
        if conversion not in CONVERSIONS[: 2 if only_reliable else 3]:
            raise ValueError(
                f"conversion must be one of {CONVERSIONS}, and one of the first two with "
                f"only_reliable=True, which chooses an order; got {conversion!r}"
            )
        self.estimator = estimator
        self.failure_probability = _validate.probability("failure_probability", failure_probability)
        self.conversion, self.only_reliable = conversion, only_reliable
        self.composition: Composition[Any] = composition or ByPanel()
        self._totals = Totals(
            self.composition, lambda values: estimator(values, failure_probability), orders
        )
        self._records: Mapping[str, Tensor] | None = None
        self._taken = self._distinct = 0
        self._rounding = 0.0
        self._from_data = False

    def step(self, event: Event, *, count: int = 1) -> None:
        """Charge ``event`` ``count`` times.

        Raises:
            ValueError: if its records or directions differ from those of earlier events, or there
                are more events than the composition was made for.
        """
        _validate.positive_int("count", count)
        limit = self.composition.limit
        if self._records is not None:
            _check_same_records(self._records, event.records)
        if limit is not None and self._taken + count > limit:
            raise ValueError(
                f"count={count}: {self.composition.name} was fixed at {limit} events, and "
                f"{self._taken} have been charged"
            )
        self._totals.add(event, count)
        self._records = event.records if self._records is None else self._records
        self._taken += count
        self._distinct += 1
        self._rounding += count * event.rounding
        self._from_data |= event.from_data

    def __len__(self) -> int:
        """Return how many events were charged, each as often as it was."""
        return self._taken

    def get_epsilon(self, *, delta: float) -> float:
        """Return the Bayesian-DP ε at ``delta`` for everything charged so far."""
        return self.spent(delta).epsilon

    def state_dict(self) -> dict[str, Any]:
        """Return the charged events, with the settings, as plain values and tensors.

        Secret: it holds what every record costs, and its file has no hash chain as a ledger has.
        ``torch.save`` writes it; ``torch.load(..., weights_only=True)`` reads it.

        Raises:
            ValueError: if an event is of a type of your own.
        """
        sums = {"events": self._totals.events, "states": self._totals.states}
        charged = {name: getattr(self, f"_{name}") for name in _CHARGED}
        return {"settings": self._settings(), **to_plain(sums | charged)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what :meth:`state_dict` has returned, for the same ε bit for bit.

        Raises:
            ValueError: if it is of an accountant with other settings, or cannot be read.
        """
        check_settings(state, self._settings())
        try:
            events = [(from_plain(one), int(count)) for one, count in state["events"]]
            states = from_plain(state["states"])
            charged = {f"_{name}": from_plain(state[name]) for name in _CHARGED}
        except (KeyError, TypeError) as error:
            raise ValueError(f"state cannot be read: {error!r}") from error
        self._totals.events, self._totals.states = events, states
        vars(self).update(charged)

    def _settings(self) -> dict[str, Any]:
        fixed = self._totals.fixed
        return {
            "estimator": getattr(self.estimator, "__name__", repr(self.estimator)),
            "failure_probability": self.failure_probability,
            "orders": None if fixed is None else fixed.values.tolist(),
            "conversion": self.conversion,
            "composition": self.composition.name,
            "limit": self.composition.limit,
        }

    def get_delta(self, epsilon: float, *, near: float = 1e-5) -> float:
        """Return the Bayesian-DP δ at ``epsilon``, with what the estimates take of it.

        It is at most δ where :meth:`get_epsilon` at δ is at most ``epsilon``, and far quicker. The
        same number of estimates is charged: any order or ε could have been the answer. It is 1
        where rounding and estimates leave nothing of ``near``.

        Args:
            epsilon: ε ≥ 0.
            near: δ about where the answer is expected, or wanted: with conversion="hockey-stick"
                records whose δ is negligible beside it are not looked at closely. The answer is
                valid for every ``near``.

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
        beta = max(self._beta(name, epsilon, rest, near) for name in directions)
        return min(1.0, beta + estimates * gamma + rounding)

    def cost(self, direction: str, order: Tensor) -> Estimate:
        """Return the bound on c(λ) of one direction, such as "remove D‖D′", at orders (K,)."""
        return self._totals.cost(direction, order)

    def tally(self) -> Tally:
        """Return all events as one, to be charged together with later ones elsewhere.

        Raises:
            ValueError: unless the accountant has fixed orders and composes by panel.
        """
        totals = self._totals
        if self._records is None or totals.fixed is None:
            raise ValueError("orders must be fixed, and something charged, before a tally")
        if not isinstance(self.composition, ByPanel):
            raise ValueError(f"composition={self.composition.name} has no sum per record")
        ids = next(iter(self._records.values()))
        return Tally(ids, totals.fixed, dict(totals.states), self._rounding, self._from_data)

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
        by_order = partial(self._by_order, delta)
        solve = self._by_hockey_stick if self.conversion == HOCKEY_STICK else by_order
        terms = Terms(
            orders=self._totals.orders,
            choices=choices,
            failure_probability=self.failure_probability,
            composition=self.composition.name,
            conversion=self.conversion,
            estimator=getattr(used, "__name__", repr(used)),
        )
        worst = self.worst_case(delta)
        try:
            found = settle(solve, directions, delta, terms, self._rounding)
        except ValueError:
            if worst is None:
                raise
            # Whether there is an answer must not depend on the records where the worst case is one.
            panels = [panel for event, _ in self._draws() for panel in event.panels]
            found = replace(nothing_spent(delta, panels), epsilon=math.inf)
        guarantee = found.guarantee + (FOUND_FROM_DATA if self._from_data else "")
        if worst is not None and not (found.reliable and found.epsilon <= worst.epsilon):
            found = replace(
                found,
                epsilon=worst.epsilon,
                order=None,
                reliable=True,
                reason="it is the worst-case ε, whose guarantee implies this one; no smaller ε is "
                "reliable by this conversion",
            )
        return replace(found, guarantee=guarantee, worst_case=worst, from_data=self._from_data)

    def exposure(self, delta: float, failure_probability: float = 1e-6) -> Exposure:
        """Return the ε of single records of the panel for everything charged, each at ``delta``.

        Exact where covariances are equal; elsewhere by the conversion of Canonne, Kamath and
        Steinke at 200 orders, which gives an ε about 10 % larger.

        Args:
            delta: δ of each record's own guarantee.
            failure_probability: γ of the certified quantile.

        Raises:
            ValueError: if nothing was charged, or events are not composed by panel.
        """
        own, price = self._own(delta)
        median, most, largest = _within(own, price, (0.5, 0.99, 1.0))
        certified = float(quantile_certificate(own, failure_probability, 0.99))
        return Exposure(
            delta=delta,
            largest=largest,
            most=most,
            median=median,
            certified=price(certified) if math.isfinite(certified) else math.inf,
            failure_probability=failure_probability,
        )

    def record_epsilons(self, delta: float, levels: Sequence[float]) -> list[float]:
        """Return what fractions of the panel's records pay, each by itself: secret.

        Args:
            delta: δ of each record's own guarantee.
            levels: fractions in (0, 1].

        Returns:
            For each level the ε that this fraction of the panel stays within, as precise as
            :meth:`exposure`.

        Raises:
            ValueError: as for :meth:`exposure`, or if a level lies outside (0, 1].
        """
        for level in levels:
            _validate.rate("levels", level)
        return _within(*self._own(delta), levels)

    def _own(self, delta: float) -> tuple[Tensor, Callable[[float], float]]:
        """Return a number for each record, (m,), from which a rising function makes its own ε."""
        _validate.probability("delta", delta)
        if self.composition != ByPanel():
            raise ValueError(f"composition={self.composition.name} has no cost per record")
        directions, _ = self._charged()
        variances = [loss_variance(self._draws(), name) for name in directions]
        if all(v is not None for v in variances):
            own = torch.stack([v for v in variances if v is not None]).amax(0)
            return own, partial(gaussian_epsilon, delta=delta)
        return torch.stack([self._own_epsilon(name, delta) for name in directions]).amax(0), float

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
        """Return whether every event bounds the cost of every conceivable record."""
        draws = self._draws()
        return bool(draws) and all(one.largest is not None for e, _ in draws for one in e.panels)

    def worst_case(self, delta: float) -> WorstCase | None:
        """Return the guarantee for every conceivable record: the events are one Gaussian mechanism.

        A function of public numbers alone. None without any event, where nothing bounds a record's
        influence, or where a temperature was found from the records.
        """
        if self._from_data or not self._ranged():
            return None
        directions, _ = self._charged()
        variance = max(variance_bound(self._draws(), name) or 0.0 for name in directions)
        return gaussian_guarantee(variance, delta, self._rounding)

    def _draws(self) -> list[tuple[PosteriorDraws, int]]:
        """Return all events and their counts, if all are draws and were kept; else none."""
        events = self._totals.events
        draws = [(event, n) for event, n in events if isinstance(event, PosteriorDraws)]
        return draws if len(draws) == len(events) else []

    def _charged(self) -> tuple[Sequence[str], int]:
        """Return the directions and the number of estimates, in each, behind an answer."""
        if self._records is None:
            raise ValueError("nothing has been charged yet, so there is no ε to report")
        if self.conversion == HOCKEY_STICK:
            return tuple(self._records), len(EPSILONS)
        choices = len(self._totals.orders) * self.composition.bounds(self._distinct)
        return tuple(self._records), choices

    def _usable(self, direction: str, delta: float) -> Callable[[Tensor], Estimate]:
        """Return the cost of one direction, infinite where an answer at δ may not come from."""
        if not self.only_reliable:
            return partial(self.cost, direction)
        (directions, choices), gamma = self._charged(), self.failure_probability
        tolerated = tolerated_rate(delta, gamma, len(directions) * choices)
        return lambda order: supported(self.cost(direction, order), gamma, tolerated)

    def _by_order(self, delta: float, direction: str, beta: float, enough: float) -> Solution:
        cost = self._usable(direction, delta)
        return solve_by_order(cost, beta, self._totals.orders, self.conversion)

    def _by_hockey_stick(self, direction: str, beta: float, enough: float) -> Solution:
        deltas = self._deltas(direction, beta)
        epsilon, estimate = smallest_epsilon(
            deltas, beta, self.estimator, self.failure_probability, enough
        )
        return Solution(epsilon, None, estimate)

    def _beta(self, direction: str, epsilon: float, rest: float, near: float) -> float:
        """Return what one direction has for δ at ε, less what the estimates take."""
        if self.conversion == HOCKEY_STICK:
            deltas = self._deltas(direction, rest)
            return mean_delta(deltas, epsilon, self.estimator, self.failure_probability)
        cost = self._usable(direction, near)
        orders, rule = self._totals.orders, self.conversion
        return minimise_delta(lambda order: cost(order).log_bound, epsilon, orders, rule).value

    def _deltas(self, direction: str, beta: float) -> Deltas:
        """Return every record's own δ as a function of ε."""
        draws = self._draws()
        if not draws or self.composition != ByPanel():
            raise ValueError(
                "conversion='hockey-stick' needs releases from Gaussian guides, composed by panel "
                "and without fixed orders"
            )
        return deltas_of(draws, direction, beta)


def nothing_spent(delta: float, panels: Sequence[Panel]) -> Spent:
    """Return the cost of a fit before anything was released from it: ε = 0."""
    return Spent(
        epsilon=0.0,
        delta=delta,
        guarantee=guarantee_for([panel.kind for panel in panels]),
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


def _within(own: Tensor, price: Callable[[float], float], levels: Sequence[float]) -> list[float]:
    """Return the ε that each fraction of the records, above 0, stays within."""
    ranked = own.sort().values
    return [price(float(ranked[math.ceil(level * len(own)) - 1])) for level in levels]


def _check_same_records(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> None:
    if set(before) != set(now):
        raise ValueError(f"event: has directions {sorted(now)}, not {sorted(before)}")
    for name, ids in now.items():
        if not torch.equal(ids, before[name]):
            raise ValueError(
                f"event: its record ids in {name!r} are not those of the events before it"
            )
