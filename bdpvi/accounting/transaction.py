"""The only code that spends: plan, check and charge in one locked step, then a key to draw from.

Whatever is released goes the same way. A mechanism plans from public facts and from what the ledger
holds. Under the ledger's lock the plan is held against the budget and charged, durably, and only
then is there a key, from which all noise of the charge follows. The lock is not held while the
mechanism draws.

A key follows from the secret of the work and from everything that the noise must not be shared by:
the table, settings and schema that the secret was made for, unit, ledger, step and price. So the
same work after an interruption draws the same bits and pays nothing, and another price has other
noise. The ledger holds a hash of the key, never the key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from bdpvi._runtime.keys import Key
from bdpvi.accounting.book import ENDED, RESERVED, Book, Charge, Entry, Priced
from bdpvi.accounting.cost import Assumption, Bound
from bdpvi.accounting.kept import RecordLosses, keep
from bdpvi.accounting.ledger import Ledger
from bdpvi.accounting.left import gaussian, together

S = TypeVar("S")
C = TypeVar("C", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Plan(Generic[S]):
    """What a mechanism is going to do, decided from public facts before anything is drawn.

    Attributes:
        kind: of the charge, one of :data:`~bdpvi.accounting.book.KINDS`.
        what: it is, in words, for a refusal.
        events: what it costs in the worst case; None where nothing bounds a record.
        settings: of the mechanism.
        count: how often, each time at this price.
        charge: the draws from a guide, if that is what it is.
        within: whether the mechanism held the budget itself, in another currency.
        losses: what the draws of the work cost each record, to be kept with the charge.
        assumptions: what the guarantee rests on.
    """

    kind: str
    what: str
    events: tuple[Priced, ...] | None
    settings: S
    count: int = 1
    charge: Charge | None = None
    within: bool = False
    losses: RecordLosses | None = None
    assumptions: tuple[Assumption, ...] = ()


@dataclass(frozen=True)
class Before:
    """What a plan may know of the ledger.

    Attributes:
        book: what the ε of this work counts: everything that was spent on the table, or by this
            work alone. Within a reservation that is what was spent before it, and by this work.
        whole: within a reservation, everything spent on the table but what is reserved.
        made: the charge itself, where an interrupted call has made it already.
    """

    book: Book
    whole: Book | None = None
    made: Entry | None = None


class Mechanism(Protocol[S, C]):
    """Something random that is computed from records and released."""

    @property
    def step(self) -> str:
        """Which step of the work it is; a step is charged once."""

    def plan(self, before: Before) -> Plan[S]:
        """Return what will be done: a function of public facts and of what was spent before.

        Raises:
            ValueError, BudgetExceededError: nothing is charged.
        """

    def draw(self, plan: Plan[S], key: Key) -> C:
        """Return what is released: a function of the records, the plan and the key alone."""


@dataclass(frozen=True, eq=False)
class Transaction:
    """One work on one ledger.

    Args:
        ledger: that is charged.
        secret: what all keys of the work follow from. It was made for this work and no other.
        facts: digest of the table, settings and schema of the work.
        name: what the ledger calls the work.
        alone: whether the work's ε is of itself alone, not of everything spent on the table.
        kept: whether the secret outlives this process, so that an interrupted work can go on.

    >>> from bdpvi.accounting.events import SampledGaussian
    >>> class Count:
    ...     step = "count"
    ...     def plan(self, before):
    ...         price = SampledGaussian(noise_multiplier=10.0)
    ...         return Plan(kind="release", what="a count", events=(price,), settings=10.0)
    ...     def draw(self, plan, key):
    ...         return 1000 + int(plan.settings * (key.coins(1)[0] - 0.5))
    >>> work = Transaction(Ledger(), Key.of_seed(0))
    >>> first, again = work.perform(Count()), work.perform(Count())
    >>> first == again, len(work.ledger.entries())
    (True, 1)
    """

    ledger: Ledger
    secret: Key = field(default_factory=Key.fresh, repr=False)
    facts: str = ""
    name: str = ""
    alone: bool = False
    kept: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.secret.work)

    def perform(self, mechanism: Mechanism[Any, C]) -> C:
        """Plan, charge and draw.

        Raises:
            BudgetExceededError: if the budget does not suffice; nothing is charged or drawn.
            ValueError: if the mechanism refuses, or the step was charged from another secret or at
                another price; nothing is charged or drawn.
        """
        plan, key, _ = self.charge(mechanism)
        return mechanism.draw(plan, key)

    def charge(
        self, mechanism: Mechanism[S, Any], *, last: bool = False
    ) -> tuple[Plan[S], Key, Entry]:
        """Plan and charge; return the plan, the key to draw from, and the charge.

        Args:
            mechanism: the step.
            last: whether the work charges nothing after it: what is still reserved is given up.
        """
        ledger, step = self.ledger, mechanism.step
        with ledger.locked():
            book = ledger.book()
            at = self.made(book, step)
            made = None if at is None else book.entries[at]
            plan = mechanism.plan(self._before(book, at))
            entry = Entry(
                kind=plan.kind,
                of=self.name,
                charge=plan.charge,
                events=plan.events,
                count=plan.count,
                purpose=step,
            )
            key = self._key(book, entry)
            entry = replace(entry, seal=seal(key))
            if made is None:
                if not plan.within:
                    ledger.check_budget(entry, plan.what)
                if plan.losses is not None:
                    keep(ledger, self.name, plan.losses)
                ledger.charge(entry)
            elif made != entry:
                raise ValueError(
                    f"{step} of this work was charged under another key or at another cost: its "
                    "draws cannot be reproduced. The charge stays; choose another folder for "
                    "this work"
                )
            if last:
                self.end()
        return plan, key, entry

    def made(self, book: Book, step: str) -> int | None:
        """Return the place of the charge of a step, if it was made."""
        own = (at for at, e in enumerate(book.entries) if (e.of, e.purpose) == (self.name, step))
        return next(own, None)

    @contextmanager
    def reserved(self, epsilon: float, delta: float, what: str) -> Iterator[None]:
        """Set everything aside that the steps inside may spend, before the first of them.

        What is set aside is a Gaussian mechanism with which everything costs ε at δ. It counts for
        others, in place of what this work has charged, until the last step is charged, or the work
        is refused and has spent what it charged until then. An interrupted work that can go on
        keeps what it reserved.

        Raises:
            BudgetExceededError: if the budget does not suffice; nothing is set aside.
            ValueError: if hardly anything of ε is left.
        """
        with self.ledger.locked():
            if not any(map(self._reserves, self.ledger.entries())):
                aside = (gaussian(self.before(), epsilon, delta),)
                entry = Entry(kind=RESERVED, of=self.name, events=aside)
                self.ledger.check_budget(entry, what)
                self.ledger.charge(entry)
        try:
            yield
        except BaseException as error:
            if isinstance(error, ValueError) or not self.kept:
                self.end()
            raise

    def total(self, delta: float) -> Bound:
        """Return what the ε of this work counts has cost.

        Raises:
            ValueError: if something of it has no worst-case guarantee.
        """
        found = together(self.counted(), delta, {})
        if found is None:
            raise ValueError(f"no worst-case guarantee is known; {self.ledger.said()}")
        return found

    def counted(self) -> Book:
        """Return everything that the ε of this work counts."""
        return self._scope(self.ledger.book())

    def before(self) -> Book:
        """Return what the ε of this work counts of what was spent before it."""
        book = self.ledger.book()
        own = (at for at, one in enumerate(book.entries) if one.of == self.name)
        return self._scope(book.of_entries(book.entries[: next(own, None)]))

    def end(self) -> None:
        """Give up what was reserved and not charged: there is nothing more to come."""
        with self.ledger.locked():
            if self.name in self.ledger.book().opened:
                self.ledger.charge(Entry(kind=ENDED, of=self.name))

    def _reserves(self, entry: Entry) -> bool:
        return entry.kind == RESERVED and entry.of == self.name

    def _before(self, book: Book, at: int | None) -> Before:
        """Return what was spent before the step that is charged at this place, or comes now."""
        made = None if at is None else book.entries[at]
        past = book if at is None else book.of_entries(book.entries[:at])
        if self.name not in past.opened:
            return Before(self._scope(past), None, made)
        start = next(at for at, one in enumerate(past.entries) if self._reserves(one))
        others = [one for one in past.entries[start + 1 :] if one.of == self.name]
        known = self._scope(past.of_entries((*past.entries[:start], *others)))
        whole = past.of_entries(one for one in past.entries if not self._reserves(one))
        return Before(known, whole, made)

    def _scope(self, book: Book) -> Book:
        if not self.alone:
            return book
        return book.of_entries(one for one in book.entries if one.of == self.name)

    def _key(self, book: Book, entry: Entry) -> Key:
        price = (entry.kind, entry.charge, entry.events, entry.count)
        # An experiment can be repeated with any ledger, and protects nobody.
        place = ("", "") if self.secret.experiment else (book.id, entry.of)
        facts = (self.facts, book.unit, book.rows, *place, entry.purpose)
        return self.secret.child("charge", repr(facts), repr(price))


def seal(key: Key) -> str:
    """Return the hash of a key that a ledger holds.

    >>> len(seal(Key.of_seed(0)))
    64
    """
    return hashlib.sha256(b"bdpvi seal" + key.secret).hexdigest()
