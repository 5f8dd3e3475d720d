"""The interface of a route, and its settings for the remaining ε."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, runtime_checkable

from bdpvi._ground.types import Budget, PrivacyUtilityWarning
from bdpvi.datasets.dataset import Data
from bdpvi.models.contract import Model
from bdpvi.noise.keys import Key
from bdpvi.privacy import left
from bdpvi.privacy.book import Book
from bdpvi.privacy.event import Event
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.privacy.perturbed_objective import PerturbedObjective
from bdpvi.privacy.solve import smallest
from bdpvi.releases.estimate import Output
from bdpvi.releases.transaction import Before

if TYPE_CHECKING:
    from typing_extensions import Self


class RouteSettings(Protocol):
    """A route's public settings for one release."""

    @property
    def event(self) -> PerturbedObjective | SampledGaussian:
        """The event of the noise."""

    @property
    def events(self) -> tuple[Event, ...]:
        """All its events."""

    def with_noise(self, noise_multiplier: float) -> RouteSettings:
        """Return the settings with another noise multiplier, and its price."""


P = TypeVar("P", bound=RouteSettings)


@runtime_checkable
class Route(Protocol[P]):
    """A mechanism whose noise is part of the fit, with public settings."""

    @property
    def draws(self) -> int:
        """Number of draws in a release."""

    @property
    def count(self) -> float:
        """Share of μ² for a noisy number of records before there is a plan; 0 for none."""

    def of_rows(self, rows: float) -> Self:
        """Return the route for about ``rows`` records, a noisy count."""

    def adapt(self, model: Model, data: Data, guide: object) -> Suited[P]:
        """Return the route adapted to model, guide and the data's preprocessing.

        Raises:
            ValueError: if the route does not suit this model, data or guide.
        """


class Suited(Route[P], Protocol[P]):
    """A route adapted to a model.

    Its price follows from public settings and is charged before :meth:`draw` reads a
    record.
    """

    def plan(self, model: Model, features: int, left: Allowance) -> P:
        """Return the settings, a function of public numbers."""

    def predicting(self, model: Model, plan: P) -> Model:
        """Return the model for predictions from the draws."""

    def words(self, plan: P) -> str:
        """Return the public assumptions of the settings, in words."""

    def caution(self, plan: P, delta: float) -> str:
        """Return reasons against the release, from public facts; "" if there are none."""

    def draw(self, model: Model, data: Data, plan: P, key: Key) -> Output:
        """Return the release, with the noise of a key."""


class Allowance(NamedTuple):
    """A route's allowance: ε at δ, jointly with an earlier Gaussian mechanism of this μ².

    ε is for all rows of one unit, at most ``rows``. The ledger's budget, if there is one, limits
    the ε that an error may suggest.
    """

    epsilon: float
    delta: float
    variance: float
    budget: Budget | None = None
    rows: int = 1


def planned(
    route: Suited[P],
    model: Model,
    features: int,
    before: Before,
    epsilon: float,
    delta: float,
    calls: int = 7,
) -> P:
    """Return settings that, with all earlier charges, cost at most ε, within 0.2 %.

    To choose settings, earlier charges count as a Gaussian mechanism of their ε; the noise then
    follows from their exact events. Within a reservation the noise is larger if the budget of the
    whole table requires it, as other works may have spent meanwhile. A warning is for the caller
    so many ``calls`` above.

    Warns:
        PrivacyUtilityWarning: of what a route cautions against. Nothing is charged yet, so that
            whoever makes it an error pays nothing.

    Raises:
        ValueError: if ε is spent.
    """
    epsilon, book = min(epsilon, left.HIGHEST), before.book
    variance = largest_variance(epsilon, delta) - left.room(book, epsilon, delta)
    limits, whole = [(book, Budget(epsilon, delta))], before.whole
    if whole is not None and whole.budget is not None:
        limits.append((whole, whole.budget))
    try:
        budget = (whole or book).budget
        made = route.plan(model, features, Allowance(epsilon, delta, variance, budget, book.rows))
        noise = made.event.noise_multiplier
        for spent, limit in limits:

            def total(noise: float, spent: Book = spent, limit: Budget = limit) -> float:
                return left.total(spent, limit.delta, *made.with_noise(noise).events)

            if spent is book or total(noise) > limit.epsilon:
                noise = smallest(total, limit.epsilon, noise, slack=left.SLACK)
        made = made.with_noise(noise)  # type: ignore[assignment]
        few = route.caution(made, delta)
    except ArithmeticError:
        raise left.unreachable(book, epsilon, delta) from None
    if few:
        warnings.warn(few, PrivacyUtilityWarning, stacklevel=1 + calls)
    return made
