"""From events to Bayesian-DP (ε, δ)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi.accounting import conversions, estimators, losses, worst_case
from bdpvi.accounting.answer import (
    Solution,
    Terms,
    mean_delta,
    no_panel,
    nothing_spent,
    on_path,
    settle,
    smallest_epsilon,
    solve_by_order,
    supported,
    tolerated_rate,
)
from bdpvi.accounting.betting import betting
from bdpvi.accounting.composition import ByPanel, Composition, Tally, Totals
from bdpvi.accounting.conversions import (
    CKS,
    CONVERSIONS,
    EPSILONS,
    HOCKEY_STICK,
    SMALL,
    Orders,
    least_failure,
    minimise_delta,
    split_delta,
)
from bdpvi.accounting.estimators import Estimate, Estimator
from bdpvi.accounting.events import Event, SampledGaussian, check_same_records
from bdpvi.accounting.losses import Deltas, Losses, Price
from bdpvi.accounting.quantiles import exposure_of
from bdpvi.accounting.worst_case import cap, rounding_delta
from bdpvi.types import Exposure, Scope, Spent, WorstCase

FOUND_FROM_DATA = (
    ". The temperature was chosen by looking at the data, on a coarse public grid, and nothing is "
    "charged for that choice"
)


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

    Sensitivities that were met on the path of a training run (``Scope.PATH``) guarantee nothing
    about the algorithm. ε is then the worst-case one, and what the path itself cost is
    ``Spent.path_epsilon``, a diagnostic.

    Args:
        estimator: upper bound on an expectation, from sampled records.
        failure_probability: γ, with which each estimate may fail. None is for betting
            :func:`~bdpvi.accounting.conversions.least_failure`, for other estimators 1e-30: skewed
            costs make them fail more often than γ says, and there the largest skewness is tolerated
            (:mod:`bdpvi.accounting.reliability`).
        orders: the orders λ that ε is minimised over. With orders given, an event is added up when
            it is charged and forgotten, so memory does not grow with the number of events. By
            default they follow from the events: real ones where every event has a cost at those.
        conversion: "cks", "chernoff" (see :mod:`bdpvi.accounting.conversions`) or "hockey-stick"
            (see :mod:`bdpvi.accounting.losses`; for releases from Gaussian guides and for
            whole runs of DP-SGD, by panel). None is the last where it can be, "cks" elsewhere: it
            gives a third to a quarter of the ε that "cks" gives on the same panel.
        composition: how the costs of several events add up, by default :class:`ByPanel`.
        only_reliable: answer with the smallest ε whose estimate is reliable: at a lower order than
            the smallest ε of all, where exposed records weigh less. Not for "hockey-stick".

    >>> from bdpvi.accounting.events import NormCounts
    >>> norms = NormCounts.none(torch.arange(100), scope=Scope.STATIC)
    >>> norms = norms.add(torch.linspace(0, 1, 100), steps=1000)
    >>> accountant = BayesianAccountant()
    >>> accountant.step(SampledGaussian(noise_multiplier=4, rate=0.01, steps=1000, norms=norms))
    >>> round(accountant.get_epsilon(delta=1e-5), 3)
    0.256
    """

    def __init__(
        self,
        *,
        estimator: Estimator = estimators.student_t,
        failure_probability: float | None = None,
        orders: Orders | None = None,
        conversion: str | None = None,
        composition: Composition[Any] | None = None,
        only_reliable: bool = False,
    ) -> None:
        if conversion not in (None, *CONVERSIONS[: 2 if only_reliable else 3]):
            raise ValueError(
                f"conversion must be one of {CONVERSIONS}, and one of the first two with "
                f"only_reliable=True, which chooses an order; got {conversion!r}"
            )
        self.estimator = estimator
        if failure_probability is not None:
            validate.probability("failure_probability", failure_probability)
        self.failure_probability = failure_probability
        self.conversion, self.only_reliable = conversion, only_reliable
        self.composition: Composition[Any] = composition or ByPanel()
        self._totals = Totals(
            self.composition,
            lambda values, counted: estimator(values, failure_probability or SMALL, **counted),
            orders,
        )
        self._records: Mapping[str, Tensor] | None = None
        self._unit = "record"
        self._runs: tuple[tuple[SampledGaussian, int], ...] = ()
        self._taken = self._distinct = 0
        self._rounding = 0.0
        self._from_data = False

    def step(self, event: Event, *, count: int = 1) -> None:
        """Charge ``event`` ``count`` times.

        Raises:
            ValueError: if its records or directions differ from those of earlier events, or there
                are more events than the composition was made for.
        """
        validate.positive_int("count", count)
        limit = self.composition.limit
        unit = getattr(event, "unit", "record")
        if self._records is not None:
            check_same_records(self._records, event.records)
            self._totals.check(event)
            if unit != self._unit:
                raise ValueError(
                    f"event: its unit is {unit!r}, that of earlier ones {self._unit!r}"
                )
        if limit is not None and self._taken + count > limit:
            raise ValueError(
                f"count={count}: {self.composition.name} was fixed at {limit} events, and "
                f"{self._taken} have been charged"
            )
        self._totals.add(event, count)
        if isinstance(event, SampledGaussian):
            self._runs = (*self._runs, (event, count))
        self._records = event.records if self._records is None else self._records
        self._unit = unit
        self._taken += count
        self._distinct += 1
        self._rounding += count * event.rounding
        self._from_data |= event.from_data

    def __len__(self) -> int:
        """Return how many events were charged, each as often as it was."""
        return self._taken

    def get_epsilon(self, *, delta: float) -> float:
        """Return the Bayesian-DP ε at ``delta`` for everything charged so far.

        Never the ε of a path; see :meth:`spent`.
        """
        return self.spent(delta).epsilon

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
            ValueError: if nothing was charged, epsilon is not finite and at least 0, ``near``
                does not exceed what the estimates take of it, or costs are those of a path.
        """
        if self._path:
            raise ValueError("epsilon has no δ on a training path: use worst_case(delta)")
        validate.non_negative("epsilon", epsilon)
        validate.probability("near", near)
        directions, choices = self._of_panel()
        gamma, estimates = self._gamma(near), len(directions) * choices
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
        """Return the bound on c(λ) of one direction, such as "remove D‖D′", at orders (K,).

        It is at most the cost of the record that costs most, where that is known.
        """
        found, known = self._totals.cost(direction, order), self._releases()
        largest = known.largest_cost(order) if known else None
        if largest is None:
            return found
        return replace(found, log_bound=found.log_bound.minimum(largest))

    def tally(self) -> Tally:
        """Return all events as one, to be charged together with later ones elsewhere.

        Raises:
            ValueError: unless the accountant has fixed orders and composes by panel, and no costs
                are those of a path.
        """
        if self._path:
            raise ValueError("a tally does not say that its costs are those of a training path")
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
        validate.probability("delta", delta)
        directions, choices = self._charged()
        worst = self.worst_case(delta)
        if self._sample_size == 0 and (worst is not None or self._runs):
            bare = no_panel(delta, worst)
            if not self._runs:
                return bare
            return replace(bare, relation=self._runs[0][0].relation, unit=self._unit)
        used = betting if self._bets else self.estimator
        solve = partial(self._by_losses if self._losses else self._by_order, delta)
        terms = Terms(
            orders=self._totals.orders,
            choices=choices,
            failure_probability=self._gamma(delta),
            composition=self.composition.name,
            conversion=HOCKEY_STICK if self._losses else self.conversion or CKS,
            estimator=getattr(used, "__name__", repr(used)),
        )
        try:
            found = settle(solve, directions, delta, terms, self._rounding)
        except ValueError:
            if worst is None:
                raise
            # Whether there is an answer must not depend on the records where the worst case is one.
            kinds = [name.split()[0] for name in directions]
            found = nothing_spent(delta, kinds, self._sample_size)
            found = replace(found, epsilon=math.inf)
        guarantee = found.guarantee + (FOUND_FROM_DATA if self._from_data else "")
        if self._runs:
            relation, unit = self._runs[0][0].relation, self._runs[0][0].unit
            guarantee = guarantee.replace("record", unit)
            found = replace(found, relation=relation, unit=unit)
        if self._path:
            return on_path(replace(found, guarantee=guarantee, worst_case=worst))
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
        own, price = self.own_price(delta)
        counted = self._totals.counted(self._charged()[0][0])
        return exposure_of(own, price, delta, failure_probability, self._path, **counted)

    def per_record(self, delta: float) -> Tensor:
        """Return the ε of each record of the panel by itself, (m,). Secret; see :meth:`exposure`.

        On the path that ran, where costs are those of a path: no guarantee about the algorithm.
        """
        own, price = self.own_price(delta)
        return torch.tensor([price(float(value)) for value in own], dtype=torch.float64)

    def own_price(self, delta: float) -> Price:
        """Return a number per record, (m,), and the rising function that makes its own ε of it."""
        validate.probability("delta", delta)
        if self.composition != ByPanel():
            raise ValueError(f"composition={self.composition.name} has no cost per record")
        (directions, _), known = self._of_panel(), self._releases()
        price = known.own_price(directions, delta) if known else None
        if price is not None:
            return price
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

    def worst_case(self, delta: float) -> WorstCase | None:
        """Return the guarantee for every conceivable record, by public numbers alone.

        None without any event, where nothing bounds a record's influence, where events are of
        several types, or where a temperature was found from the records.
        """
        if self._from_data or self._releases() is None:
            return None
        charged = self._runs or self._totals.events
        return worst_case.epsilon([losses.repeated(e, n) for e, n in charged], delta)

    @property
    def _sample_size(self) -> int:
        return min(map(len, (self._records or {}).values()), default=0)

    @property
    def _path(self) -> bool:
        return any(event.norms and event.norms.scope is Scope.PATH for event, _ in self._runs)

    def _releases(self) -> Losses | None:
        """Return what all events cost each record, if all are of one type and were kept."""
        if self._runs and len(self._runs) == self._distinct:
            return losses.of(self._runs)
        return losses.of(self._totals.events)

    @property
    def _losses(self) -> bool:
        """Whether the conversion is by hockey sticks."""
        if self.conversion is not None or self.only_reliable or self._totals.fixed is not None:
            return self.conversion == HOCKEY_STICK
        return self._releases() is not None and self.composition == ByPanel()

    @property
    def _bets(self) -> bool:
        """Whether means are bounded by betting."""
        known = self._releases()
        return self._losses and known is not None and known.ranged

    def _gamma(self, delta: float) -> float:
        """Return γ of each estimate."""
        if self.failure_probability is not None:
            return self.failure_probability
        directions, choices = self._charged()
        return least_failure(delta, len(directions) * choices) if self._bets else SMALL

    def _charged(self) -> tuple[Sequence[str], int]:
        """Return the directions and the number of estimates, in each, behind an answer."""
        if self._records is None:
            raise ValueError("nothing has been charged yet, so there is no ε to report")
        if self._losses:
            return tuple(self._records), len(EPSILONS)
        choices = len(self._totals.orders) * self.composition.bounds(self._distinct)
        return tuple(self._records), choices

    def _of_panel(self) -> tuple[Sequence[str], int]:
        """Return what is charged, if there are records to ask."""
        if self._records is not None and self._sample_size == 0:
            raise ValueError("event has no panel of records: ask worst_case(delta)")
        return self._charged()

    def _usable(self, direction: str, delta: float) -> Callable[[Tensor], Estimate]:
        """Return the cost of one direction, infinite where an answer at δ may not come from."""
        if not self.only_reliable:
            return partial(self.cost, direction)
        (directions, choices), gamma = self._charged(), self._gamma(delta)
        tolerated = tolerated_rate(delta, gamma, len(directions) * choices)
        return lambda order: supported(self.cost(direction, order), gamma, tolerated)

    def _by_order(self, delta: float, direction: str, beta: float, enough: float) -> Solution:
        cost = self._usable(direction, delta)
        return solve_by_order(cost, beta, self._totals.orders, self.conversion or CKS)

    def _by_losses(self, delta: float, direction: str, beta: float, enough: float) -> Solution:
        deltas = self._deltas(direction, beta)
        epsilon, estimate = smallest_epsilon(
            deltas, beta, self.estimator, self._gamma(delta), enough
        )
        return Solution(epsilon, None, estimate)

    def _beta(self, direction: str, epsilon: float, rest: float, near: float) -> float:
        """Return what one direction has for δ at ε, less what the estimates take."""
        if self._losses:
            deltas = self._deltas(direction, rest)
            return mean_delta(deltas, epsilon, self.estimator, self._gamma(near))
        cost = self._usable(direction, near)
        orders, rule = self._totals.orders, self.conversion or CKS
        return minimise_delta(lambda order: cost(order).log_bound, epsilon, orders, rule).value

    def _deltas(self, direction: str, beta: float) -> Deltas:
        """Return every record's own δ as a function of ε."""
        known = self._releases()
        if known is None or self.composition != ByPanel():
            raise ValueError(
                "conversion='hockey-stick' needs releases from Gaussian guides, or whole runs of "
                "SampledGaussian, composed by panel and without fixed orders"
            )
        return known.deltas(direction, beta)
