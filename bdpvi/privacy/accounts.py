"""The account of a table: its ledger's file, found by the table's files and by their rows.

Beside a ledger lies the identity of its tables (:mod:`bdpvi.datasets.identity`), as secret as the
ledger and under a key that follows from it: neither file alone tells whether a row is in a table.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

from filelock import FileLock

from bdpvi._ground import store, validate
from bdpvi._ground.chain import Head, head_of
from bdpvi._ground.types import Budget, PrivacyUtilityWarning
from bdpvi.datasets.identity import Identity, Sealed
from bdpvi.datasets.stored import files_of, without_pattern
from bdpvi.privacy.ledger import Ledger

_LEDGER, _IDENTITY = ".ledger.jsonl", ".identity"
_KEPT = 100
"""The most tables of a ledger whose identity is kept, the newest ones."""
_SHARES = "has most of its rows, or of the names in one of its columns"
_used: set[Path] = set()
"""Ledgers with an identity that this process has used."""


def beside(table: str | os.PathLike[str]) -> Path:
    """Return the default path of the ledger for a table's file.

    Links to the file are resolved, and a folder or a glob of one file is that file: the same files
    have one ledger. That of several files is beside their folder.

    Raises:
        ValueError: if the table is at a URL.

    >>> beside("data/patients.csv").name, beside("data/visits/*.parquet").name
    ('patients.csv.ledger.jsonl', 'visits.ledger.jsonl')
    """
    path = os.fspath(table)
    if "://" in path:
        raise ValueError(
            f"ledger: none can be kept beside the URL {path!r}; give a local file, "
            "ledger=FILE (--ledger FILE)"
        )
    files, places = _files(path), [Path(without_pattern(path)).resolve()]
    if len(files) == 1:
        folder = files[0].parent
        places = [*places, *files, *[folder] * (_files(str(folder)) == files)]
    found = [place.with_name(f"{place.name}{_LEDGER}") for place in places]
    there = (one for one in found if one.exists())  # earlier versions took the folder of one file
    return next(there, found[len(files) == 1])


def open_ledger(ledger: str | os.PathLike[str], budget: Budget | None = None) -> Ledger:
    """Return the ledger in a file, as :meth:`bdpvi.Ledger.at` does.

    Raises:
        ValueError: if it cannot be created, and as there.
    """
    try:
        return Ledger.at(Path(ledger), budget=budget)
    except OSError as error:
        raise ValueError(
            f"ledger={str(ledger)!r} cannot be made: {validate.why(error)}; give another file "
            "(--ledger)"
        ) from error


def account(
    table: object,
    identity: Identity | None,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    own: Path | None = None,
    *,
    other_people: bool = False,
    budget: Budget | None = None,
) -> Ledger:
    """Return the ledger of a table, and keep the table's identity beside it.

    Without a ledger, the table's own is taken; if it has none, that of a table with the same rows,
    among ledgers in the table's folder, beside that folder, and of this process.

    Args:
        table: its path; or a table without one, whose ledger is given.
        identity: of its rows; None if it is not known.
        ledger: the ledger that was given, if any.
        own: the table's own, by default :func:`beside` it.
        other_people: the owner's word that nobody in the table has another account.
        budget: as for :func:`open_ledger`.

    Raises:
        ValueError: before anything is charged or stored: a table of another account has many of
            the rows. It is for the owner, as is the warning that an account was joined.
    """
    path = ledger.path if isinstance(ledger, Ledger) else ledger
    if isinstance(ledger, Ledger) and path is None:
        return ledger
    given = store.path_of(table) or ""
    files = _files(given)
    own = Path((own or beside(table)) if path is None else path).resolve()  # type: ignore[arg-type]
    if identity is not None and not identity.rows.cells:
        identity = None  # nobody's
    with ExitStack() as stack:
        with suppress(OSError):  # a folder that cannot be written to
            place = files[0].parent if files else own.parent
            stack.enter_context(FileLock(place / ".accounts.lock", mode=0o600))
        known = identity is None or own in _alike([own], identity)[0]
        if identity is not None and not (known or other_people):
            places = [own, *files, *[Path(without_pattern(given)).resolve()] * bool(files)]
            same, alike = _others(own, {one.parent for one in places}, identity)
            head = Head.read(head_of(own))
            if path is not None or not store.nothing_at(own) or (head and head.last):  # or is lost
                if same or alike:
                    _tell(f"{own} knows nothing of {(same or alike)[0]}, whose table {_SHARES}")
            elif len(same) == 1:
                own = same[0]
                _tell(f"this table has the rows of {own}, and is charged there")
            elif same or alike:
                raise ValueError(_refusal(table, [*same, *alike]))
        new = store.nothing_at(own)
        result = ledger if isinstance(ledger, Ledger) else open_ledger(own, budget)
        if identity is not None and (new or known):
            _keep(own, identity)
        elif identity is not None:  # a refused table is not this account's
            result.before_charge.append(partial(_keep, own, identity))
        return result


def in_use() -> bool:
    """Return whether this process has used an account, so that a table in memory may be one's."""
    return bool(_used)


def account_in_use(identity: Identity | None, unit: str, rows_per_unit: int) -> Path | None:
    """Return the account in use that has the rows of a table in memory, and tell its owner.

    An account with another unit of privacy cannot be charged: without a ledger nothing is refused.
    """
    for one in () if identity is None else _alike(_used, identity)[0]:
        book = Ledger(one).book()
        if (book.unit, book.rows) == (unit, rows_per_unit):
            _tell(f"this table has the rows of {one}, and is charged there")
            return one
    return None


def _files(path: str) -> list[Path]:
    """Return a table's files, links resolved; none if there are none, or they are at a URL."""
    try:
        return [] if "://" in path else [Path(one).resolve() for one in files_of(path)]
    except ValueError:
        return []


def _others(own: Path, folders: set[Path], identity: Identity) -> tuple[list[Path], list[Path]]:
    """Return the ledgers of a table with the same rows, and those of one with many of them."""
    named = {one for folder in folders for one in folder.glob(f"*{_IDENTITY}")}
    named |= {one.with_name(f"{one.name}{_LEDGER}{_IDENTITY}") for one in folders}
    found = {*_used, *(one.with_name(one.name.removesuffix(_IDENTITY)) for one in named)} - {own}
    return _alike(found, identity)


def _alike(found: Iterable[Path], identity: Identity) -> tuple[list[Path], list[Path]]:
    """Return which ledgers have a table with the same rows, and which one with many of them."""
    same, alike = [], []
    for one in sorted(found):
        if (key := _key(one)) is None:
            continue
        mine, tables = identity.sealed(key), _tables(one)
        if any(map(mine.equals, tables)):
            same.append(one)
        elif any(map(mine.shares, tables)):
            alike.append(one)
    return same, alike


def _key(ledger: Path) -> bytes | None:
    """Return the key of a ledger's identities, from its random id; None if there is none."""
    with suppress(OSError, ValueError, KeyError, TypeError), ledger.open("rb") as file:
        name = str(json.loads(file.readline())["id"])
        return hashlib.blake2b(name.encode(), digest_size=32, person=b"bdpvi identity").digest()
    return None


def _tables(ledger: Path) -> list[Sealed]:
    """Return the identities of a ledger's tables; none if it is another user's or an older one."""
    file = ledger.with_name(f"{ledger.name}{_IDENTITY}")
    try:
        content = json.loads(file.read_bytes()) if ledger.exists() else []
        return [Sealed(**one) for one in content]
    except OSError:
        return []
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{file} is damaged: {error}. Put it back; or remove it, and give ledger= (--ledger) "
            f"for tables with the rows of {ledger.name}"
        ) from error


def _keep(ledger: Path, identity: Identity) -> None:
    """Keep the identity of a ledger's table beside it."""
    if (key := _key(ledger)) is None:
        return  # a damaged ledger is refused at its charge
    tables, mine = _tables(ledger), identity.sealed(key)
    if not any(map(mine.equals, tables)):
        content = json.dumps([asdict(one) for one in [*tables, mine][-_KEPT:]])
        store.write(ledger.with_name(f"{ledger.name}{_IDENTITY}"), content.encode())
    _used.add(ledger)


def _tell(words: str) -> None:
    warnings.warn(f"for the owner only: {words} (secret)", PrivacyUtilityWarning, stacklevel=5)


def _refusal(table: object, others: Sequence[Path]) -> str:
    return (
        f"ledger: for the owner only: {str(table)!r} has no account, and that of another table, "
        f"{others[0]}, {_SHARES}. Give ledger={str(others[0])!r} (--ledger) if there are the same "
        "people in both, or unit=bdpvi.tables.Unit(other_people=True) (--other-people) if you "
        "know of none, which the receipt then says"
    )
