"""The durable record of the privacy budget spent on one table of people.

A table has one ledger. Fits, releases, private preprocessing, networks, federations and streams
write to it before they draw. A ledger's file is a chain of JSON lines
(:mod:`bdpvi._ground.chain`): a header, charges, and marks.
"""

from __future__ import annotations

import os
import secrets
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from bdpvi._ground import store
from bdpvi._ground.chain import Chain, Head, append, chained, head_of, lock, read, save, state
from bdpvi._ground.outputs import several
from bdpvi._ground.types import Budget, BudgetExceededError
from bdpvi.privacy.book import (
    RESERVED,
    ROW,
    Book,
    Charge,
    Entry,
    Priced,
    TemperatureOrigin,
    checked,
    follow,
    for_unit,
    read_line,
    tally,
)
from bdpvi.privacy.cost import Assumption, Bound
from bdpvi.privacy.distances import common_neighbours
from bdpvi.privacy.left import together
from bdpvi.privacy.note import Note

if TYPE_CHECKING:
    from bdpvi.privacy.process import Account

__all__ = ["Charge", "Entry", "Ledger", "TemperatureOrigin"]

_SHOWN = 5
"""The most charges that an error names."""


class Ledger:
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

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        budget: Budget | None = None,
        unit: str = ROW,
        rows_per_unit: int = 1,
    ) -> None:
        if budget is not None and path is not None:
            raise ValueError(f"budget={budget} was given, but {path} already has a budget")
        self.path = None if path is None else Path(path).resolve()
        checked(budget, unit, rows_per_unit)
        self._kept = Book(secrets.token_hex(16), budget, unit, rows_per_unit)
        self._content = b""
        self._state: tuple[int, int, int] | None = None
        self._heads: tuple[Path, ...] = ()
        self.before_charge: list[Callable[[], None]] = []
        self.losses: dict[str, Any] = {}  # see bdpvi.bayesian.accounting.kept
        self.process: Account | None = None
        self.limits_all = False  # whether the budget is for all of the process too
        self._owner: int | None = os.getpid()
        self._threads: Any = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        # A copy in memory may not be charged: the original would not see its charges.
        return {**self.__dict__, "_owner": None, "_threads": None, "before_charge": []}

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
        found = cls(path)
        found.settle(budget=budget, unit=unit, rows_per_unit=rows_per_unit)
        return found

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
        return cls(unit=unit, rows_per_unit=rows_per_unit).joined(*parts)

    def joined(self, *parts: Any) -> Ledger:
        """Return this ledger, as one of those of the same rows in this process."""
        from bdpvi.privacy.process import account_of  # late: settings know no rows

        self.process = account_of(parts)
        self.process.books[self.id] = self.book()
        return self

    def stand_for(self, other: Ledger) -> None:
        """Take the place of another ledger, of which this has a part, in the process's account."""
        self._kept, self.process = replace(self._kept, id=other.id), other.process

    @property
    def id(self) -> str:
        """The unique id of this ledger."""
        return self.book().id

    @property
    def budget(self) -> Budget | None:
        """The total that may be spent, if one was set."""
        return self.book().budget

    @property
    def unit(self) -> str:
        """The unit of privacy: :data:`ROW`, or the column that names persons."""
        return self.book().unit

    @property
    def rows_per_unit(self) -> int:
        """The most rows that one unit has."""
        return self.book().rows

    def entries(self) -> tuple[Entry, ...]:
        """Return all charges; errors as for :meth:`book`."""
        return self.book().entries

    def charges(self, of: str | None = None) -> tuple[Charge, ...]:
        """Return the charges for draws, of one fit or of all."""
        return tuple(
            one.charge
            for one in self.entries()
            if one.charge is not None and of in (None, one.of)
            for _ in range(one.count)
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

    def mark(self, of: str) -> None:
        """Record, once, that a temperature of this fit was computed from the data."""
        with self.locked():
            if of not in self.book().marks:
                self._write({"mark": of})

    def bind(self, digest: str) -> None:
        """Record, once, that a fit was saved, by its digest."""
        with self.locked():
            if digest not in self.book().fits:
                self._write({"fit": digest})

    def holds(self, digest: str) -> bool:
        """Return whether the fit with this digest was saved with this ledger."""
        return digest in self.book().fits

    def as_it_is(self, charge: Charge) -> Charge:
        """Return the charge with its origin: after a mark any temperature may come from the data.

        So it may after a mark of another ledger of the same rows in this process.

        Raises:
            ValueError: if its temperature was computed for another ledger.
        """
        book = self.book()
        if charge.ledger not in ("", book.id):
            raise ValueError(
                f"charge was found for another table's ledger ({charge.ledger[:8]}…), not for this "
                f"one ({book.id[:8]}…): calibrate for this fit"
            )
        marked = book.marks or (self.process is not None and self.process.marked)
        if charge.origin is TemperatureOrigin.OWNER and marked:
            return replace(charge, origin=TemperatureOrigin.DATA)
        return charge

    def settle(
        self,
        *,
        budget: Budget | None = None,
        unit: str | None = None,
        rows_per_unit: int | None = None,
    ) -> None:
        """Set terms that were not given before; the first charge fixes all of them.

        Raises:
            ValueError: if there are charges already, for another unit or budget.
        """
        with nullcontext() if self.path is None else self.locked():
            book = self.book()
            wanted = replace(
                book,
                budget=budget or book.budget,
                unit=unit or book.unit,
                rows=rows_per_unit or book.rows,
            )
            checked(wanted.budget, wanted.unit, wanted.rows)
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
                save(self.path, chained(wanted.header, *book.file.said[1:]))

    def worst_case(
        self,
        delta: float,
        planned: Sequence[Priced] | Mapping[Priced, int] | None = (),
        without: str | None = None,
    ) -> Bound | None:
        """Return the worst case of all charges together with ``planned``.

        None if there is no guarantee: nothing bounds a record in one of the releases, or a
        temperature was computed from the data.

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
        planned: Sequence[Priced] | Mapping[Priced, int] | None = (),
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
    def refused(self) -> int:
        """The number of targets that were refused by looking at the records."""
        if self.process is not None:
            return self.process.refused
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
                f"{limit.epsilon:g} at δ = {limit.delta:g}. Nothing was charged; {self.said()}"
            )

    def affordable(self, event: Priced, most: int) -> int:
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

    def check(self, event: Priced) -> None:
        """Raise ValueError unless all charges and this event have a total."""
        book = self.book()
        common_neighbours((*(book.events or ()), *for_unit({event: 1}, book.rows)))

    def said(self, without: str | None = None) -> str:
        """Return the earlier charges in words."""
        counted: Counter[str] = Counter()
        book = self.book()
        for one in book.charges:
            if without is None or one.of != without:
                counted[one.once] += one.count
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

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock out other processes and threads: checks inside still hold at the charge."""
        if self.path is None and self._owner != os.getpid():
            raise ValueError(
                "the ledger is in the memory of another process or a copy of it, so charges made "
                "here would be lost; keep it in a file (Ledger.at), or save the fit and load it "
                "in this process"
            )
        with (
            self._threads if self.path is None else nullcontext(),
            # Check again: the ledger may have moved to a file while this thread waited.
            nullcontext() if self.path is None else lock(self.path),
        ):
            yield

    def move(self, path: Path) -> None:
        """Move to the file at ``path``, which has to hold the result of :meth:`content`."""
        self.path = path.resolve()

    def content(self) -> bytes:
        """Return the whole ledger as the content of a file."""
        return self.book().content()

    def book(self) -> Book:
        """Return the whole ledger.

        Raises:
            ValueError: if the file is damaged: reading on could hide a release.
        """
        if self.path is None:
            return self._kept
        if (now := state(self.path)) is None or now != self._state:
            try:
                self._read()
            except ValueError:
                with self.locked():  # perhaps it was being written
                    self._read()
        return self._kept

    def _read(self) -> None:
        """Update from the file's content."""
        assert self.path is not None
        now, head = state(self.path), Head.read(head_of(self.path))
        content = read(self.path)
        known = self._kept if self._content and content.startswith(self._content) else None
        book = follow(self.path, content, known)
        if book.file.rest and not book.file.torn:
            raise ValueError(
                f"{self.path}, line {len(book.file.said) + 1}: {book.file.why}. Until this is "
                f"resolved nothing can be released: `bdpvi account {self.path} --repair`"
            )
        if head is None and len(book.file.hashes) > 1:
            raise ValueError(
                f"{head_of(self.path)} is missing: it records the last entry of {self.path.name}, "
                f"and belongs beside it. Restore it, or `bdpvi account {self.path} --repair`"
            )
        if head is not None:
            head.check(self.path, book.file)
        self._kept, self._content, self._state = book, content[: book.file.size], now

    def remember(self, file: Path) -> None:
        """Store the ledger's head in another file too, such as in the secret folder of a work.

        Raises:
            ValueError: if the file has a head that the ledger does not contain.
        """
        with self.locked():
            book = self.book()
            if head := Head.read(file):
                assert self.path is not None
                head.check(self.path, book.file)
            self._heads = (*self._heads, file)
            Head.of(book.file).write(file)

    def mended(self) -> Ledger:
        """Return a ledger in memory with the lines that the file proves."""
        assert self.path is not None
        made = Ledger()
        made._kept = follow(self.path, read(self.path))
        return made

    def _write(self, content: dict[str, Any]) -> None:
        with self.locked():
            book, line = self.book(), read_line(content)
            file = book.file
            if self.path is not None:
                written, file = append(self.path, file, content)
                self._content += written
                for place in (head_of(self.path), *self._heads):
                    Head.of(file).write(place)
                self._state = state(self.path)
            self._kept = book.with_lines(file, line)
            if self.process is not None:
                self.process.books[book.id] = self._kept
