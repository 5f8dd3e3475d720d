"""The account of this process: what is spent on the same rows by calls without a ledger.

Each such call charges a ledger of its own, in memory or in its secret folder, which its target is
for. The ledgers of the same rows, in whatever object these were given, add up here, and every
receipt prints the sum. An account ends with its process and refuses nothing.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bdpvi.datasets.sketch import Sketch, samples_of
from bdpvi.privacy.book import Book


@dataclass(eq=False)
class SameRows:
    """All ledgers of the same rows in this process.

    Attributes:
        books: the content of each, by its id.
        samples: of all its tables.
    """

    books: dict[str, Book] = field(default_factory=dict)
    samples: list[Sketch] = field(default_factory=list)

    @property
    def refusals(self) -> int:
        """The number of targets that were refused by looking at the records."""
        return sum(len(book.refused) for book in self.books.values())

    def with_others(self, own: Book) -> Book:
        """Return a ledger's content with that of the others, for the widest unit of all.

        Steps on whole units have no price for other units: then nothing is known of the sum.
        """
        books = [own, *(one for name, one in self.books.items() if name != own.id)]
        widest = max(books, key=lambda one: one.rows)
        events: Counter[Any] | None = Counter()
        for book in books:
            events = None if events is None or book.events is None else events + book.events
            if book.unit != widest.unit and any(one.whole_units for one in book.events or ()):
                events = None
        return replace(own, unit=widest.unit, rows=widest.rows, events=events)


_accounts: list[SameRows] = []
_lock = threading.RLock()


def account_of(parts: Sequence[Any]) -> SameRows:
    """Return the account of these rows; accounts that turn out to be of the same rows are joined.

    Args:
        parts: as for :func:`~bdpvi.datasets.sketch.samples_of`.
    """
    if not parts:
        return SameRows()  # of what no records are known of
    made = samples_of(parts)
    with _lock:
        # Tables without a row have one account: a receipt must not tell no row from one.
        empty = [account for account in _accounts if not account.samples]
        same = [one for one in _candidates(made) if _same(one, made)] if made else empty
        result = same[0] if same else SameRows()
        for other in same[1:]:
            result.books.update(other.books)
            result.samples.extend(other.samples)
            _accounts.remove(other)
            other.books, other.samples = result.books, result.samples
        if not same:
            _accounts.append(result)
        known = {sample.hashes.tobytes() for sample in result.samples}
        result.samples.extend(one for one in made if one.hashes.tobytes() not in known)
        return result


def _candidates(made: Sequence[Sketch]) -> list[SameRows]:
    """Return the accounts that share some hash."""
    wanted = np.unique(np.concatenate([one.hashes for one in made]))
    none = np.zeros(0, np.uint32)
    each = [
        np.concatenate([none, *(two.hashes for two in account.samples)]) for account in _accounts
    ]
    hits = np.isin(np.concatenate(each), wanted) if each else np.zeros(0, bool)
    owners = np.repeat(np.arange(len(each)), [len(one) for one in each])
    return [_accounts[at] for at in np.unique(owners[hits])]


def _same(account: SameRows, made: Sequence[Sketch]) -> bool:
    return any(one.shares(two) for one in made for two in account.samples)
