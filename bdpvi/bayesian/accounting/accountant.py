"""The joint cost of events: :func:`cost_of`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.host import on_host
from bdpvi.bayesian.accounting import estimators, losses
from bdpvi.bayesian.accounting.answer import (
    AnswerTerms,
    Solution,
    implied,
    mean_delta,
    settle,
    smallest_epsilon,
    solve_by_order,
    supported,
    tolerated_rate,
)
from bdpvi.bayesian.accounting.betting import betting
from bdpvi.bayesian.accounting.bisection import bisected, of_mean
from bdpvi.bayesian.accounting.charges import Charged, Charges
from bdpvi.bayesian.accounting.estimators import Estimator, MeanEstimate
from bdpvi.bayesian.accounting.losses import Deltas, Losses, Price
from bdpvi.bayesian.accounting.panel import relation_of
from bdpvi.bayesian.accounting.quantiles import exposure_of
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.privacy import conversions, worst_case
from bdpvi.privacy.conversions import (
    CKS,
    EPSILONS,
    HOCKEY_STICK,
    SMALL,
    TESTS,
    least_failure,
    minimise_delta,
    split_delta,
)
from bdpvi.privacy.cost import Bound, Cost, Exposure, Kind
from bdpvi.privacy.event import Event
from bdpvi.privacy.rounding import cap, rounding_delta

_ENTRIES = 1 << 22
"""Entries in the largest tensor of costs."""
MANY = 10_000
"""From this many records on, each record's own ε uses fewer orders and is slightly larger."""


@on_host
def cost_of(
    events: Iterable[Event | Charged], delta: float, accounting: Accounting | None = None
) -> Cost:
    """Return the joint cost of events.

    Each direction of each neighbour relation is estimated separately and the largest ε counts: the
    cost is c(λ) = log E_x′ exp(λ Σ_t D_{λ+1}^(t)(x′)) in either order of D and D′. The same records
    are followed through all events, so no inequality is spent on composition.

    With the hockey-stick conversion, if events bound the cost of every conceivable record
    (:attr:`bdpvi.bayesian.accounting.panel.Panel.largest`),
    :func:`~bdpvi.bayesian.accounting.betting.betting` bounds the mean. The bound holds for every
    distribution of the records if they are independent draws from it. (The panel is the training
    table itself, and each record is compared with the others: such costs are exchangeable, but not
    quite independent.)

    Sensitivities observed on the path of a training run (``Scope.PATH``) give no guarantee for
    the algorithm: a record in the data bends the path so that its own later costs grow. They give
    ``path`` and no ``bayesian``.

    Args:
        events: for the same records; or pairs of an event and the number of times it was charged.
        delta: δ.
        accounting: how the Bayesian ε is computed.

    Raises:
        ValueError: if there is no event, records or units differ, δ does not exceed the parts used
            by the estimates and by rounding the draws, or no order has a finite divergence.

    >>> from bdpvi.privacy.events import SampledGaussian
    >>> from bdpvi.privacy.norms import NormCounts
    >>> from bdpvi._ground.types import Scope
    >>> norms = NormCounts.none(torch.arange(100), scope=Scope.STATIC)
    >>> norms = norms.add(torch.linspace(0, 1, 100), steps=1000)
    >>> run = SampledGaussian(noise_multiplier=4, rate=0.01, steps=1000, norms=norms)
    >>> cost = cost_of([run], delta=1e-5)
    >>> round(cost.bayesian.epsilon, 3), round(cost.worst_case.epsilon, 3)
    (0.253, 0.272)
    """
    return Account(events, accounting).cost(delta)


class Account(Charges):
    """Charged events, and questions about them; :func:`cost_of` answers the usual one.

    Args:
        events, accounting: as for :func:`cost_of`.
        estimator: upper bound on an expectation from sampled records, where betting does not apply.
    """

    def __init__(
        self,
        events: Iterable[Event | Charged],
        accounting: Accounting | None = None,
        *,
        estimator: Estimator = estimators.student_t,
    ) -> None:
        self.accounting, self.estimator = accounting or Accounting(), estimator
        super().__init__(events)
        self._found: dict[tuple[float, float], tuple[float, dict[str, MeanEstimate]]] = {}

    @on_host
    def cost(self, delta: float) -> Cost:
        """Return :func:`cost_of` these events."""
        validate.probability("delta", delta)
        worst = self.worst_case(delta)
        if self.sample_size == 0 and (worst is not None or not self.only_draws):
            return Cost(worst_case=worst)
        relation = relation_of(name.split()[0] for name in self.directions)
        found = self._estimated(delta, worst)
        if found is not None:
            found = replace(found, unit=f"one {self.unit}")
            found = found.assuming(*self.assumptions)
        if self.path:
            return Cost(worst_case=worst, path=found and _of_path(found, worst))
        if worst is not None:
            found = implied(found, worst, relation)
        return Cost(worst_case=worst, bayesian=found)

    def _estimated(self, delta: float, worst: Bound | None) -> Bound | None:
        """Return the ε estimated from the panel; None if only a worst case exists."""
        by = self._by_betting if self.bets else self._by_losses
        solve = partial(by if self._by_sticks else self._by_order, delta)
        used = betting if self.bets else self.estimator
        terms = AnswerTerms(
            orders=self.orders,
            estimates=self._estimates,
            failure_probability=self.gamma(delta),
            conversion=HOCKEY_STICK if self._by_sticks else self.accounting.conversion or CKS,
            estimator=getattr(used, "__name__", repr(used)),
        )
        try:
            result = settle(solve, self.directions, delta, terms, self._rounding)
        except ValueError:
            if worst is None:
                raise
            # With a worst case, whether there is an answer must not depend on the records.
            return None
        size = self.sample_size
        if size < 2 and result.evidence is not None:  # by the range alone
            return replace(result, evidence=replace(result.evidence, sample_size=size))
        return result

    @on_host
    def worst_case(self, delta: float) -> Bound | None:
        """Return the guarantee for every conceivable record, by public numbers alone.

        None if nothing bounds a record's influence, or events have several types.
        """
        if self._record_losses is None:
            return None
        return worst_case.epsilon([one for e, n in self.events for one in e.times(n)], delta)

    @on_host
    def get_delta(self, epsilon: float, *, near: float = 1e-5) -> float:
        """Return the Bayesian δ at ``epsilon``, which includes the part used by the estimates.

        It is at most δ if the Bayesian ε at δ is at most ``epsilon``, and far quicker to compute.
        As many estimates are counted: any order or ε could have been the answer. It is 1 if
        rounding and estimates use up ``near``.

        Args:
            epsilon: ε ≥ 0.
            near: δ near which the answer is expected or wanted. The hockey-stick conversion bounds
                records with a negligible δ, compared to this, only roughly. The answer is valid for
                every ``near``.

        Raises:
            ValueError: if epsilon is not finite and at least 0, ``near`` does not exceed the part
                used by the estimates, or costs belong to a training path.
        """
        if self.path:
            raise ValueError("epsilon has no δ on a training path: ask for the worst case")
        validate.non_negative("epsilon", epsilon)
        validate.probability("near", near)
        if not (self.bets and self.only_draws):  # of draws a range is enough
            self.need_panel()
        gamma, estimates = self.gamma(near), self._estimates
        beta = split_delta(near, gamma, estimates)
        # If rounding costs too much at this ε, use a smaller one: its δ also holds here.
        while epsilon > 1 and rounding_delta(self._rounding, epsilon) > beta / 2:
            epsilon = cap(epsilon) - 0.25
        rounding = rounding_delta(self._rounding, epsilon)
        rest = beta - rounding
        if not rest > 0:
            return 1.0
        beta = max(self._beta(name, epsilon, rest, near) for name in self.directions)
        return min(1.0, beta + estimates * gamma + rounding)

    @on_host
    def exposure(self, delta: float, failure_probability: float = 1e-6) -> Exposure:
        """Return the ε of single reference records for everything charged, each at ``delta``.

        Removed and added records are pooled. Exact where covariances are equal; elsewhere by the
        conversion of Canonne, Kamath and Steinke at 200 orders, which gives an ε about 10 % larger.

        Args:
            delta: δ of each record's own guarantee.
            failure_probability: γ of the certified quantile.
        """
        own, price = self.own_price(delta)
        counted = self.record_counts(*self.directions[::2])
        return exposure_of(own, price, delta, failure_probability, self.path, **counted)

    @on_host
    def per_record(self, delta: float) -> Tensor:
        """Return each reference record's own ε, (m,). Secret; see :meth:`exposure`.

        If costs belong to a training path, so does this ε: no guarantee for the algorithm.
        """
        own, price = self.own_price(delta)
        return torch.tensor([price(float(value)) for value in own], dtype=torch.float64)

    @on_host
    def own_price(self, delta: float) -> Price:
        """Return a number per record, (m,), and the increasing function that maps it to its own ε.

        Removed records come first, added records follow.
        """
        validate.probability("delta", delta)
        self.need_panel()
        price = (
            self._record_losses.own_price(self.directions, delta) if self._record_losses else None
        )
        if price is not None:
            return price
        each = [self._own_epsilon(name, delta) for name in self.directions]
        return losses.larger(self.directions, each), float

    @on_host
    def bound(self, direction: str, order: Tensor) -> MeanEstimate:
        """Return the bound on c(λ) of one direction, such as "remove D‖D′", at orders (K,).

        It is at most the cost of the most costly conceivable record, if that is known.
        """
        gamma = self.accounting.failure_probability or SMALL
        result = self.estimator(self.each(direction, order), gamma, **self.record_counts(direction))
        largest = self._record_losses.largest_cost(order) if self._record_losses else None
        if largest is None:
            return result
        return replace(result, log_bound=result.log_bound.minimum(largest))

    def deltas(self, direction: str, beta: float) -> Deltas:
        """Return every record's own δ as a function of ε."""
        if self._record_losses is None:
            raise ValueError(
                "conversion='hockey-stick' needs draws from Gaussian guides, or whole runs of "
                "SampledGaussian, and not both"
            )
        return self._record_losses.deltas(direction, beta)

    def _own_epsilon(self, direction: str, delta: float) -> Tensor:
        """Return each record's own ε, (m,)."""
        orders = self.orders.values
        some = orders[:: max(1, len(orders) // (200 if self.sample_size < MANY else 25))]
        best = torch.tensor(math.inf, dtype=torch.float64)
        for part in some.split(max(1, _ENTRIES // self.sample_size)):
            cost = self.each(direction, part)
            best = torch.minimum(best, conversions.epsilon(cost, part[:, None], delta).amin(0))
        return best

    @cached_property
    def _record_losses(self) -> Losses | None:
        """The losses of each record over all events, if these have one type."""
        return losses.of(self.events)

    @property
    def _by_sticks(self) -> bool:
        """Whether the conversion is "hockey-stick"."""
        if self.accounting.conversion is not None or self.accounting.only_reliable:
            return self.accounting.conversion == HOCKEY_STICK
        return self._record_losses is not None

    @property
    def bets(self) -> bool:
        """Whether betting bounds the means."""
        return self._by_sticks and self._record_losses is not None and self._record_losses.ranged

    @property
    def _rounding(self) -> float:
        """Total variation that δ covers: with "hockey-stick" a record's δ includes its own part."""
        return self.rounding + (0.0 if self._by_sticks else self.error)

    @property
    def _estimates(self) -> int:
        """Number of estimates that could have been the answer's."""
        if self.bets:
            return TESTS
        each = len(EPSILONS) if self._by_sticks else len(self.orders)
        return len(self.directions) * each

    def gamma(self, delta: float) -> float:
        """Return γ of each estimate."""
        if self.accounting.failure_probability is not None:
            return self.accounting.failure_probability
        return least_failure(delta) if self.bets else SMALL

    def _usable(self, direction: str, delta: float) -> Callable[[Tensor], MeanEstimate]:
        """Return the cost of one direction, infinite where ``only_reliable`` excludes it at δ."""
        if not self.accounting.only_reliable:
            return partial(self.bound, direction)
        gamma = self.gamma(delta)
        tolerated = tolerated_rate(delta, gamma, self._estimates)
        return lambda order: supported(self.bound(direction, order), gamma, tolerated)

    def _by_order(self, delta: float, direction: str, beta: float, enough: float) -> Solution:
        cost = self._usable(direction, delta)
        return solve_by_order(cost, beta, self.orders, self.accounting.conversion or CKS)

    def _by_betting(self, delta: float, direction: str, beta: float, enough: float) -> Solution:
        epsilon, estimates = self._bisected(beta, self.gamma(delta))
        return Solution(epsilon, None, estimates[direction])

    def _bisected(self, beta: float, gamma: float) -> tuple[float, dict[str, MeanEstimate]]:
        if (beta, gamma) not in self._found:  # one direction after the other
            tests = {n: of_mean(self.deltas(n, beta), beta, gamma) for n in self.directions}
            self._found[beta, gamma] = bisected(tests, beta)
        return self._found[beta, gamma]

    def _by_losses(self, delta: float, direction: str, beta: float, enough: float) -> Solution:
        deltas = self.deltas(direction, beta)
        epsilon, estimate = smallest_epsilon(
            deltas, beta, self.estimator, self.gamma(delta), enough
        )
        return Solution(epsilon, None, estimate)

    def _beta(self, direction: str, epsilon: float, rest: float, near: float) -> float:
        """Return one direction's δ at ε, without the part used by the estimates."""
        if self._by_sticks:
            deltas = self.deltas(direction, rest)
            return mean_delta(deltas, epsilon, self.estimator, self.gamma(near))
        cost, rule = self._usable(direction, near), self.accounting.conversion or CKS
        found = minimise_delta(lambda order: cost(order).log_bound, epsilon, self.orders, rule)
        return found.value


def _of_path(found: Bound, worst: Bound | None) -> Bound:
    """Return costs observed on a training path: at most the worst case with "hockey-stick".

    Moment bounds are comparable with Rényi DP and may exceed privacy loss distributions.
    """
    epsilon = found.epsilon
    if worst is not None and found.evidence is not None and found.evidence.order is None:
        epsilon = min(epsilon, worst.epsilon)
    return replace(found, kind=Kind.PATH, epsilon=epsilon)
