"""The only code that spends: plan, check and charge in one locked step, then draw with a key.

All releases go the same way. A mechanism plans from public facts and from the ledger. Under the
ledger's lock the plan is checked against the budget and charged durably. Only then is there a key,
which determines all noise of the charge. The lock is not held while the mechanism draws.

A key is derived from the secret of the work and from everything whose change must change the noise:
the table, settings and schema that the secret was made for, unit, ledger, step and price. So the
same work after an interruption draws the same bits at no price, and another price has other
noise. The ledger holds a hash of the key, never the key.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import torch

from bdpvi._ground.types import TooFewRecordsError
from bdpvi.noise.keys import Key
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.book import Book
from bdpvi.privacy.cost import Bound
from bdpvi.privacy.entry import ENDED, RESERVED, Charge, Entry, Note
from bdpvi.privacy.event import Event
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.left import gaussian, together

S = TypeVar("S")
C = TypeVar("C", covariant=True)
_USUAL = 1e-5
"""δ at which a charge is told without a budget."""


@dataclass(frozen=True, kw_only=True)
class Plan(Generic[S]):
    """A mechanism's settings and price, decided from public facts before any draw.

    Attributes:
        kind: kind of charge, one of :data:`~bdpvi.privacy.entry.KINDS`.
        what: description for error messages.
        events: the worst-case price; None if nothing bounds a record.
        settings: settings of the mechanism.
        count: number of repetitions, each at this price.
        charge: the draws from a guide, if it draws from one.
        within: whether the mechanism has checked the budget itself, for another guarantee.
        keep: stores each record's losses from the draws with the ledger, before the charge and
            under the ledger's lock, as those of the work that it is given.
        assumptions: assumptions of the guarantee.
    """

    kind: str
    what: str
    events: tuple[Event, ...] | None
    settings: S
    count: int = 1
    charge: Charge | None = None
    within: bool = False
    keep: Callable[[Ledger, str], None] | None = None
    assumptions: tuple[Assumption, ...] = ()


@dataclass(frozen=True)
class Before:
    """The parts of the ledger that a plan may use.

    Attributes:
        book: the charges that count for this work's ε: all of the table, or only those of this
            work. Within a reservation: the charges before it, and those of this work.
        whole: within a reservation, all charges for the table except the reservation.
        made: the charge itself, if an interrupted call has made it already.
    """

    book: Book
    whole: Book | None = None
    made: Entry | None = None


class Mechanism(Protocol[S, C]):
    """A randomised function of the records whose output is released."""

    @property
    def step(self) -> str:
        """The name of this step of the work; a step is charged once."""

    def plan(self, before: Before) -> Plan[S]:
        """Return the plan: a function of public facts and of earlier charges.

        Raises:
            ValueError, BudgetExceededError: if it refuses; nothing is charged.
        """

    def draw(self, plan: Plan[S], key: Key) -> C:
        """Return the output: a function of only the records, the plan and the key."""


@dataclass(frozen=True, eq=False)
class Transaction:
    """One unit of work that charges one ledger.

    Args:
        ledger: the ledger to charge.
        secret: the source of all keys of the work, made for this work only.
        facts: digest of the table, settings and schema of the work.
        name: id of the work in the ledger.
        alone: whether the work's ε covers only the work, not everything spent on the table.
        kept: whether the secret outlives this process, so that an interrupted work can resume.
        what, out: what the work makes, and the file that gets it, for the ledger; see
            :class:`~bdpvi.privacy.entry.Note`.

    >>> from bdpvi.privacy.events import SampledGaussian
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
    what: str = ""
    out: str = ""

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
        return self.draw_charged(mechanism, plan, key)

    def draw_charged(self, mechanism: Mechanism[S, C], plan: Plan[S], key: Key) -> C:
        """Return the output of a charged mechanism.

        Raises:
            ValueError: as the mechanism; unless the work can resume it says what was charged.
        """
        try:
            return mechanism.draw(plan, key)
        except ValueError as error:
            budget = self.ledger.budget
            bound = together(self.counting_charges(), budget.delta if budget else _USUAL, {})
            if self.kept or bound is None or type(error) is not ValueError:
                raise
            raise ValueError(
                f"{error}; the {mechanism.step} was charged, and stays so: ε = "
                f"{bound.epsilon:.3g} at δ = {bound.delta:g} is spent on this table"
            ) from error

    def charge(
        self, mechanism: Mechanism[S, Any], *, last: bool = False
    ) -> tuple[Plan[S], Key, Entry]:
        """Plan and charge; return the plan, the key for the draw, and the charge.

        Args:
            mechanism: the step.
            last: whether this is the work's last charge: the rest of the reservation is released.
        """
        ledger, step = self.ledger, mechanism.step
        with ledger.locked():
            book = ledger.book()
            at = self.charge_index(book, step)
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
            entry = replace(entry, seal=seal(key), note=self._note)
            if made is None:
                if not plan.within:
                    ledger.check_budget(entry, plan.what)
                if plan.keep is not None:
                    plan.keep(ledger, self.name)
                ledger.charge(entry)
            elif made != entry:
                raise ValueError(
                    f"{step} of this work was charged under another key or at another cost: its "
                    "draws cannot be reproduced. The charge stays; choose another folder for "
                    "this work"
                )
            else:
                entry = made  # with the time of the charge
            if last:
                self.end()
        return plan, key, entry

    def charge_index(self, book: Book, step: str) -> int | None:
        """Return the index of a step's charge, if it was made."""
        own = (at for at, e in enumerate(book.entries) if (e.of, e.purpose) == (self.name, step))
        return next(own, None)

    @contextmanager
    def reserve(self, epsilon: float, delta: float, what: str) -> Iterator[None]:
        """Reserve all that the steps inside may spend, before the first of them.

        The reservation is a Gaussian mechanism that brings the total to ε at δ. For other works it
        counts in place of this work's charges until the last step is charged, or until the work
        is refused, which leaves its charges so far. An interrupted work that can resume keeps its
        reservation.

        Raises:
            BudgetExceededError: if the budget does not suffice; nothing is reserved.
            ValueError: if ε is spent.
        """
        with self.ledger.locked():
            if not any(map(self._reserves, self.ledger.entries())):
                aside = (gaussian(self.before(), epsilon, delta),)
                entry = Entry(kind=RESERVED, of=self.name, events=aside, note=self._note)
                self.ledger.check_budget(entry, what)
                self.ledger.charge(entry)
        try:
            yield
        except BaseException as error:
            if isinstance(error, ValueError) or not self.kept:
                self.end()
            raise

    def total(self, delta: float) -> Bound:
        """Return the cost of all charges that count for this work's ε.

        Raises:
            ValueError: if one of them has no worst-case guarantee.
        """
        found = together(self.counting_charges(), delta, {})
        if found is None:
            raise ValueError(f"no worst-case guarantee is known; {self.ledger.history()}")
        return found.assuming(*self.ledger.assumptions)

    def counting_charges(self) -> Book:
        """Return all charges that count for this work's ε."""
        return self._scope(self.ledger.book())

    def before(self) -> Book:
        """Return the charges before this work that count for its ε."""
        book = self.ledger.book()
        own = (at for at, one in enumerate(book.entries) if one.of == self.name)
        return self._scope(book.of_entries(book.entries[: next(own, None)]))

    def end(self) -> None:
        """Release the rest of the reservation: no more charges will follow."""
        with self.ledger.locked():
            if self.name in self.ledger.book().opened:
                self.ledger.charge(Entry(kind=ENDED, of=self.name, note=self._note))

    @property
    def _note(self) -> Note:
        return Note.now(self.what, self.out)

    def _reserves(self, entry: Entry) -> bool:
        return entry.kind == RESERVED and entry.of == self.name

    def _before(self, book: Book, at: int | None) -> Before:
        """Return the state before the step charged at this index, or before a new step."""
        made = None if at is None else book.entries[at]
        past = book if at is None else book.of_entries(book.entries[:at])
        if self.name not in past.opened:
            return Before(self._scope(past), None, made)
        start = next(at for at, one in enumerate(past.entries) if self._reserves(one))
        others = [one for one in past.entries[start + 1 :] if one.of == self.name]
        known = self._scope(past.of_entries((*past.entries[:start], *others)))
        whole = past.of_entries(entry for entry in past.entries if not self._reserves(entry))
        return Before(known, whole, made)

    def _scope(self, book: Book) -> Book:
        if not self.alone:
            return book
        return book.of_entries(entry for entry in book.entries if entry.of == self.name)

    def _key(self, book: Book, entry: Entry) -> Key:
        price = (entry.kind, entry.charge, entry.events, entry.count)
        # An experiment must repeat with any ledger, and protects nobody.
        place = ("", "") if self.secret.experiment else (book.id, entry.of)
        facts = (self.facts, book.unit, book.rows, *place, entry.purpose)
        return self.secret.child("charge", repr(facts), repr(price))


@contextmanager
def trial_work(people: Mapping[str, Any]) -> Iterator[Transaction]:
    """Yield a transaction to try a work on made-up records, before anything is charged.

    Its ledger ends with it, and its key is public. That made-up records are too few is no fault.

    Args:
        people: the unit of privacy.

    Raises:
        ValueError: if anything inside fails.

    >>> with trial_work({}) as work:
    ...     work.ledger.path is None
    True
    """
    with warnings.catch_warnings(), torch.random.fork_rng([]):
        warnings.simplefilter("ignore")
        try:
            yield Transaction(Ledger(**people), Key.of_int(0))
        except TooFewRecordsError:
            pass
        except Exception as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise ValueError(
                f"{kind}{error}. So a release of made-up rows ended, with these columns and "
                "options; nothing was charged. Change what it names, or leave the column out"
            ) from error


def seal(key: Key) -> str:
    """Return the hash of a key, for a ledger.

    >>> len(seal(Key.of_seed(0)))
    64
    """
    return hashlib.sha256(b"bdpvi seal" + key.secret).hexdigest()
