"""Secret receipts in a fit's folder: its charges, in case the ledger loses them."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

from bdpvi._ground import store
from bdpvi.privacy.cost import Cost
from bdpvi.privacy.entry import Entry
from bdpvi.privacy.ledger import Ledger

_NAME = re.compile(r"release-(\d{1,9})\.json")


def missing(folder: Path | None, ledger: Ledger) -> dict[int, Entry]:
    """Return the charges, by number, that receipts record and the ledger lacks.

    Args:
        folder: folder of the fit; None if it was not saved.
        ledger: the current ledger.

    Raises:
        ValueError: if a receipt, which it names, cannot be read.
    """
    if folder is None:
        return {}
    numbers = (int(found[1]) for one in folder.iterdir() if (found := _NAME.fullmatch(one.name)))
    book, lost = ledger.book(), {}
    for number in sorted(numbers, reverse=True):
        told = _read_charge(folder / f"release-{number}.json", book.id)
        if told is None:
            continue
        there = book.entries[number - 1] if number <= len(book.entries) else None
        if there == told:
            break  # and all before it too
        lost[number] = told
    return dict(sorted(lost.items()))


def check(folder: Path | None, ledger: Ledger) -> None:
    """Refuse a ledger that lacks a charge of a secret receipt in the fit's folder.

    Raises:
        ValueError: if it lacks one; it says what to do.
    """
    if ledger.path is not None and (lost := missing(folder, ledger)):
        raise ValueError(
            f"{ledger.path} lacks charge {next(iter(lost))}, whose receipt is in {folder}: its "
            "end was cut off, or it was replaced by an old copy. Until this is resolved nothing "
            f"can be released: `bdpvi account {folder} --repair`"
        )


def keep(folder: Path | None, ledger: Ledger, entry: Entry, total: Cost) -> None:
    """Write the secret receipt of a charge to the fit's folder, if it has one."""
    if folder is None:
        return
    number = 1 + ledger.entries().index(entry)
    file = folder / f"release-{number}.json"
    proof = {"ledger": ledger.id, "number": number, "charge": entry.to_dict()}
    try:
        content = store.json_text(proof | {"cost": total.to_dict()}, indent=1)
        store.write(file, content.encode())
    except OSError as error:  # a charged draw must not be lost
        warnings.warn(
            f"the release is charged and valid, but its secret receipt {file} could not be "
            f"written: {error}",
            stacklevel=3,
        )


def _read_charge(file: Path, ledger: str) -> Entry | None:
    """Return the charge of a receipt; None if it belongs to another ledger."""
    try:
        content = store.read_json(file)
        if content.get("ledger") != ledger:
            return None
        return Entry.from_dict(content["charge"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(f"{file}, a secret receipt, cannot be read: {error}") from error
