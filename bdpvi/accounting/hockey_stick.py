"""ε from every record's own δ: the hockey-stick conversion, which uses no Rényi orders."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial

import torch
from torch import Tensor

from bdpvi.accounting import conversions
from bdpvi.accounting.betting import betting
from bdpvi.accounting.conversions import EPSILONS, position
from bdpvi.accounting.estimators import Estimate, Estimator
from bdpvi.accounting.events import PosteriorDraws
from bdpvi.accounting.gaussian import equal_covariance
from bdpvi.accounting.inversion import Inversion, LogMgf, inversions

Draws = Sequence[tuple[PosteriorDraws, int]]
"""Releases of the same records, and the number of times that each was charged."""

_SCREEN = torch.logspace(-1, 5, 49, dtype=torch.float64)
_NEGLIGIBLE = 1e-3
_TRIES = ((24, 0.0), (128, 0.0015))
"""Nodes and smoothing tried in turn; the second where the first is loose."""
_ANCHORS = EPSILONS[::32].clone()
"""The ε that contours are made for; one serves 16 of the grid on either side, up to 8.5 %."""
_REACH = 1.085
_GAP = 1.2
"""How far moment bounds are expected above the truth, in logarithms; they are 3 to 4 times it."""
_GUESSES = 12


@dataclass(frozen=True, eq=False)
class Deltas:
    """Every record's own δ.

    Attributes:
        at: from ε to δ_x′(ε), (m,), or an upper bound on it.
        guide: a quicker upper bound. It decides nothing, but falls with ε much as the other does.
        bound: from ε to an upper bound on δ_x′(ε) over all conceivable records, if one is known.
        counts: how many records each δ stands for, (m,); None is one each.
    """

    at: Callable[[float], Tensor]
    guide: Callable[[float], Tensor] | None = None
    bound: Callable[[float], float] | None = None
    counts: Tensor | None = None


def smallest_epsilon(
    deltas: Deltas,
    beta: float,
    estimator: Estimator,
    failure_probability: float,
    enough: float = 0.0,
) -> tuple[float, Estimate]:
    """Return the smallest ε of :data:`EPSILONS` with E_x′ δ_x′(ε) ≤ β, and the estimate there.

    δ_x′(ε) = sup_S P(S) − e^ε Q(S) of each record is what Bayesian DP (Triastcyn & Faltings 2020,
    Definition 15) takes the mean of, so no moment bound is spent. Every ε of the grid counts as an
    estimate used, since the answer could have been any.

    Args:
        deltas: δ_x′(ε) of every record.
        beta: the largest allowed mean.
        estimator: bounds the mean from the log of δ per record; see :func:`estimate`.
        failure_probability: γ of each estimate.
        enough: an ε of the grid: the answer if it suffices, even if a smaller one would.

    Returns:
        ε, +inf where the largest of the grid is too small; and the estimate.
    """

    @cache
    def at(index: int) -> Estimate:
        return estimate(deltas, float(EPSILONS[index]), estimator, failure_probability)

    @cache
    def guide(index: int) -> float:
        if deltas.guide is None:
            return float(at(index).log_bound)
        return float(deltas.guide(float(EPSILONS[index])).mean().log())

    low, high = -1, len(EPSILONS)
    least = position(enough) if math.isfinite(enough) else -1
    level = math.log(beta) + (_GAP if deltas.guide else 0.0)  # where the guide will stand
    guess = least if least >= 0 else _first(guide, level, low, high)
    for attempt in range(len(EPSILONS)):
        above = float(at(guess).log_bound) - math.log(beta)
        low, high = (guess, high) if above > 0 else (low, guess)
        if high - low <= 1 or high == least:
            break
        level = guide(guess) - above
        far = attempt >= _GUESSES
        guess = (low + high) // 2 if far else _first(guide, level, low, high)
    if high == len(EPSILONS):
        return math.inf, at(high - 1)
    return float(EPSILONS[high]), at(high)


def mean_delta(
    deltas: Deltas, epsilon: float, estimator: Estimator, failure_probability: float
) -> float:
    """Return the bound on E_x′ δ_x′ at the largest of :data:`EPSILONS` that is at most ``epsilon``.

    It is at most β where :func:`smallest_epsilon` at β is at most ``epsilon``; 1 below the grid.
    """
    index = position(epsilon)
    if index < 0:
        return 1.0
    bound = estimate(deltas, float(EPSILONS[index]), estimator, failure_probability)
    return float(bound.log_bound.exp())


def estimate(
    deltas: Deltas, epsilon: float, estimator: Estimator, failure_probability: float
) -> Estimate:
    """Return the bound on the log of E_x′ δ_x′(ε).

    By ``estimator``; by :func:`~bdpvi.accounting.betting.betting` where δ_x′(ε) has a bound over
    all conceivable records.
    """
    delta = deltas.at(epsilon)
    tiny = torch.finfo(delta.dtype).tiny
    logs = delta.clamp(min=tiny).log().unsqueeze(0)
    counted = {} if deltas.counts is None else {"counts": deltas.counts}
    if deltas.bound is None:
        return estimator(logs, failure_probability, **counted)
    log_upper = math.log(max(deltas.bound(epsilon), tiny))
    return betting(logs, failure_probability, log_upper, -math.inf, **counted)


def loss_variance(draws: Draws, direction: str) -> Tensor | None:
    """Return the variance of each record's privacy loss in all releases, (m,), if it is Gaussian.

    It is where covariances are equal. None elsewhere, and without any release.
    """
    each = [(event, n, event.pairs(direction)) for event, n in draws]
    if not each or not all(bool((pairs.r == 1).all()) for _, _, pairs in each):
        return None
    parts = [n * (event.draws * p.b2.sum(1) / event.temperature) for event, n, p in each]
    return torch.stack(parts).sum(0)


def variance_bound(draws: Draws, direction: str) -> float | None:
    """Return a bound on :func:`loss_variance` over all conceivable records, None if unknown."""
    total = 0.0
    for event, n in draws:
        largest = event.panel(direction).largest
        if largest is None:
            return None
        total += n * (event.draws * largest / event.temperature)
    return total


def deltas_of(draws: Draws, direction: str, beta: float) -> Deltas:
    """Return every record's own δ as a function of ε, exact where covariances are equal.

    Args:
        draws: the releases.
        direction: one of the events' directions.
        beta: the wanted mean of δ.
    """
    variance, bound = loss_variance(draws, direction), variance_bound(draws, direction)
    counts = draws[0][0].panel(direction).counts
    if variance is not None and bound is None:
        return Deltas(partial(equal_covariance, variance), counts=counts)
    if variance is not None:
        top = torch.tensor([bound], dtype=torch.float64)
        return Deltas(
            partial(equal_covariance, variance.clamp(max=top)),
            bound=lambda epsilon: float(equal_covariance(top, epsilon)),
            counts=counts,
        )
    pairs = [event.pairs(direction) for event, _ in draws]

    def log_mgf_of(records: Tensor | slice) -> LogMgf:
        parts = [
            (n * event.draws, own.select(records).log_mgf_for_inversion(event.temperature))
            for (event, n), own in zip(draws, pairs, strict=True)
        ]
        return lambda s: sum((n * log_mgf(s) for n, log_mgf in parts), torch.zeros(()))

    return certified(log_mgf_of, beta)


def moment_delta(log_mgf: LogMgf) -> Callable[[float], Tensor]:
    """Return a bound on δ_x′ as a function of ε: ``conversions.delta`` at its best λ."""
    orders = _SCREEN[:, None]
    at_zero = conversions.log_delta(log_mgf(_SCREEN), orders, 0.0)
    return lambda epsilon: torch.sub(at_zero, orders, alpha=epsilon).amin(0).exp().clamp(max=1)


def certified(log_mgf_of: Callable[[Tensor | slice], LogMgf], beta: float) -> Deltas:
    """Return a certified upper bound on δ_x′, tight for exposed records.

    A record keeps its moment bound where that is negligible beside ``beta``; the others are
    inverted (:mod:`bdpvi.accounting.inversion`). The inversion holds at every ε and is tight near
    the one its contour was made for, so nearby ε share a contour. Which ε contours are made for is
    fixed beforehand: the bound on a record's δ depends on that record and ε alone.

    Args:
        log_mgf_of: from positions of records to log E exp(s L) of all releases together.
        beta: the wanted mean of δ.
    """
    bound_of = moment_delta(log_mgf_of(slice(None)))

    @lru_cache(maxsize=1)
    def made_for(anchor: float) -> list[tuple[Tensor, Inversion]]:
        # Exposed at any ε that this contour will serve.
        exposed = (bound_of(anchor / _REACH) > _NEGLIGIBLE * beta).nonzero()[:, 0]
        return list(inversions(log_mgf_of, exposed, anchor, _TRIES, _NEGLIGIBLE * beta))

    def at(epsilon: float) -> Tensor:
        delta = bound_of(epsilon)
        anchor = float(_ANCHORS[(_ANCHORS.log() - math.log(epsilon)).abs().argmin()])
        for rows, inversion in made_for(anchor):
            delta[rows] = torch.minimum(delta[rows], inversion.bound(epsilon)[0])
        return delta

    return Deltas(at, bound_of)


def _first(falling: Callable[[int], float], level: float, low: int, high: int) -> int:
    """Return the least index strictly between low and high where ``falling`` is at most ``level``.

    The largest of them where it is nowhere.
    """
    between = range(low + 1, high - 1)
    return low + 1 + bisect_left(between, -level, key=lambda index: -falling(index))
