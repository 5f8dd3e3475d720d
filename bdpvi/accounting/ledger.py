"""The durable record of what was released from a fit."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock

from bdpvi._runtime import store
from bdpvi.accounting import chain, ledger_file
from bdpvi.accounting.ledger_file import Book, Charge
from bdpvi.types import Budget

__all__ = ["Charge", "Ledger", "repair"]


class Ledger:
    """Charges in the order they were made, in memory or in a file that outlives the process.

    A charge is on the disk before :meth:`charge` returns, so a draw that follows it can never be
    forgotten; a crash in between costs budget, not privacy.

    A file's first line says of which fit it is and what that fit may spend; every line ends in the
    SHA-256 of itself and of the hash before it. So a file that is missing, cut within a line,
    edited, reordered or another fit's is refused. What cannot be seen is whole lines cut off the
    end and an old copy of the whole folder put back, which both forget releases, nor whoever edits
    the file and works out all hashes anew.

    Args:
        path: the file of a fit that was saved, made whole by :func:`repair` where it is damaged;
            None keeps the charges in memory, for this process alone.
        binding: digest of the fit that the file must be of; None takes any.
        budget: what may be spent in all; that of a file stands in the file.

    >>> ledger = Ledger()
    >>> ledger.charge(Charge(draws=10, temperature=5.0))
    >>> ledger.charges()
    (Charge(draws=10, temperature=5.0, from_data=False),)
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        binding: str | None = None,
        budget: Budget | None = None,
    ) -> None:
        if budget is not None and not isinstance(budget, Budget):
            raise ValueError(f"budget must be a Budget or None, got {budget!r}")
        if budget is not None and path is not None:
            raise ValueError(f"budget={budget} was given, but that of {path} stands in the file")
        self.path = None if path is None else Path(path).resolve()
        self.binding = binding
        self._budget = budget
        self._memory: list[Charge] = []
        self._owner: int | None = os.getpid()
        self._threads: Any = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        # What a copy in memory is charged, the ledger it was copied from would never learn.
        return {**self.__dict__, "_owner": None, "_threads": None}

    @property
    def budget(self) -> Budget | None:
        """What may be spent in all, if that was decided when the fit was made."""
        return self._book().budget

    def charges(self) -> tuple[Charge, ...]:
        """Return all charges so far.

        Raises:
            ValueError: if the file is damaged or another fit's; to read on could hide a release.
        """
        return self._book().charges

    def charge(self, charge: Charge) -> None:
        """Append ``charge``, durably.

        Raises:
            ValueError: if the file is damaged or another fit's, or if this is a copy of a ledger in
                memory, in a forked process for one, whose charges would be forgotten.
        """
        with self.locked():
            if self.path is None:
                self._memory.append(charge)
                return
            line, _ = chain.link(self._book().file.last, asdict(charge))
            with self.path.open("r+b") as file:  # never creates it
                file.seek(0, os.SEEK_END)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes and threads out: what is checked inside holds when it is charged."""
        if self.path is None and self._owner != os.getpid():
            raise ValueError(
                "fit: its ledger is in the memory of another process or a copy of that, and what "
                "were charged here would be forgotten; save the fit and load it where it is used"
            )
        with (
            self._threads if self.path is None else nullcontext(),
            # Looked at again: the ledger may have become a file while this thread waited.
            nullcontext() if self.path is None else _lock(self.path),
        ):
            yield

    def move(self, path: Path, binding: str) -> None:
        """Go on in the file at ``path``, which has to hold what :meth:`content` gave."""
        self.path, self.binding = path, binding

    def content(self, binding: str) -> bytes:
        """Return a file with this ledger's budget and charges, for the fit with that digest."""
        return ledger_file.content(binding, self.budget, self.charges())

    def _book(self) -> Book:
        if self.path is None:
            return Book(self._budget, tuple(self._memory))
        with _lock(self.path):
            book = ledger_file.follow(self.path, self.binding)
        if book.file.rest:
            raise ValueError(
                f"{self.path}, line {len(book.file.said) + 1}: {book.file.why}. Until that is "
                f"settled nothing can be released: `bdpvi ledger repair {self.path.parent}`"
            )
        return book


def repair(
    path: str | Path, charges: Sequence[Charge] = (), *, binding: str | None = None
) -> tuple[Charge, ...]:
    """Make a ledger whole again; return what was charged on top of what is proven.

    Lines are proven up to the first whose hash is wrong. A last line that was cut off is charged in
    full if what is left of it says how much. The old file stays beside the new one, as
    ``ledger.damaged-1.jsonl``.

    Args:
        path: the file.
        charges: what the owner says took place after the lines that are proven, in the place of all
            that the file says after them. On a file that is whole they are added.
        binding: digest of the fit that the file must be of; None takes any.

    Raises:
        ValueError: if the first line is damaged, or lines that prove nothing are more than one that
            was cut off, and no ``charges`` are given for them.
    """
    path = Path(path).resolve()
    with _lock(path):
        book = ledger_file.follow(path, binding)
        found, added = book.file, tuple(charges) or ledger_file.torn(book.file.rest)
        if found.rest and not added:
            said = "".join(f"\n  {line[:120]!r}" for line in found.rest)
            raise ValueError(
                f"{path}, line {len(found.said) + 1}: {found.why}. {len(book.charges)} charges are "
                "proven. What follows is not, and only the fit's owner can know what was released: "
                f"give all of it, in doubt too much, by --charge DRAWS,TEMPERATURE:{said}"
            )
        if added:
            names = (path.with_name(f"{path.stem}.damaged-{n}.jsonl") for n in itertools.count(1))
            store.write(next(name for name in names if not name.exists()), path.read_bytes())
            store.write(
                path, ledger_file.content(book.binding, book.budget, (*book.charges, *added))
            )
    return added


def _lock(path: Path) -> FileLock:
    if not path.exists():  # or the lock would create the folder
        raise ValueError(
            f"{path} is missing, so nobody knows what was released from this fit: put the file "
            "back, the newest there is, or fit again"
        )
    return FileLock(f"{path}.lock", mode=0o600, is_singleton=True)  # so one thread may nest it
