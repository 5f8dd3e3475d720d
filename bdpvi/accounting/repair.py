"""Make a damaged ledger whole again."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from bdpvi._runtime import store
from bdpvi._runtime.chain import chained, lock, read
from bdpvi.accounting.book import Entry, follow


def repair(
    path: str | Path, entries: Sequence[Entry] = (), receipts: Sequence[Entry] = ()
) -> tuple[Entry, ...]:
    """Make a ledger whole again; return what was charged on top of what is proven.

    Lines are proven up to the first whose hash is wrong. A last line that was cut off is an append
    that died, and nothing was drawn for it. The old file stays beside the new one, as
    ``ledger.damaged-1.jsonl``.

    Args:
        path: the file.
        entries: what the owner reports after the lines that are proven, instead of the rest of
            the file. On a file that is whole they are added.
        receipts: charges that the lines that are proven lack, as secret receipts tell of them.

    Raises:
        ValueError: if the first line is damaged, or there are lines that prove nothing and no
            ``entries`` are given for them.
    """
    path = Path(path).resolve()
    with lock(path):
        book = follow(path, read(path))
        found, added = book.file, tuple(entries) or tuple(receipts)
        if found.rest and not found.torn and not added:
            said = "".join(f"\n  {line[:120]!r}" for line in found.rest)
            raise ValueError(
                f"{path}, line {len(found.said) + 1}: {found.why}. {len(book.entries)} charges are "
                "proven. What follows is not, and only the fit's owner can know what was released: "
                f"give all of it, in doubt too much, by --charge DRAWS,TEMPERATURE:{said}"
            )
        if added or found.rest:
            names = (path.with_name(f"{path.stem}.damaged-{n}.jsonl") for n in itertools.count(1))
            store.write(next(name for name in names if not name.exists()), path.read_bytes())
            lines = ({"charge": one.to_dict()} for one in added)
            store.write(path, chained(*found.said, *lines))
    return added
