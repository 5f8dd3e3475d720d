"""The durable record of the privacy budget spent on one table of people.

A table has one ledger. Fits, releases, private preprocessing, networks, federations and streams
write to it before they draw. A ledger's file is a chain of JSON lines
(:mod:`bdpvi._ground.chain`): a header, and charges.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from bdpvi._ground import store, validate
from bdpvi._ground.chain import Chain, Head, head_of, read, save, whole_file
from bdpvi._ground.outputs import several
from bdpvi._ground.types import Budget, BudgetExceededError
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.book import NOTHING, ROW, check_terms, follow, tally
from bdpvi.privacy.cost import Bound
from bdpvi.privacy.entry import RESERVED, Charge, Entry, Note
from bdpvi.privacy.event import Event, for_unit, neighbours_of
from bdpvi.privacy.left import together
from bdpvi.privacy.stored import StoredBook

__all__ = ["Charge", "Entry", "Ledger"]

_SHOWN = 5
"""The most charges that an error names."""


class Ledger(StoredBook):
    """All charges for one table of people, in memory or in a file that outlives the process.

    A charge is on disk before :meth:`charge` returns, so the draw after it is never forgotten; a
    crash in between costs budget, not privacy. Reading takes no lock, so it works in a read-only
    folder too.

    A missing, empty, edited or reordered file is refused. So is one truncated at its end or
    replaced by an old copy: the ledger's head is stored beside it, and in the secret folder of each
    running work. A truncated last line is an append that was interrupted before any draw, and the
    next charge removes it. It goes unnoticed if someone recomputes all hashes and also replaces
    every head.

    Args:
        path: an existing file; :meth:`at` makes one. None keeps charges in memory, for this process
            only.
        budget: the total that may be spent, for a ledger in memory; a file holds its own.
        unit: the unit of privacy: a row, or the column that names persons.
        rows_per_unit: the most rows that one unit has.

    >>> ledger = Ledger()
    >>> ledger.charge(Entry(kind="draws", charge=Charge(draws=10, temperature=5.0)))
    >>> [str(one) for one in ledger.entries()]
    ['10 draws at temperature 5']
    """

    @classmethod
    def at(
        cls,
        path: str | Path,
        *,
        budget: Budget | None = None,
        unit: str | None = None,
        rows_per_unit: int | None = None,
    ) -> Ledger:
        """Return the ledger in a file, which is created if it does not exist.

        Raises:
            ValueError: if it has another budget or unit, and charges.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     one = Ledger.at(f"{folder}/people.jsonl", budget=Budget(1.0))
        ...     Ledger.at(f"{folder}/people.jsonl").budget
        Budget(epsilon=1.0, delta=1e-05)
        """
        path = Path(path).resolve()
        store.make_folder(path.parent)
        with FileLock(f"{path}.lock", mode=0o600, is_singleton=True):
            store.remove_dead(path.parent)  # of a process that was killed at its last charge
            if store.nothing_at(path):
                if head := Head.read(head_of(path)):
                    head.check(path, Chain())
                made = cls(budget=budget, unit=unit or ROW, rows_per_unit=rows_per_unit or 1)
                save(path, made.content())
        result = cls(path)
        result.settle(budget=budget, unit=unit, rows_per_unit=rows_per_unit)
        return result

    @classmethod
    def of(cls, *parts: Any, unit: str = ROW, rows_per_unit: int = 1) -> Ledger:
        """Return a new ledger in memory, for records that came without one.

        Everything spent on the same rows in this process adds up (:mod:`bdpvi.privacy.process`),
        whatever object they were given in, and every receipt prints the sum.

        Args:
            parts: the records, as for :func:`bdpvi.datasets.sketch.samples_of`.
            unit, rows_per_unit: as for a ledger.

        >>> from bdpvi.privacy.events import SampledGaussian
        >>> price = (SampledGaussian(noise_multiplier=5.0),)
        >>> for name in "ab":
        ...     ledger = Ledger.of([[1.0, 2.0], [3.0, 4.0]], [0, 1])
        ...     ledger.charge(Entry(kind="release", of=name, events=price))
        >>> [f"{one.epsilon:.3f}" for one in (ledger.worst_case(1e-5), ledger.altogether(1e-5))]
        ['0.726', '1.061']
        """
        return cls(unit=unit, rows_per_unit=rows_per_unit).join(*parts)

    def join(self, *parts: Any) -> Ledger:
        """Return this ledger, as one of those of the same rows in this process."""
        from bdpvi.privacy.process import account_of  # late: settings know no rows

        self.process = account_of(parts)
        self.process.books[self.id] = self.book()
        return self

    def stand_for(self, other: Ledger) -> None:
        """Take the place of another ledger, of which this has a part, in the process's account."""
        self._kept, self.process = replace(self._kept, id=other.id), other.process

    def charges(self, of: str | None = None) -> tuple[Charge, ...]:
        """Return the charges for draws, of one fit or of all."""
        return tuple(
            entry.charge
            for entry in self.entries()
            if entry.charge is not None and of in (None, entry.of)
            for _ in range(entry.count)
        )

    def charge(self, entry: Entry) -> None:
        """Append a charge durably; :mod:`bdpvi.releases.transaction` checks it before.

        Raises:
            ValueError: if the file is damaged, or if this is a copy of a ledger in memory, such as
                in a forked process, whose charges would be lost.
        """
        while self.before_charge:
            self.before_charge[0]()
            del self.before_charge[0]
        self._write({"charge": replace(entry, note=entry.note or Note.now()).to_dict()})

    def bind(self, digest: str) -> None:
        """Record, once, that a fit was saved, by its digest."""
        with self.locked():
            if digest not in self.book().fits:
                self._write({"fit": digest})

    def raise_budget(self, epsilon: float) -> None:
        """Raise the budget to ε, on record: a line says when, and to what. δ stays.

        Raises:
            ValueError: if there is none, or this is not above it.

        >>> ledger = Ledger(budget=Budget(1.0))
        >>> ledger.raise_budget(3.0)
        >>> ledger.budget, len(ledger.book().raised)
        (Budget(epsilon=3.0, delta=1e-05), 1)
        """
        validate.epsilon(epsilon)
        with self.locked():
            now = self.budget
            if now is None or now == NOTHING:
                raise ValueError(
                    f"budget={epsilon:g}: the account has "
                    + ("no budget to raise" if now is None else "lost charges, and stays closed")
                )
            if epsilon <= now.epsilon:
                raise ValueError(
                    f"budget={epsilon:g} must be above ε = {now.epsilon:g}: it is only raised"
                )
            self._write({"raised": f"{Note.now().time} {float(epsilon)!r} {now.delta!r}"})

    def holds(self, digest: str) -> bool:
        """Return whether the fit with this digest was saved with this ledger."""
        return digest in self.book().fits

    def check_unit(self, unit: str | None) -> None:
        """Refuse single rows in a ledger of persons: nothing would bound how many a person has.

        Raises:
            ValueError: naming the persons, and how a caller says whose rows are whose.
        """
        book = self.book()
        if unit == ROW != book.unit:
            raise ValueError(
                f"ledger is for {book.whose}: say whose rows these are, by "
                f"unit=bdpvi.tables.Unit(persons, rows={book.rows}) (--unit) here or where the "
                "records are made, as in bdpvi.Dataset.of; other people need a ledger of their own"
            )

    def settle(
        self,
        *,
        budget: Budget | None = None,
        unit: str | None = None,
        rows_per_unit: int | None = None,
    ) -> None:
        """Set terms that were not given before; the first charge fixes all of them.

        Raises:
            ValueError: if there are charges already, for another unit or budget; or as
                :meth:`check_unit`.
        """
        self.check_unit(unit)
        with nullcontext() if self.path is None else self.locked():
            book = self.book()
            wanted = replace(
                book,
                budget=budget or book.budget,
                unit=unit or book.unit,
                rows=rows_per_unit or book.rows,
            )
            check_terms(wanted.budget, wanted.unit, wanted.rows)
            if wanted == book:
                return
            decided = (book.budget and wanted.budget != book.budget) or (
                book.unit != ROW and (wanted.unit, wanted.rows) != (book.unit, book.rows)
            )
            if book.entries or decided:
                where = "in memory" if self.path is None else str(self.path)
                raise ValueError(
                    f"the ledger {where} was begun with budget={book.budget}, unit={book.unit!r} "
                    f"and rows_per_unit={book.rows}, which stay as they are; "
                    f"budget={wanted.budget}, unit={wanted.unit!r} and "
                    f"rows_per_unit={wanted.rows} need a ledger of their own, whose ε adds to "
                    "that of this one"
                )
            self._kept = wanted
            if self.process is not None:
                self.process.books[wanted.id] = wanted
            if self.path is not None:
                save(self.path, whole_file(wanted.header, *book.file.said[1:]))

    def worst_case(
        self,
        delta: float,
        planned: Sequence[Event] | Mapping[Event, int] | None = (),
        without: str | None = None,
    ) -> Bound | None:
        """Return the worst case of all charges together with ``planned``.

        None if there is no guarantee: nothing bounds a record in one of the releases.

        Args:
            delta: δ of the total.
            planned: further events, or how often each comes; None for one without a guarantee.
            without: a fit, network or federation whose charges do not count.

        Raises:
            ValueError: if charges are for different units, or one has no price for the unit.
        """
        book = self.book() if without is None else self.book().without(without)
        if planned is None or book.events is None:
            return None
        return together(book, delta, Counter(planned))

    def altogether(
        self,
        delta: float,
        planned: Sequence[Event] | Mapping[Event, int] | None = (),
        without: str | None = None,
    ) -> Bound | None:
        """Return :meth:`worst_case` with all that other ledgers of the same rows hold.

        These are known of this process alone, and only if no ledger was given. None also if no
        joint ε is known.
        """
        book = self.book() if without is None else self.book().without(without)
        whole = book if self.process is None else self.process.with_others(book)
        if planned is None or whole.events is None:
            return None
        try:
            found = together(whole, delta, Counter(planned))
        except ValueError:  # for units that cannot be composed
            return None
        return found and found.assuming(*self.assumptions)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What every ε of this ledger assumes."""
        return (Assumption.PROCESS_ALONE,) * (self.process is not None)

    @property
    def others(self) -> bool:
        """Whether other ledgers of the same rows in this process have charges."""
        books = {} if self.process is None else self.process.books
        return any(one.charges for name, one in books.items() if name != self.id)

    @property
    def refusals(self) -> int:
        """The number of targets that were refused by looking at the records."""
        if self.process is not None:
            return self.process.refusals
        return len(self.book().refused)

    @contextmanager
    def attempt(self, looks: bool = True) -> Iterator[None]:
        """Record a target that is refused inside, if the records decide that (``looks``)."""
        try:
            yield
        except ValueError:
            if looks:
                self._write({"refused": Note.now().time})
            raise

    def check_budget(self, entry: Entry, what: str) -> None:
        """Raise BudgetExceededError if a charge would bring the table over its budget.

        A charge within its work's reservation replaces that reservation.

        Args:
            entry: the charge.
            what: its purpose, in words.
        """
        book = self.book()
        if (limit := book.budget) is None:
            return
        if entry.of in book.opened:
            own = (e for e in book.entries if (e.of, e.kind) != (entry.of, RESERVED))
            book = book.of_entries(own)
        if self.process is not None and self.limits_all:
            book = self.process.with_others(book)
        events = tally([replace(entry, of="")])
        total = None if events is None else together(book, limit.delta, events)
        if total is None or total.epsilon > limit.epsilon:
            raise BudgetExceededError(
                f"{what} would bring the total to {total or 'no finite ε'}, over the budget of ε = "
                f"{limit.epsilon:g} at δ = {limit.delta:g}. Nothing was charged; {self.history()}"
                + (f"; `bdpvi account {self.path} --budget E` raises it" if self.path else "")
            )

    def affordable(self, event: Event, most: int) -> int:
        """Return how many more of an event the budget allows, at most ``most``; it may be 0.

        Raises:
            ValueError: as :meth:`worst_case`.

        >>> from bdpvi.privacy.events import SampledGaussian
        >>> one = SampledGaussian(noise_multiplier=10.0)
        >>> Ledger(budget=Budget(1.0)).affordable(one, 1000)
        7
        """
        if (limit := self.budget) is None:
            return most

        def over(count: int) -> bool:
            total = self.worst_case(limit.delta, {event: count})
            return total is None or total.epsilon > limit.epsilon

        return most if not over(most) else bisect_left(range(1, most), True, key=over)

    def check(self, event: Event) -> None:
        """Raise ValueError unless all charges and this event have a total."""
        book = self.book()
        neighbours_of((*(book.events or ()), *for_unit({event: 1}, book.rows)))

    def history(self, without: str | None = None) -> str:
        """Return the earlier charges in words."""
        counted: Counter[str] = Counter()
        book = self.book()
        for charge in book.charges:
            if without is None or charge.of != without:
                counted[charge.once] += charge.count
        names = [f"{name} ({n} times)" if n > 1 else name for name, n in counted.items()]
        if len(names) > _SHOWN:
            names[_SHOWN:] = [several(len(names) - _SHOWN, "other")]
        words = f"{several(counted.total(), 'charge')} made before" + ": " * bool(names)
        pending = len(book.opened - {without})
        return f"{words}{'; '.join(names)}" + (
            f"; {pending} started and not finished: the same call finishes it without a "
            "further charge"
            if pending
            else ""
        )

    def repaired_copy(self) -> Ledger:
        """Return a ledger in memory with the lines that the file proves."""
        assert self.path is not None
        made = Ledger()
        made._kept = follow(self.path, read(self.path))
        return made
