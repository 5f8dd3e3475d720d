"""What releases cost every record of a panel by itself: its δ as a function of ε, and its own ε."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Protocol

import torch
from torch import Tensor

from bdpvi.accounting import conversions
from bdpvi.accounting.conversions import EPSILONS, position
from bdpvi.accounting.events import Event, PosteriorDraws, SampledGaussian
from bdpvi.accounting.gaussian import equal_covariance
from bdpvi.accounting.inversion import Inversion, LogMgf, inversions
from bdpvi.accounting.loss_distribution import deltas_on_grid, least_epsilons
from bdpvi.accounting.record_costs import seen_coin_cost, subsampled_gaussian_cost
from bdpvi.accounting.worst_case import epsilon as worst_case_of
from bdpvi.accounting.worst_case import gaussian_epsilon

Draws = Sequence[tuple[PosteriorDraws, int]]
"""Releases of the same records, and the number of times that each was charged."""
Price = tuple[Tensor, Callable[[float], float]]
"""A number per record, (m,), and the ε that it stands for, which rises with it."""

_SCREEN = torch.logspace(-1, 5, 49, dtype=torch.float64, device="cpu")
_NEGLIGIBLE = 1e-3
_TRIES = ((24, 0.0), (128, 0.0015))
"""Nodes and smoothing tried in turn; the second where the first is loose."""
_ANCHORS = EPSILONS[::32].clone()
"""The ε that contours are made for; one serves 16 of the grid on either side, up to 8.5 %."""
_REACH = 1.085


@dataclass(frozen=True, eq=False)
class Deltas:
    """Every record's own δ.

    Attributes:
        at: from ε to δ_x′(ε), (m,), or an upper bound on it.
        guide: a quicker upper bound. It decides nothing, but falls with ε much as the other does.
        bound: from ε to an upper bound on δ_x′(ε) over all conceivable records, if one is known.
        rough: a quicker and larger such bound, if there is one.
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
        """Return every record's own δ as a function of ε; β is the wanted mean of δ."""

    def largest_cost(self, order: Tensor) -> Tensor | None:
        """Return a bound on the cost of every conceivable record at orders (K,), if it is known."""

    def own_price(self, directions: Sequence[str], delta: float) -> Price | None:
        """Return what each record costs by itself, the larger of the directions, if known."""


def of(events: Sequence[tuple[Event, int]]) -> Losses | None:
    """Return what all events together cost each record; None where they are of several types.

    Args:
        events: of the same records, and the number of times that each was charged.
    """
    draws = [(event, n) for event, n in events if isinstance(event, PosteriorDraws)]
    runs = [(event, n) for event, n in events if isinstance(event, SampledGaussian)]
    if events and len(draws) == len(events):
        return OfDraws(draws)
    return OfRuns(runs) if events and len(runs) == len(events) else None


@dataclass(frozen=True, eq=False)
class OfDraws:
    """Losses of draws from Gaussian guides."""

    draws: Draws

    @property
    def ranged(self) -> bool:
        """Whether every panel has a bound."""
        return all(one.ranged for event, _ in self.draws for one in event.panels)

    def deltas(self, direction: str, beta: float) -> Deltas:
        """See :class:`Losses`."""
        return deltas_of(self.draws, direction, beta)

    def largest_cost(self, order: Tensor) -> Tensor | None:
        """Return None: the panel's bound is used by the hockey-stick conversion alone."""
        return None

    def own_price(self, directions: Sequence[str], delta: float) -> Price | None:
        """Return it where covariances are equal: ε rises with the variance of the loss."""
        variances = [loss_variance(self.draws, name) for name in directions]
        known = [v for v in variances if v is not None]
        if len(known) < len(variances):
            return None
        return larger(directions, known), partial(gaussian_epsilon, delta=delta)


@dataclass(frozen=True, eq=False)
class OfRuns:
    """Losses of whole runs of noisy clipped sums.

    Attributes:
        runs: the runs; of one relation and one unit.
    """

    runs: Sequence[tuple[SampledGaussian, int]]

    @property
    def ranged(self) -> bool:
        """True: clipping bounds every record."""
        return True

    @property
    def largest(self) -> list[SampledGaussian]:
        """The runs of a record that is at the largest norm in every step."""
        return [event.at(event.largest, event.steps * n) for event, n in self.runs]

    def deltas(self, direction: str, beta: float) -> Deltas:
        """Return every record's own δ as a function of ε, at most that of the largest cost."""
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
        """Return δ at all of ``EPSILONS``, (m + 1, ·): of each record, and of the largest cost."""
        kinds = [event.at(float(level)) for event, _ in self.runs for level in _levels(event)]
        return deltas_on_grid(kinds, self._counts(), self.largest, direction, beta)

    def _counts(self) -> Tensor:
        """Return counts of all runs side by side, (m + 1, ΣL); the last at the largest level."""
        parts = []
        for event, n in self.runs:
            largest = torch.zeros(1, len(_levels(event)), dtype=torch.int64)
            largest[0, -1] = event.steps
            own = largest[:0] if event.norms is None else event.norms.counts.cpu()
            parts.append(n * torch.cat([own, largest]))
        return torch.cat(parts, 1)

    def _variance(self) -> Tensor | None:
        """Return the variance of the privacy loss, (m + 1,), where every step uses all records.

        It is Σ_t d_t²/z², and the loss is Gaussian. The last is the largest there is.
        """
        if not all(event.rate == event.presence == 1 for event, _ in self.runs):
            return None
        each = [(_levels(event) / event.noise_multiplier).square() for event, _ in self.runs]
        return self._counts().double() @ torch.cat(each)

    def largest_cost(self, order: Tensor) -> Tensor:
        """Return the cost of a record that is at the largest sensitivity in every step, (K,)."""
        each = []
        for run in self.largest:
            one = subsampled_gaussian_cost(1.0, run.noise_multiplier, run.rate, order)
            each.append(run.steps * seen_coin_cost(one, run.presence))
        return torch.stack(each).sum(0)

    def own_price(self, directions: Sequence[str], delta: float) -> Price:
        """Return ε of each record, exact where every step uses all records, else on a grid."""
        variance = self._variance()
        if variance is not None:
            return variance[:-1], partial(gaussian_epsilon, delta=delta)
        deltas = torch.stack([self._composed(name, delta)[:-1] for name in directions])
        worst = worst_case_of([repeated(event, n) for event, n in self.runs], delta)
        own = least_epsilons(deltas, delta)
        return own.clamp(max=worst.epsilon if worst else math.inf), float


def larger(directions: Sequence[str], each: Sequence[Tensor]) -> Tensor:
    """Return the larger number of each record in both directions, kind of neighbour after kind.

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


def repeated(event: Event, count: int) -> Event:
    """Return the event that is so many of these, as far as the worst case sees it."""
    rounding = count * event.rounding
    if isinstance(event, PosteriorDraws):
        return replace(event, draws=count * event.draws, rounding=rounding)
    if isinstance(event, SampledGaussian):
        return replace(event, steps=count * event.steps, rounding=rounding, norms=None)
    raise TypeError(f"event has no worst case registered for its type: {event!r}")


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
        return lambda s: sum((n * log_mgf(s) for n, log_mgf in parts), torch.zeros(()))

    if variance is not None:
        found = Deltas(partial(equal_covariance, variance), counts=counts)
    else:
        found = certified(log_mgf_of, beta)
    close, rough = ranges(draws, direction)
    if close is not None and draws[0][0].panel(direction).records < 2:
        # Whether there is an answer must not depend on the records: all cost the most that one can.
        most = rough or close
        return Deltas(lambda epsilon: torch.full((2,), most(epsilon)).double(), bound=most)
    off = total_error(draws, direction)

    def at(epsilon: float) -> Tensor:
        """Return what is found, with both Gaussians' distance from the true ones."""
        delta = found.at(epsilon)
        if off is not None:
            delta = delta + (1 + math.exp(min(epsilon, 700.0))) * off
        return delta.clamp(max=1)

    return replace(found, at=at, bound=close, rough=rough)


def total_error(draws: Draws, direction: str) -> Tensor | None:
    """Return the total variation of all draws from what is priced, of each record, (m,)."""
    total: Tensor | None = None
    for event, n in draws:
        off = event.panel(direction).error
        if off is not None:
            more = n * event.draws * max(1.0, event.temperature**-0.5) * off
            total = more if total is None else total + more
    return total


Range = Callable[[float], float]


def ranges(draws: Draws, direction: str) -> tuple[Range | None, Range | None]:
    """Return bounds on δ(ε) over all conceivable records: a close one, and a quicker one if any.

    Draws from one fit are rotated into one; of several fits the moments' closed form adds up, where
    a fit of equal covariances has ½λ(λ + 1) times its variance. None where nothing bounds a record.
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
