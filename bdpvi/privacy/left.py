"""The remaining ε of a table after earlier charges."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi._ground.types import Budget
from bdpvi.privacy.book import ROW, Book, merged
from bdpvi.privacy.cost import Bound
from bdpvi.privacy.event import Event
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.privacy.gaussian_dp import gaussian_epsilon
from bdpvi.privacy.groups import row_by_row
from bdpvi.privacy.solve import smallest
from bdpvi.privacy.worst_case import epsilon as worst_case

SPENT = 0.01
"""If less than this share of μ² remains, ε counts as spent."""
HIGHEST = 50.0
"""A larger ε has the settings of this one: rounding would cost more than they gain."""
SLACK = 0.002
"""How far a total may stay below ε, as a share of ε."""


def together(book: Book, delta: float, planned: Mapping[Event, int]) -> Bound | None:
    """Return the joint cost of a book and more events; None without a guarantee.

    For several rows of a unit each event counts as it says; or, if one has no price for them but
    that of group privacy, all of them by it.
    """
    if book.events is None:
        return None
    every = (*book.events, *planned) if book.rows > 1 else ()
    if any(one.group_only for one in every):
        found = row_by_row(merged(book.events + Counter(planned)), book.rows, delta)
    else:
        found = worst_case(book.merged.plus(planned).events, delta)
    return found if found is None or book.unit == ROW else replace(found, unit=book.whose)


def total(book: Book, delta: float, *events: Event) -> float:
    """Return the ε of :func:`together`, infinite without a guarantee."""
    found = together(book, delta, Counter(events))
    return math.inf if found is None else found.epsilon


def room(book: Book, epsilon: float, delta: float) -> float:
    """Return the μ² that remains of ε, with earlier charges counted as a Gaussian of their ε.

    Raises:
        ValueError: if ε counts as spent.
    """
    spent, whole, rest = total(book, delta), largest_variance(epsilon, delta), 0.0
    if spent < epsilon:
        rest = whole - (largest_variance(spent, delta) if spent else 0.0)
    if not rest > SPENT * whole:
        raise unreachable(book, epsilon, delta)
    return rest


def gaussian(book: Book, epsilon: float, delta: float) -> SampledGaussian:
    """Return the Gaussian mechanism that brings the total to ε, or at most 0.2 % less.

    Raises:
        ValueError: if ε counts as spent.

    >>> made = gaussian(Book("a"), 1.0, 1e-5)
    >>> 0.998 <= total(Book("a"), 1e-5, made) <= 1.0
    True
    """
    epsilon = min(epsilon, HIGHEST)
    guess = book.rows * room(book, epsilon, delta) ** -0.5

    def delta_at(noise: float) -> float:
        return total(book, delta, SampledGaussian(noise_multiplier=noise))

    return SampledGaussian(noise_multiplier=smallest(delta_at, epsilon, guess, slack=SLACK))


def divided(book: Book, limit: Budget, works: int) -> list[tuple[float, float]]:
    """Return the ε of each of several works with equal shares of what a budget has left, rounded.

    Returns:
        For each work its own ε, and ε of everything after it. Both are Gaussian, with three digits,
        rounded down.

    Raises:
        ValueError: if ε counts as spent.

    >>> divided(Book("a"), Budget(3.0), 2)
    [(2.03, 2.03), (2.03, 3.0)]
    """
    rest = room(book, limit.epsilon, limit.delta) / validate.positive_int("plan", works)
    before = largest_variance(limit.epsilon, limit.delta) - works * rest
    own = _down(gaussian_epsilon(rest, limit.delta))
    each = (gaussian_epsilon(before + at * rest, limit.delta) for at in range(1, works))
    return [(own, _down(one)) for one in each] + [(own, limit.epsilon)]


def _down(epsilon: float) -> float:
    """Return ε with three digits, rounded down."""
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return float(f"{math.floor(epsilon / unit) * unit:.3g}")


def unreachable(book: Book, epsilon: float, delta: float) -> ValueError:
    """Return the error for an ε that is spent."""
    before = together(book, delta, {}) or "more than any worst-case ε"
    return ValueError(
        f"epsilon={epsilon:g} cannot be reached at delta={delta:g}: before this, {before} was "
        f"spent; {several(sum(charge.count for charge in book.charges), 'charge')} made before"
    )
