"""What a route is, and its settings for what a ledger leaves of ε."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from bdpvi._runtime.keys import Key
from bdpvi.accounting.book import Book, Entry, for_unit, merged, tally
from bdpvi.accounting.cost import Bound
from bdpvi.accounting.events import PerturbedObjective, SampledGaussian
from bdpvi.accounting.gaussian import largest_variance
from bdpvi.accounting.solve import smallest
from bdpvi.accounting.worst_case import epsilon as worst_case
from bdpvi.models.contract import Model
from bdpvi.releasing import guarantees
from bdpvi.releasing.estimate import Drawn, Trained
from bdpvi.types import Dataset

if TYPE_CHECKING:
    from typing_extensions import Self

_HIGHEST = 50.0
"""Settings for a larger ε are those for this one: rounding would cost more than they gain."""
_SLACK = 0.002


class Plan(Protocol):
    """A route's public settings for one release."""

    @property
    def event(self) -> PerturbedObjective | SampledGaussian:
        """What it costs."""

    def with_noise(self, noise_multiplier: float) -> Plan:
        """Return the settings with another noise multiplier, and the price that goes with it."""


P = TypeVar("P", bound=Plan)


@runtime_checkable
class Route(Protocol[P]):
    """A mechanism whose noise is part of the fit, by its public settings."""

    @property
    def draws(self) -> int:
        """Number of draws that a release has."""

    @property
    def count(self) -> float:
        """Share of μ² that buys a noisy number of records before there is a plan; 0 for none."""

    def of_rows(self, rows: float) -> Self:
        """Return the route for about so many records, which were counted with noise."""

    def with_draws(self, draws: int) -> Self:
        """Return the route with so many draws a release."""

    def suited(self, model: Model, data: Dataset, guide: object) -> Suited[P]:
        """Return the route with what model, guide and the data's public constants say.

        Raises:
            ValueError: if this model, data or guide cannot go this way.
        """


class Suited(Route[P], Protocol[P]):
    """A route for a model.

    What it charges follows from public settings, and is charged before :meth:`draw` looks at a
    record.
    """

    def plan(self, model: Model, features: int, left: Left) -> P:
        """Return the settings: a function of public numbers."""

    def predicting(self, model: Model, plan: P) -> Model:
        """Return the model that goes with the draws."""

    def said(self, plan: P) -> str:
        """Return what the settings rest on, in words that are published."""

    def caution(self, plan: P, delta: float) -> str:
        """Return what speaks against the release, by public facts; "" if nothing does."""

    def shares(self, model: Model, data: Dataset) -> tuple[Tensor, Tensor] | None:
        """Return ω‖z‖ and ω‖z‖² of each record over their largest; None where there are none."""

    def draw(self, model: Model, data: Dataset, plan: P, key: Key) -> Solved:
        """Return what is released, from a key's noise."""


class Left(NamedTuple):
    """What a route may spend: ε at δ, together with a Gaussian mechanism of this μ² before it."""

    epsilon: float
    delta: float
    variance: float


Solved = Mapping[str, Tensor] | Drawn | Trained
"""What a route draws: latent variables, each (k, ...), or their posterior."""


def latents_of(drawn: Solved, draws: int, key: Key) -> dict[str, Tensor]:
    """Return the latent variables of what a route drew, of a posterior that many of them."""
    if isinstance(drawn, Trained):
        return dict(drawn.latents)
    if isinstance(drawn, Drawn):
        return drawn.estimate.draws(draws, key.child("draws"))
    return dict(drawn)


def room(book: Book, epsilon: float, delta: float) -> float:
    """Return the μ² that is left of ε, where what was spent counts as a Gaussian of its ε.

    Raises:
        ValueError: if hardly anything is left.
    """
    spent, whole, rest = _spent(book, delta), largest_variance(epsilon, delta), 0.0
    if spent < epsilon:
        rest = whole - (largest_variance(spent, delta) if spent else 0.0)
    if not rest > guarantees.SPENT * whole:
        raise _unreachable(book, epsilon, delta)
    return rest


def planned(
    route: Suited[P], model: Model, features: int, book: Book, epsilon: float, delta: float
) -> P:
    """Return settings with which everything in the book and they cost at most ε, within 0.2 %.

    What was spent before counts as a Gaussian mechanism of that ε while settings are chosen; the
    noise follows from what it is.

    Raises:
        ValueError: if nothing of ε is left.
    """
    epsilon = min(epsilon, _HIGHEST)
    variance = largest_variance(epsilon, delta) - room(book, epsilon, delta)
    try:
        made = route.plan(model, features, Left(epsilon, delta, variance))

        def total(noise: float) -> float:
            found = _together(book, delta, made.with_noise(noise).event)
            return math.inf if found is None else found.epsilon

        noise = smallest(total, epsilon, made.event.noise_multiplier, slack=_SLACK)
    except ArithmeticError:
        raise _unreachable(book, epsilon, delta) from None
    return made.with_noise(noise)  # type: ignore[return-value]


def _together(book: Book, delta: float, *events: Any) -> Bound | None:
    if book.events is None:
        return None
    return worst_case(merged((*book.merged, *for_unit(Counter(events), book.rows))), delta)


def as_of(book: Book, entries: tuple[Entry, ...]) -> Book:
    """Return the book with these entries."""
    return replace(book, entries=entries, events=tally(entries))


def _spent(book: Book, delta: float) -> float:
    found = _together(book, delta)
    return math.inf if found is None else found.epsilon


def _unreachable(book: Book, epsilon: float, delta: float) -> ValueError:
    before = _together(book, delta)
    return ValueError(
        f"epsilon={epsilon:g} cannot be reached at delta={delta:g}: before this, {before} was "
        f"spent; {sum(one.count for one in book.entries)} charges were made before"
    )
