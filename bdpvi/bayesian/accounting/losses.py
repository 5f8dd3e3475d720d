"""Each reference record's own cost of releases: its δ as a function of ε, and its own ε."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce
from typing import Any, Protocol

import torch
from torch import Tensor

from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.privacy import conversions
from bdpvi.privacy.conversions import EPSILONS, position
from bdpvi.privacy.event import Event
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian import equal_covariance
from bdpvi.privacy.gaussian_dp import gaussian_epsilon
from bdpvi.privacy.inversion import Inversion, LogMgf, inversions
from bdpvi.privacy.loss_distribution import deltas_on_grid, least_epsilons
from bdpvi.privacy.sampled_moments import seen_coin_cost, subsampled_gaussian_cost
from bdpvi.privacy.worst_case import epsilon as worst_case_of

Draws = Sequence[tuple[GuideDraws, int]]
"""Releases of the same records, and the number of times that each was charged."""
Price = tuple[Tensor, Callable[[float], float]]
"""A number per record, (m,), and the increasing function that maps it to its ε."""

_SCREEN = torch.logspace(-1, 5, 49, dtype=torch.float64, device="cpu")
_NEGLIGIBLE = 1e-3
_TRIES = ((24, 0.0), (128, 0.0015))
"""Nodes and smoothing tried in turn; the second if the first is loose."""
_ANCHORS = EPSILONS[::32].clone()
"""The ε of contours; each serves 16 grid points on either side, up to 8.5 % away."""
_REACH = 1.085


@dataclass(frozen=True, eq=False)
class Deltas:
    """Each record's own δ.

    Attributes:
        at: maps ε to δ_x′(ε), (m,), or an upper bound on it.
        guide: a quicker upper bound that only steers the search: it decreases much as ``at`` does.
        bound: maps ε to an upper bound on δ_x′(ε) over all conceivable records, if one is known.
        rough: a quicker, larger such bound, if there is one.
        counts: how many records each δ stands for, (m,); None is one each.
    """

    at: Callable[[float], Tensor]
    guide: Callable[[float], Tensor] | None = None
    bound: Callable[[float], float] | None = None
    counts: Tensor | None = None
    rough: Callable[[float], float] | None = None


class Losses(Protocol):
    """Events of one type, whose privacy losses are known."""

    @property
    def ranged(self) -> bool:
        """Whether the cost of every conceivable record is bounded."""

    def deltas(self, direction: str, beta: float) -> Deltas:
        """Return each record's own δ as a function of ε; β is the target mean of δ."""

    def largest_cost(self, order: Tensor) -> Tensor | None:
        """Return a bound on every conceivable record's cost at orders (K,), if one is known."""

    def own_price(self, directions: Sequence[str], delta: float) -> Price | None:
        """Return each record's own price, the larger of the directions, if known."""


def of(events: Sequence[tuple[Event, int]]) -> Losses | None:
    """Return each record's losses over all events; None if they are known in several forms.

    Args:
        events: for the same records, with the number of times that each was charged.
    """
    forms: dict[str, Callable[[Any], Losses]] = {"pairs": OfDraws, "counts": OfRuns}
    found = {event.losses for event, _ in events}
    return forms[found.pop()](events) if len(found) == 1 and found <= forms.keys() else None


@dataclass(frozen=True, eq=False)
class OfDraws:
    """Losses of draws from Gaussian guides."""

    draws: Draws

    @property
    def ranged(self) -> bool:
        """Whether every panel has a bound."""
        return all(panel.ranged for event, _ in self.draws for panel in event.panels)

    def deltas(self, direction: str, beta: float) -> Deltas:
        """See :class:`Losses`."""
        return deltas_of(self.draws, direction, beta)

    def largest_cost(self, order: Tensor) -> Tensor | None:
        """Return None: only the hockey-stick conversion uses the panel's bound."""
        return None

    def own_price(self, directions: Sequence[str], delta: float) -> Price | None:
        """Return it if covariances are equal: ε then increases with the variance of the loss."""
        variances = [loss_variance(self.draws, name) for name in directions]
        known = [v for v in variances if v is not None]
        if len(known) < len(variances):
            return None
        return larger(directions, known), partial(gaussian_epsilon, delta=delta)


@dataclass(frozen=True, eq=False)
class OfRuns:
    """Losses of whole runs of noisy clipped sums.

    Attributes:
        runs: runs of one relation and one unit.
    """

    runs: Sequence[tuple[SampledGaussian, int]]

    @property
    def ranged(self) -> bool:
        """True: clipping bounds every record."""
        return True

    @property
    def largest(self) -> list[SampledGaussian]:
        """The runs of a record with the largest norm in every step."""
        return [event.at(event.largest, event.steps * n) for event, n in self.runs]

    def deltas(self, direction: str, beta: float) -> Deltas:
        """Return each record's own δ as a function of ε, at most that of the largest cost."""
        variance = self._variance()
        if variance is not None:
            top, own = variance[-1:], variance[:-1].minimum(variance[-1:])
            return Deltas(
                partial(equal_covariance, own),
                bound=lambda epsilon: float(equal_covariance(top, epsilon)),
            )
        composed = self._composed(direction, beta)
        # Below the grid, at position -1, every δ counts as 1.
        found = torch.cat([composed.minimum(composed[-1]), torch.ones(len(composed), 1)], 1)
        return Deltas(
            lambda epsilon: found[:-1, position(epsilon)],
            bound=lambda epsilon: float(found[-1, position(epsilon)]),
        )

    def _composed(self, direction: str, beta: float) -> Tensor:
        """Return δ at all of ``EPSILONS``, (m + 1, ·), for each record and for the largest cost."""
        kinds = [event.at(float(level)) for event, _ in self.runs for level in _levels(event)]
        return deltas_on_grid(kinds, self._counts(), self.largest, direction, beta)

    def _counts(self) -> Tensor:
        """Return counts of all runs side by side, (m + 1, ΣL); the last row has the top level."""
        parts = []
        for event, n in self.runs:
            largest = torch.zeros(1, len(_levels(event)), dtype=torch.int64)
            largest[0, -1] = event.steps
            own = largest[:0] if event.norms is None else event.norms.counts.cpu()
            parts.append(n * torch.cat([own, largest]))
        return torch.cat(parts, 1)

    def _variance(self) -> Tensor | None:
        """Return the variance of the privacy loss, (m + 1,), if every step uses all records.

        It is Σ_t d_t²/z², and the loss is Gaussian. The last value is the largest possible.
        """
        if not all(event.rate == event.presence == 1 for event, _ in self.runs):
            return None
        each = [(_levels(event) / event.noise_multiplier).square() for event, _ in self.runs]
        return self._counts().double() @ torch.cat(each)

    def largest_cost(self, order: Tensor) -> Tensor:
        """Return the cost of a record with the largest sensitivity in every step, (K,)."""
        each = []
        for run in self.largest:
            one = subsampled_gaussian_cost(1.0, run.noise_multiplier, run.rate, order)
            each.append(run.steps * seen_coin_cost(one, run.presence))
        return torch.stack(each).sum(0)

    def own_price(self, directions: Sequence[str], delta: float) -> Price:
        """Return each record's ε, exact if every step uses all records, else on a grid."""
        variance = self._variance()
        if variance is not None:
            return variance[:-1], partial(gaussian_epsilon, delta=delta)
        deltas = torch.stack([self._composed(name, delta)[:-1] for name in directions])
        worst = worst_case_of([one for event, n in self.runs for one in event.times(n)], delta)
        own = least_epsilons(deltas, delta)
        return own.clamp(max=worst.epsilon if worst else math.inf), float


def larger(directions: Sequence[str], each: Sequence[Tensor]) -> Tensor:
    """Return each record's larger number of both directions, one neighbour kind after another.

    >>> kinds = ("remove D‖D′", "remove D′‖D", "add D‖D′", "add D′‖D")
    >>> larger(kinds, [torch.tensor(one) for one in ([1, 5], [2, 4], [3], [0])]).tolist()
    [2, 5, 3]
    """
    kinds: dict[str, list[Tensor]] = {}
    for name, values in zip(directions, each, strict=True):
        kinds.setdefault(name.split()[0], []).append(values)
    return torch.cat([torch.stack(both).amax(0) for both in kinds.values()])


def _levels(event: SampledGaussian) -> Tensor:
    if event.norms is None:
        return torch.tensor([event.largest], dtype=torch.float64)
    return event.norms.levels


def loss_variance(draws: Draws, direction: str) -> Tensor | None:
    """Return the variance of each record's privacy loss over all releases, (m,), if it is Gaussian.

    It is Gaussian if covariances are equal. None otherwise, and without any release.
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
    """Return each record's own δ as a function of ε, exact if covariances are equal.

    Args:
        draws: the releases.
        direction: one of the events' directions.
        beta: the target mean of δ.
    """
    variance, bound = loss_variance(draws, direction), variance_bound(draws, direction)
    counts = draws[0][0].panel(direction).counts
    if variance is not None and bound is not None:
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
        return lambda s: reduce(torch.Tensor.add_, (f(s).mul_(n) for n, f in parts))

    if variance is not None:
        found = Deltas(partial(equal_covariance, variance), counts=counts)
    else:
        found = certified(log_mgf_of, beta)
    close, rough = ranges(draws, direction)
    if close is not None and draws[0][0].panel(direction).records < 2:
        # Whether there is an answer must not depend on the records: each gets the largest cost.
        most = rough or close
        return Deltas(
            lambda epsilon: torch.full((2,), most(epsilon), dtype=torch.float64), bound=most
        )
    off = total_error(draws, direction)

    def at(epsilon: float) -> Tensor:
        """Return δ, with both Gaussians' distance from the true ones included."""
        delta = found.at(epsilon)
        if off is not None:
            delta = delta + (1 + math.exp(min(epsilon, 700.0))) * off
        return delta.clamp(max=1)

    return replace(found, at=at, bound=close, rough=rough)


def total_error(events: Sequence[tuple[Event, int]], direction: str) -> Tensor | None:
    """Return each record's total variation between all events and the priced ones, (m,)."""
    found = [(event.error(direction), n) for event, n in events]
    known = [n * off for off, n in found if off is not None]
    return torch.stack(known).sum(0) if known else None


Range = Callable[[float], float]


def ranges(draws: Draws, direction: str) -> tuple[Range | None, Range | None]:
    """Return bounds on δ(ε) over all conceivable records: a tight one, and a quicker one if any.

    Draws from one fit are rotated into one. Over several fits the closed form of the moments adds
    up; equal covariances give ½λ(λ + 1) times the variance. None if nothing bounds a record.
    """
    panels = [event.panel(direction) for event, _ in draws]
    if not all(panel.ranged for panel in panels):
        return None, None
    draw = [n * event.draws for event, n in draws]
    weight = [k / event.temperature for k, (event, _) in zip(draw, draws, strict=True)]

    def moments(order: Tensor) -> Tensor:
        total = torch.zeros_like(order)
        for panel, k, w in zip(panels, draw, weight, strict=True):
            if panel.influence is not None:
                total = total + panel.influence.log_moment(order, direction, k, w)
            else:
                total = total + order * (order + 1) / 2 * (w * (panel.largest or 0.0))
        return total

    every, first = moments(_SCREEN), panels[0].influence

    def closed(epsilon: float) -> float:
        return float(conversions.delta(every, _SCREEN, epsilon).min())

    if first is None or any(panel is not panels[0] for panel in panels):
        return closed, None
    return lambda e: first.delta(e, direction, sum(draw), math.fsum(weight)), closed


def moment_delta(log_mgf: LogMgf) -> Callable[[float], Tensor]:
    """Return a bound on δ_x′ as a function of ε: ``conversions.delta`` at its best λ."""
    orders = _SCREEN[:, None]
    at_zero = conversions.log_delta(log_mgf(_SCREEN), orders, 0.0)
    return lambda epsilon: torch.sub(at_zero, orders, alpha=epsilon).amin(0).exp().clamp(max=1)


def certified(log_mgf_of: Callable[[Tensor | slice], LogMgf], beta: float) -> Deltas:
    """Return a certified upper bound on δ_x′, tight for exposed records.

    A record keeps its moment bound if that is negligible compared to ``beta``; the others are
    inverted (:mod:`bdpvi.privacy.inversion`). The inversion is valid at every ε and tight near
    that of its contour, so nearby ε share a contour. The ε of contours are fixed beforehand: the
    bound on a record's δ depends only on that record and ε.

    Args:
        log_mgf_of: maps positions of records to log E exp(s L) over all releases.
        beta: the target mean of δ.
    """
    bound_of = moment_delta(log_mgf_of(slice(None)))

    @lru_cache(maxsize=1)
    def made_for(anchor: float) -> list[tuple[Tensor, Inversion]]:
        # Exposed at any ε of this contour.
        exposed = (bound_of(anchor / _REACH) > _NEGLIGIBLE * beta).nonzero()[:, 0]
        return list(inversions(log_mgf_of, exposed, anchor, _TRIES, _NEGLIGIBLE * beta))

    def at(epsilon: float) -> Tensor:
        delta = bound_of(epsilon)
        near = math.log(max(epsilon, float(_ANCHORS[0])))
        anchor = float(_ANCHORS[(_ANCHORS.log() - near).abs().argmin()])
        for rows, inversion in made_for(anchor):
            delta[rows] = torch.minimum(delta[rows], inversion.bound(epsilon)[0])
        return delta

    return Deltas(at, bound_of)
