"""A ledger's book in memory or in a file: what is read is proven, and what is added is durable."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bdpvi._ground.chain import Head, append, head_of, lock, read, state
from bdpvi._ground.types import Budget
from bdpvi.privacy.book import ROW, Book, check_terms, follow, read_line
from bdpvi.privacy.entry import Entry

if TYPE_CHECKING:
    from bdpvi.privacy.process import SameRows


class StoredBook:
    """A book, and the file that outlives the process, if there is one; see :class:`.Ledger`."""

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
        check_terms(budget, unit, rows_per_unit)
        self._kept = Book(secrets.token_hex(16), budget, unit, rows_per_unit)
        self._content = b""
        self._state: tuple[int, int, int] | None = None
        self._heads: tuple[Path, ...] = ()
        self.process: SameRows | None = None
        self.before_charge: list[Callable[[], None]] = []
        self.losses: dict[str, Any] = {}  # see bdpvi.bayesian.accounting.record_losses
        self.limits_all = False  # whether the budget is for all of the process too
        self._owner: int | None = os.getpid()
        self._threads: Any = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        # A copy in memory may not be charged: the original would not see its charges.
        return {**self.__dict__, "_owner": None, "_threads": None, "before_charge": []}

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
