"""What a route is, and its settings for what a ledger leaves of ε."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from bdpvi._runtime.keys import Key
from bdpvi.accounting import left
from bdpvi.accounting.book import Book, Priced
from bdpvi.accounting.events import PerturbedObjective, SampledGaussian
from bdpvi.accounting.gaussian import largest_variance
from bdpvi.accounting.solve import smallest
from bdpvi.accounting.transaction import Before
from bdpvi.models.contract import Model
from bdpvi.releasing.estimate import Drawn, Trained
from bdpvi.types import Budget, Dataset

if TYPE_CHECKING:
    from typing_extensions import Self


class Plan(Protocol):
    """A route's public settings for one release."""

    @property
    def event(self) -> PerturbedObjective | SampledGaussian:
        """What it costs, by its noise."""

    @property
    def events(self) -> tuple[Priced, ...]:
        """All that it costs."""

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
    """What a route may spend: ε at δ, together with a Gaussian mechanism of this μ² before it.

    The ledger's budget, if it has one, says which ε a refusal may name.
    """

    epsilon: float
    delta: float
    variance: float
    budget: Budget | None = None


Solved = Mapping[str, Tensor] | Drawn | Trained
"""What a route draws: latent variables, each (k, ...), or their posterior."""


def latents_of(drawn: Solved, draws: int, key: Key) -> dict[str, Tensor]:
    """Return the latent variables of what a route drew, of a posterior that many of them."""
    if isinstance(drawn, Trained):
        return dict(drawn.latents)
    if isinstance(drawn, Drawn):
        return drawn.estimate.draws(draws, key.child("draws"))
    return dict(drawn)


def planned(
    route: Suited[P], model: Model, features: int, before: Before, epsilon: float, delta: float
) -> P:
    """Return settings with which everything spent before and they cost at most ε, within 0.2 %.

    What was spent before counts as a Gaussian mechanism of that ε while settings are chosen; the
    noise follows from what it is. Where the work has a reservation there is more noise where the
    budget of the whole table needs it, as others may have spent beside it.

    Raises:
        ValueError: if nothing of ε is left.
    """
    epsilon, book = min(epsilon, left.HIGHEST), before.book
    variance = largest_variance(epsilon, delta) - left.room(book, epsilon, delta)
    limits, whole = [(book, Budget(epsilon, delta))], before.whole
    if whole is not None and whole.budget is not None:
        limits.append((whole, whole.budget))
    try:
        made = route.plan(model, features, Left(epsilon, delta, variance, (whole or book).budget))
        noise = made.event.noise_multiplier
        for spent, limit in limits:

            def total(noise: float, spent: Book = spent, limit: Budget = limit) -> float:
                return left.total(spent, limit.delta, *made.with_noise(noise).events)

            if spent is book or total(noise) > limit.epsilon:
                noise = smallest(total, limit.epsilon, noise, slack=left.SLACK)
    except ArithmeticError:
        raise left.unreachable(book, epsilon, delta) from None
    return made.with_noise(noise)  # type: ignore[return-value]
