"""Repair a damaged ledger."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from bdpvi._ground import store
from bdpvi._ground.chain import Chain, Head, head_of, lock, proven, read, save, whole_file
from bdpvi._ground.outputs import several
from bdpvi.privacy.book import NOTHING, Book, budget_of, follow
from bdpvi.privacy.entry import Entry
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.left import gaussian


def repair(
    path: str | Path, entries: Sequence[Entry] = (), receipts: Sequence[Entry] = ()
) -> tuple[Entry, ...]:
    """Repair a ledger; return the charges added to the proven ones.

    Lines are proven up to the first with a wrong hash. A truncated last line is an interrupted
    append, and nothing was drawn for it. If whole lines are lost, and neither the owner nor
    receipts account for all of them, the whole budget counts as spent. Without a budget, without
    the head that says whether it was raised, or with hardly any left, the lost charges count as a
    release without any guarantee, and a ledger without a budget gets one that is spent. The old
    file stays beside the new one, as ``ledger.damaged-1.jsonl``.

    Args:
        path: the file.
        entries: the owner's report of the charges after the proven lines, which replaces the rest
            of the file. On an undamaged file they are added.
        receipts: charges in secret receipts that the proven lines lack.

    Raises:
        ValueError: if the first line is damaged, or there are lines without proof and no
            ``entries`` for them.
    """
    path = Path(path).resolve()
    if store.nothing_at(path):
        if Head.read(head_of(path)) is None:
            read(path)
        store.write(path, Ledger().content())  # only the head of the old one is left
    with lock(path):
        book, head = follow(path, read(path)), Head.read(head_of(path))
        found, added = book.file, tuple(entries) or tuple(receipts)
        lost = len(found.hashes) > 1 if head is None else not head.is_in(found)
        if found.rest and not found.torn and not added:
            said = "".join(f"\n  {line[:120]!r}" for line in found.rest)
            raise ValueError(
                f"{path}, line {len(found.said) + 1}: {found.why}. Verified: "
                f"{several(len(book.entries), 'charge')}. Later charges are not, and only the "
                "owner of the fit can know what was released: give all releases, in doubt too "
                f"many, by --charge DRAWS,TEMPERATURE:{said}"
            )
        if lost and not entries and not (head and head.is_in(proven(_with(found, added)))):
            added = (*added, _everything(book, head))
            if (
                book.budget is None
            ):  # otherwise a fit whose charges are lost could spend a Bayesian ε twice
                header = replace(book, budget=NOTHING).header
                found = replace(found, said=(header, *found.said[1:]))
        if added or found.rest or lost:
            names = (path.with_name(f"{path.stem}.damaged-{n}.jsonl") for n in itertools.count(1))
            store.write(next(name for name in names if not name.exists()), path.read_bytes())
            save(path, _with(found, added))
    return added


def _with(found: Chain, added: Sequence[Entry]) -> bytes:
    return whole_file(*found.said, *({"charge": one.to_dict()} for one in added))


def _everything(book: Book, head: Head | None) -> Entry:
    """Return a charge that uses up the budget, as it was raised last.

    Without a budget, or without the head that says whether it was raised, it has no guarantee.
    """
    events: tuple[SampledGaussian, ...] | None = None
    limit = None if head is None else budget_of(head.raised) if head.raised else book.budget
    if limit is not None:
        with suppress(ValueError):  # ε counts as spent
            events = (gaussian(book, limit.epsilon, limit.delta),)
    return Entry(kind="release", of="lost", events=events)
