"""Rows and a mechanism whose noise is part of the fit: each release is solved anew from the rows.

There is no posterior to draw from. What is secret and kept are the encoded rows and the public
settings; what a release costs follows from the settings alone, and is charged before anything is
drawn.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from bdpvi._fit import Kept
from bdpvi._runtime import validate
from bdpvi._runtime.keys import EXPERIMENT, Key
from bdpvi.accounting.accountant import cost_of
from bdpvi.accounting.answer import nothing
from bdpvi.accounting.book import Book, Entry, for_unit, merged, tally
from bdpvi.accounting.cost import Bound, Cost
from bdpvi.accounting.events import PerturbedObjective, SampledGaussian
from bdpvi.accounting.gaussian import largest_variance
from bdpvi.accounting.ledger import Ledger
from bdpvi.accounting.solve import smallest
from bdpvi.accounting.worst_case import epsilon as worst_case
from bdpvi.datasets import exact
from bdpvi.models.contract import Model
from bdpvi.releasing import guarantees, receipts
from bdpvi.releasing.estimate import Drawn
from bdpvi.releasing.released import AIMED, Receipt, Release, flat
from bdpvi.types import (
    Budget,
    BudgetExceededError,
    Dataset,
    PrivacyUtilityWarning,
)

_MANY = 1e12
_HIGHEST = 50.0
"""Settings for a larger ε are those for this one: rounding would cost more than they gain."""
_ROWS = hashlib.sha256(b"rows").hexdigest()
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
    """A mechanism whose noise is part of the fit.

    What it charges follows from public settings, and is charged before :meth:`draw` looks at a
    record.
    """

    @property
    def draws(self) -> int:
        """Number of draws that a release has."""

    @property
    def count(self) -> float:
        """Share of μ² that buys a noisy number of records before there is a plan; 0 for none."""

    def of_rows(self, rows: float) -> Route[P]:
        """Return the route for about so many records, which were counted with noise."""

    def suited(self, model: Model, data: Dataset, guide: object) -> Route[P]:
        """Return the route with what the data's public constants say.

        Raises:
            ValueError: if this model, data or guide cannot go this way.
        """

    def with_draws(self, draws: int) -> Route[P]:
        """Return the route with so many draws a release."""

    def plan(self, model: Model, features: int, left: Left) -> P:
        """Return the settings: a function of public numbers."""

    def predicting(self, model: Model, plan: P) -> Model:
        """Return the model that goes with the draws."""

    def said(self, plan: P) -> str:
        """Return what the settings rest on, in words that are published."""

    def caution(self, plan: P, delta: float) -> str:
        """Return what speaks against the release, by public facts; "" if nothing does."""

    def draw(self, model: Model, data: Dataset, plan: P, key: Key) -> Mapping[str, Tensor] | Drawn:
        """Return the latent variables, each (k, ...), or their posterior, from a key's noise."""


class Left(NamedTuple):
    """What a route may spend: ε at δ, together with a Gaussian mechanism of this μ² before it."""

    epsilon: float
    delta: float
    variance: float


@dataclass(frozen=True, eq=False)
class Prepared:
    """Encoded rows, and how they are released from: what :meth:`bdpvi.Recipe.fit` returns.

    All of it is secret. :func:`bdpvi.release` solves once for each draw, :func:`bdpvi.spent` says
    what that has cost, and :func:`bdpvi.save_fit` writes it.

    Attributes:
        model: what is fitted.
        data: the rows.
        route: the mechanism.
        kept: where it spends and is kept.
    """

    model: Model
    data: Dataset
    route: Route[Any]
    kept: Kept

    @classmethod
    def of(
        cls,
        model: Model,
        data: Dataset,
        route: Route[Any],
        *,
        guide: object = None,
        ledger: Ledger | None = None,
        budget: Budget | None = None,
    ) -> Prepared:
        """Return what releases are solved from; ``ledger`` and ``budget`` as for :func:`bdpvi.fit`.

        Raises:
            ValueError: if model, data or guide cannot go this way; nothing is charged.
        """
        data.people.share(ledger, budget)
        return cls(model, data, route.suited(model, data, guide), Kept(data.people))

    @property
    def ledger(self) -> Ledger:
        """Everything that was spent on the table, by this and all else."""
        found: Ledger = self.kept.people.ledger
        return found

    @property
    def records(self) -> int:
        """N."""
        return len(self.data)

    @property
    def data_name(self) -> str:
        """What reports call the data."""
        return self.data.name

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The columns, in order."""
        return self.data.feature_names

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        """The constants that made the features."""
        return self.data.preprocessing

    @property
    def experiment(self) -> bool:
        """Whether a public seed chose the rows, so that nothing may be released."""
        return bool(self.data.preprocessing.get(EXPERIMENT))

    def cost(self, delta: float) -> Cost:
        """Return what everything on the table has cost in the worst case."""
        if not self.ledger.entries():
            return nothing(delta)
        found = self.ledger.worst_case(delta)
        more = guarantees.assumptions_of(self.preprocessing)
        return Cost(worst_case=found and found.assuming(*more))

    def release(
        self,
        draws: int | None = None,
        *,
        epsilon: float,
        delta: float = 1e-5,
        budget: Budget | None = None,
        generator: torch.Generator | None = None,
        purpose: str = "",
    ) -> Release:
        """Charge, then solve once for each draw; arguments and errors as of :func:`bdpvi.release`.

        ``epsilon`` is what everything that was spent on the table may reach, this included. The
        settings follow from that whole ε and the number of draws.
        """
        validate.positive("epsilon", epsilon)
        validate.probability("delta", delta)
        ledger = self.ledger
        with ledger.locked():
            receipts.check(self.kept.folder, ledger)
            seeded = None if generator is None else self.kept.use_once(generator)
            entry, before = self._charged(purpose)
            route = self._informed(draws, before, epsilon, delta, budget, seeded)
            plan = planned(route, self, before or ledger.book(), epsilon, delta)
            if entry is None:
                key = seeded or Key.fresh()
                entry = Entry(
                    kind="release",
                    of=self.kept.name,
                    events=(plan.event,),
                    purpose=purpose,
                    key=key.secret.hex() if purpose else "",
                )
                within(ledger, budget, entry.events, f"ε = {epsilon:g}")
                ledger.spend(entry, f"ε = {epsilon:g}")
            else:
                key = Key(bytes.fromhex(entry.key))
            number = 1 + ledger.entries().index(entry)
            total = self.cost(delta)
        if few := route.caution(plan, delta):
            warnings.warn(few, PrivacyUtilityWarning, stacklevel=4)
        drawn = route.draw(self.model, self.data, plan, key)
        latents = latents_of(drawn, route.draws, key)
        if isinstance(drawn, Drawn) and drawn.rounds:
            total = replace(total, path=cost_of(drawn.rounds, delta).path)
        receipts.keep(self.kept.folder, ledger, number, entry, total)
        made = self._released(latents, route, plan, total, epsilon, generator is not None)
        return replace(made, estimate=drawn.estimate) if isinstance(drawn, Drawn) else made

    def preview(self, draws: int, *, epsilon: float, delta: float, key: Key) -> dict[str, Tensor]:
        """Return draws as a release for ε would hold them, without charging: for the owner alone.

        Args:
            draws: number of draws.
            epsilon, delta: of the release.
            key: of all noise.
        """
        route, plan = self._exact(draws, epsilon, delta)
        return latents_of(route.draw(self.model, self.data, plan, key), draws, key)

    def previews(
        self, releases: int, *, epsilon: float, delta: float, key: Key
    ) -> dict[str, Tensor]:
        """Return the one draw of each of several releases, as :meth:`preview`."""
        route, plan = self._exact(1, epsilon, delta)
        keys = [key.child(one) for one in range(releases)]
        each = [latents_of(route.draw(self.model, self.data, plan, one), 1, one) for one in keys]
        return {name: torch.cat([one[name] for one in each]) for name in each[0]}

    def predicting(self, epsilon: float, delta: float) -> Model:
        """Return the model that predicts by the previews for ε."""
        route, plan = self._exact(1, epsilon, delta)
        return route.predicting(self.model, plan)

    def _exact(self, draws: int, epsilon: float, delta: float) -> tuple[Route[Any], Any]:
        """Return route and settings for the owner's eyes: N need not be counted with noise."""
        route = self.route.with_draws(draws)
        if route.count:
            route = route.of_rows(float(self.records))
        return route, planned(route, self, self.ledger.book(), epsilon, delta)

    def price(self, draws: int | None, epsilon: float, delta: float) -> tuple[Any, ...]:
        """Return the events that the next release of this kind will charge; N is bought first."""
        with self.ledger.locked():
            route = self._informed(draws, None, epsilon, delta, None, None)
            return (planned(route, self, self.ledger.book(), epsilon, delta).event,)

    def _charged(self, purpose: str) -> tuple[Entry | None, Book | None]:
        """Return what was charged for this purpose before, and the book as it was then."""
        book = self.ledger.book()
        for at, one in enumerate(book.entries):
            if purpose and (one.of, one.purpose) == (self.kept.name, purpose):
                return one, _as_of(book, book.entries[:at])
        return None, None

    def _informed(
        self,
        draws: int | None,
        before: Book | None,
        epsilon: float,
        delta: float,
        budget: Budget | None,
        key: Key | None,
    ) -> Route[Any]:
        """Return the route with the number of rows, which is counted, charged first, if need be."""
        route, ledger = self.route, self.ledger
        if draws is not None:
            route = route.with_draws(draws)
        if not route.count:
            return route
        entry = next(
            (one for one in ledger.entries() if (one.of, one.purpose) == (self.kept.name, _ROWS)),
            None,
        )
        if entry is None:
            assert before is None, "a charge without the count that it was planned by"
            deviation = (route.count * room(ledger.book(), epsilon, delta)) ** -0.5
            deviation *= ledger.rows_per_unit
            event = SampledGaussian(
                noise_multiplier=deviation, rounding=exact.count_rounding(deviation)
            )
            entry = Entry(
                kind="constants",
                of=self.kept.name,
                events=(event,),
                purpose=_ROWS,
                key=(Key.fresh() if key is None else key.child("rows")).secret.hex(),
            )
            book = ledger.book()
            counted = _as_of(book, (*book.entries, entry))
            if limits := [one for one in (budget, ledger.budget) if one is not None]:
                dry = planned(route.of_rows(_MANY), self, counted, epsilon, delta)
                for limit in limits:  # of both charges: the first alone would buy nothing
                    within(ledger, limit, (event, dry.event), f"ε = {epsilon:g}")
            ledger.charge(entry)
        assert entry.events
        (event,) = entry.events  # type: ignore[assignment]
        noise = exact.count_noise(1, event.noise_multiplier, Key(bytes.fromhex(entry.key)))
        return route.of_rows(self.records + float(noise[0]))

    def _released(
        self,
        latents: Mapping[str, Tensor],
        route: Route[Any],
        plan: Plan,
        total: Cost,
        epsilon: float,
        seeded: bool,
    ) -> Release:
        draws = len(next(iter(latents.values())))
        preprocessing = self.preprocessing
        worst = total.worst_case
        assert worst is not None  # what has none is not planned
        worst = worst.public(epsilon)
        return Release(
            samples=flat(latents),
            latents=latents,
            receipt=Receipt(
                worst_case=worst.seeded() if seeded else worst,
                about=guarantees.about(preprocessing).rstrip(".") + route.said(plan),
                source=AIMED,
                draws=draws,
                temperature=None,
                noise_scale=None,
                step=None,
            ),
            model=route.predicting(self.model, plan),
            feature_names=self.feature_names,
            preprocessing=preprocessing,
            secret=total,
        )


def latents_of(drawn: Mapping[str, Tensor] | Drawn, draws: int, key: Key) -> dict[str, Tensor]:
    """Return the latent variables of what a route drew, of a posterior that many of them."""
    if isinstance(drawn, Drawn):
        return drawn.estimate.draws(draws, key.child("draws"))
    return dict(drawn)


def within(ledger: Ledger, limit: Budget | None, events: Any, what: str) -> None:
    """Raise BudgetExceededError if ``events`` would bring the table over a limit."""
    if limit is None:
        return
    total = ledger.worst_case(limit.delta, events)
    if total is None or total.epsilon > limit.epsilon:
        raise BudgetExceededError(
            f"{what} would bring the total to {total}, over the budget of ε = "
            f"{limit.epsilon:g} at δ = {limit.delta:g}. Nothing was charged; {ledger.said()}"
        )


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


def planned(route: Route[P], fit: Prepared, book: Book, epsilon: float, delta: float) -> P:
    """Return settings with which everything in the book and they cost at most ε, within 0.2 %.

    What was spent before counts as a Gaussian mechanism of that ε while settings are chosen; the
    noise follows from what it is.

    Raises:
        ValueError: if nothing of ε is left.
    """
    epsilon = min(epsilon, _HIGHEST)
    variance = largest_variance(epsilon, delta) - room(book, epsilon, delta)
    try:
        made = route.plan(fit.model, fit.data.x.shape[1], Left(epsilon, delta, variance))

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


def _as_of(book: Book, entries: tuple[Entry, ...]) -> Book:
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
