"""The answer: the least ε over orders or a grid that covers all directions; is it reliable?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from bdpvi.bayesian.accounting.betting import betting
from bdpvi.bayesian.accounting.estimators import Estimator, MeanEstimate
from bdpvi.bayesian.accounting.losses import Deltas
from bdpvi.bayesian.accounting.panel import relation_of
from bdpvi.bayesian.accounting.reliability import predicted_miss_rate, reliable, why
from bdpvi.privacy.assumptions import Assumption, Evidence
from bdpvi.privacy.conversions import EPSILONS, Orders, minimise_epsilon, position, split_delta
from bdpvi.privacy.cost import Bound, Cost, Kind
from bdpvi.privacy.gaussian_dp import worst
from bdpvi.privacy.rounding import cap, rounding_delta
from bdpvi.privacy.solve import first
from bdpvi.privacy.worst_case import NOTHING

MISSES = 0.01
"""A result is reliable if the misses predicted from skewness, summed over all estimates used, are
at most this fraction of δ."""


class Solution(NamedTuple):
    """ε of one direction, its order, and the estimate behind it."""

    epsilon: float
    order: float | None
    estimate: MeanEstimate


_GAP = 1.2
"""Expected excess of moment bounds over the truth, as a logarithm: a factor of 3 to 4."""
_GUESSES = 12

Solve = Callable[[str, float, float], Solution]
"""Maps a direction, its β, and the ε of another direction to its own ε. It need not look for an ε
below that of the other direction."""


@dataclass(frozen=True)
class AnswerTerms:
    """Settings and names behind an answer; none depends on the ε that is found.

    Attributes:
        orders: orders λ that an answer may use.
        estimates: number of estimates, in all directions, that could have been the answer's.
        failure_probability: γ of each estimate.
        conversion, estimator: names for the report.
    """

    orders: Orders
    estimates: int
    failure_probability: float
    conversion: str
    estimator: str


def solve_by_order(
    cost: Callable[[Tensor], MeanEstimate], beta: float, orders: Orders, conversion: str
) -> Solution:
    """Return the smallest ε over ``orders`` at δ = β, given bounds on c(λ)."""
    epsilon, order = minimise_epsilon(lambda order: cost(order).log_bound, beta, orders, conversion)
    return Solution(epsilon, order, cost(torch.tensor([order], dtype=torch.float64)))


def smallest_epsilon(
    deltas: Deltas,
    beta: float,
    estimator: Estimator,
    failure_probability: float,
    enough: float = 0.0,
) -> tuple[float, MeanEstimate]:
    """Return the smallest ε of :data:`EPSILONS` with E_x′ δ_x′(ε) ≤ β, and the estimate there.

    δ_x′(ε) = sup_S P(S) − e^ε Q(S) of each record is what Bayesian DP (Triastcyn & Faltings 2020,
    Definition 15) averages, so no moment bound is lost. Every ε of the grid counts as an estimate
    used, since any of them could have been the answer.

    Args:
        deltas: δ_x′(ε) of every record.
        beta: the largest allowed mean.
        estimator: bounds the mean from the log of δ per record; see :func:`estimate`.
        failure_probability: γ of each estimate.
        enough: an ε of the grid. If it suffices it is the answer, even if a smaller one would do.

    Returns:
        ε, +inf where the largest of the grid is too small; and the estimate.
    """

    @cache
    def at(index: int) -> MeanEstimate:
        return estimate(deltas, float(EPSILONS[index]), estimator, failure_probability)

    @cache
    def guide(index: int) -> float:
        if deltas.guide is None:
            return float(at(index).log_bound)
        return float(deltas.guide(float(EPSILONS[index])).mean().log())

    low, high = -1, len(EPSILONS)
    least = position(enough) if math.isfinite(enough) else -1
    level = math.log(beta) + (_GAP if deltas.guide else 0.0)  # expected level of the guide
    guess = least if least >= 0 else first(guide, level, low, high)
    for attempt in range(len(EPSILONS)):
        above = float(at(guess).log_bound) - math.log(beta)
        low, high = (guess, high) if above > 0 else (low, guess)
        if high - low <= 1 or high == least:
            break
        level = guide(guess) - above
        far = attempt >= _GUESSES
        guess = (low + high) // 2 if far else first(guide, level, low, high)
    if high == len(EPSILONS):
        return math.inf, at(high - 1)
    return float(EPSILONS[high]), at(high)


def mean_delta(
    deltas: Deltas, epsilon: float, estimator: Estimator, failure_probability: float
) -> float:
    """Return the bound on E_x′ δ_x′ at the largest of :data:`EPSILONS` that is at most ``epsilon``.

    It is at most β if :func:`smallest_epsilon` at β is at most ``epsilon``; 1 below the grid.
    """
    index = position(epsilon)
    if index < 0:
        return 1.0
    bound = estimate(deltas, float(EPSILONS[index]), estimator, failure_probability)
    return float(bound.log_bound.exp())


def estimate(
    deltas: Deltas, epsilon: float, estimator: Estimator, failure_probability: float
) -> MeanEstimate:
    """Return the bound on the log of E_x′ δ_x′(ε).

    Uses ``estimator``, or :func:`~bdpvi.bayesian.accounting.betting.betting` if δ_x′(ε) has a bound
    over all conceivable records.
    """
    delta = deltas.at(epsilon)
    tiny = torch.finfo(delta.dtype).tiny
    upper = 1.0 if deltas.bound is None else max(deltas.bound(epsilon), tiny)
    logs = delta.clamp(min=tiny, max=upper).log().unsqueeze(0)
    counted = {} if deltas.counts is None else {"counts": deltas.counts}
    if deltas.bound is None:
        return estimator(logs, failure_probability, **counted)
    log_upper = math.log(upper)
    return betting(logs, failure_probability, log_upper, -math.inf, **counted)


def tolerated_rate(delta: float, failure_probability: float, estimates: int) -> float:
    """Return the miss rate of one estimate up to which a result is reliable.

    :data:`MISSES` of δ, divided among all estimates that could have been the answer's; at least
    γ.

    >>> round(tolerated_rate(1e-5, 1e-15, estimates=1000), 15)
    1e-10
    """
    return max(failure_probability, MISSES * delta / estimates)


def supported(estimate: MeanEstimate, failure_probability: float, tolerated: float) -> MeanEstimate:
    """Return the estimate with an infinite bound where it is not reliable.

    >>> from bdpvi.bayesian.accounting.estimators import student_t
    >>> light, heavy = torch.linspace(0, 1, 2000), torch.linspace(0, 1, 2000) ** 100 * 9
    >>> found = student_t(torch.stack([light, heavy]), 1e-6)
    >>> supported(found, 1e-6, tolerated=1e-5).log_bound.isfinite().tolist()
    [True, False]
    """
    trusted = reliable(estimate, failure_probability, tolerated)
    return replace(estimate, log_bound=estimate.log_bound.where(trusted, math.inf))


def settle(
    solve: Solve, directions: Sequence[str], delta: float, terms: AnswerTerms, error: float = 0.0
) -> Bound:
    """Return the Bayesian ε at ``delta``, of the most costly direction.

    Part of δ covers rounding, at the ε of the answer.

    Args:
        solve: ε of one direction.
        directions: directions of the neighbour relations, such as "remove D‖D′".
        delta: δ.
        terms: settings of the answer.
        error: θ of all draws, see :func:`bdpvi.privacy.rounding.rounding_delta`.

    Raises:
        ValueError: if δ does not exceed the parts used by estimates and rounding, or no order
            has a finite divergence.
    """
    epsilon = 0.0
    while True:
        within, rounding = cap(epsilon), rounding_delta(error, epsilon)
        if rounding >= delta and epsilon > 0:
            raise ValueError(why_none(delta, epsilon, error))
        result = _settle(solve, directions, delta, terms, rounding)
        epsilon = result.epsilon
        if not error or epsilon <= within:
            return result


COARSER = "A larger delta, fewer samples or a guide with a coarser grid (grid=) are covered"
_COARSEST = 2.0**-10
"""How much smaller θ is with the coarsest grid that is of use, beside that of a usual guide."""


def why_none(delta: float, epsilon: float, error: float) -> str:
    """Return why draws with this ε before rounding have none after it: the rounding, or ε."""
    if rounding_delta(error * _COARSEST, epsilon) < delta:
        return (
            f"delta={delta:g} does not cover the rounding of the draws at an ε of about "
            f"{epsilon:.3g}: (1 + e^ε) · {error:.2g}. {COARSER}"
        )
    found = f"an ε of about {epsilon:.3g}" if math.isfinite(epsilon) else "no finite ε"
    return (
        f"delta={delta:g}: the draws have {found} before they are rounded, which is too much for "
        "any statement: a record can move them too far for so few records. Draw fewer samples, "
        "at a higher temperature if it is below 1, or take fewer columns, a stronger prior or more "
        "records"
    )


def _settle(
    solve: Solve, directions: Sequence[str], delta: float, terms: AnswerTerms, rounding: float
) -> Bound:
    """Return the answer with the part ``rounding`` of δ set aside."""
    gamma, estimates = terms.failure_probability, terms.estimates
    beta = split_delta(delta, gamma, estimates) - rounding
    if not beta > 0:
        raise ValueError(
            f"delta={delta:g} does not cover the rounding of the draws: {rounding:.2g}. {COARSER}"
        )
    solutions: dict[str, Solution] = {}
    for name in directions:
        enough = max((s.epsilon for s in solutions.values()), default=0.0)
        solutions[name] = solve(name, beta, enough)
    direction = max(solutions, key=lambda n: (solutions[n].epsilon, _bound(solutions[n].estimate)))
    epsilon, order, estimate = solutions[direction]
    if not math.isfinite(epsilon):
        raise ValueError(
            f"order: no λ from {terms.orders.values[0]:g} to {terms.orders.values[-1]:g} has a "
            f"finite divergence in direction {direction!r}, or with only_reliable=True a reliable "
            "estimate of its mean: the influence of single records is too large. Bound every "
            "record's score, draw fewer samples, or take another temperature"
        )
    tolerated = tolerated_rate(delta, gamma, estimates)
    trusted, reason = _reliability(solve, solutions, beta, gamma, tolerated)
    evidence = Evidence(
        order=order,
        direction=direction,
        conversion=terms.conversion,
        estimator=terms.estimator,
        failure_probability=gamma,
        estimates=estimates,
        sample_size=estimate.sample_size,
        skewness=float(estimate.skewness[0]),
    )
    return Bound(
        kind=Kind.BAYESIAN,
        epsilon=epsilon,
        delta=delta,
        by=f"{terms.conversion}, {terms.estimator}",
        relation=relation_of(name.split()[0] for name in directions),
        reliable=trusted,
        reason=reason,
        assumptions=sampling_assumptions(directions)
        + (() if estimate.distribution_free else (Assumption.STUDENT_T,)),
        rounding=rounding,
        evidence=evidence,
    )


def sampling_assumptions(directions: Iterable[str]) -> tuple[Assumption, ...]:
    """Return the assumption that reference records represent the population.

    >>> [one.name for one in sampling_assumptions(["add D‖D′"])]
    ['PANEL_REPRESENTS_POPULATION']
    """
    own = (Assumption.LEAVE_ONE_OUT,) * any(name.startswith("remove") for name in directions)
    return (Assumption.PANEL_REPRESENTS_POPULATION, *own)


def _bound(estimate: MeanEstimate) -> float:
    return float(estimate.log_bound.reshape(-1)[0])


def _reliability(
    solve: Solve, solutions: dict[str, Solution], beta: float, gamma: float, tolerated: float
) -> tuple[bool, str]:
    """Return whether to rely on the largest ε, and why.

    The ε claims that no direction costs more, so every direction's estimate has to support it.
    """
    direction = max(solutions, key=lambda name: solutions[name].epsilon)
    epsilon = solutions[direction].epsilon
    estimates = {}
    for name, found in solutions.items():
        if found.order is None and not reliable(found.estimate, gamma, tolerated)[0]:
            found = solve(name, beta, epsilon)  # at ε, which may exceed its own
        estimates[name] = found.estimate

    def doubt(name: str) -> tuple[float, bool]:
        """Return 0 for an estimate that is reliable, else its predicted miss rate."""
        one = estimates[name]
        if reliable(one, gamma, tolerated)[0]:
            return 0.0, name == direction
        rate = predicted_miss_rate(one.skewness, one.sample_size, gamma)
        return float(rate[0]), name == direction

    least = max(estimates, key=doubt)
    reason = why(estimates[least], gamma, tolerated)
    trusted = bool(reliable(estimates[least], gamma, tolerated)[0])
    return trusted, reason if least == direction else f"in direction {least}: {reason}"


def nothing(delta: float, kinds: Iterable[str] = (), shares: Iterable[float] = ()) -> Cost:
    """Return the cost before anything was charged: ε = 0.

    Args:
        delta: δ.
        kinds: neighbour kinds of the panels, such as "remove"; without one there is no Bayesian ε.
        shares: shares of the population whose groups have a bound.

    >>> print(nothing(1e-5, ["remove"]).bayesian)
    Bayesian DP ε = 0 at δ = 1e-05 (certified)
    """
    free = worst(0.0, delta, NOTHING, distance=0.0)
    relation = relation_of(kinds)
    bayesian = replace(free, kind=Kind.BAYESIAN, relation=relation, reason=NOTHING)
    groups = tuple(replace(bayesian, kind=Kind.GROUP, share=s, confidence=1.0) for s in shares)
    return Cost(worst_case=free, bayesian=bayesian if relation else None, groups=groups)


def implied(found: Bound | None, by: Bound, relation: str) -> Bound:
    """Return the bound, or the one a worst case implies if no smaller one is certified.

    It is Bayesian, or for every group as ``found`` is.
    """
    if found is not None and found.certified and found.epsilon <= by.epsilon:
        return found
    return replace(
        by,
        kind=found.kind if found else Kind.BAYESIAN,
        share=found.share if found else 0.0,
        confidence=found.confidence if found else 0.0,
        relation=relation,
        reason="it is the worst-case ε, whose guarantee implies this one; no smaller ε is "
        "certified by this conversion",
        evidence=replace(found.evidence, order=None) if found and found.evidence else None,
    )
