"""A work on its way to what is shared: intent, charge, output; or the same again, for nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bdpvi._ground import store
from bdpvi._ground.validate import why
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases import intent
from bdpvi.releases.intent import Intent
from bdpvi.releases.transaction import Transaction


def secret_of(out: Path, secret: Path | None) -> Path:
    """Return the secret folder of a work: as given, otherwise beside its public folder."""
    return out.with_name(f"{out.name}.secret") if secret is None else secret


@dataclass(frozen=True, kw_only=True)
class Places:
    """The resolved paths that a work reads and writes.

    Attributes:
        out: file or folder that may be shared.
        secret: folder that may not be shared.
        ledger: file of the table's ledger; None if there is none yet.
    """

    out: Path
    secret: Path
    ledger: Path | None


def places(out: Path, secret: Path | None, ledger: Path | None, name: str = "") -> Places:
    """Return the places of a work, checked against each other.

    Args:
        out: its public folder.
        secret: its secret folder, if one is given.
        ledger: the ledger's file; None if there is none yet.
        name: the file in the public folder; "" if the folder is made as a whole.

    Raises:
        ValueError: if one is a broken link, what it shares exists but is not this work's, something
            secret would lie in the public folder, or others can read the secret folder.

    >>> places(Path("out"), Path("out/secret"), None)
    Traceback (most recent call last):
        ...
    ValueError: secret='out/secret' lies in 'out', which is shared; choose another place
    """
    folder = secret_of(out, secret)
    given = {"out": out / name, "secret": folder, "ledger": ledger}
    found: dict[str, Any] = {n: path and resolve_link(n, path) for n, path in given.items()}
    for one in (found["out"].parent, found["secret"]):
        if one.is_dir():
            store.remove_dead(one)
    made = intent.output_of(folder / intent.NAME).exists()  # then it is compared
    if not (made or store.nothing_at(found["out"])):
        raise ValueError(
            f"out={str(out / name)!r} exists already; choose another; nothing is overwritten"
        )
    public = resolve_link("out", out)
    for secret_name in ("secret", "ledger"):
        path = found[secret_name]
        if path is not None and path.is_relative_to(public):
            raise ValueError(
                f"{secret_name}={str(given[secret_name])!r} lies in {str(out)!r}, which is "
                "shared; choose another place"
            )
    if os.name == "posix" and found["secret"].is_dir():
        mode = stat.S_IMODE(found["secret"].stat().st_mode)
        if mode & 0o077:
            raise ValueError(
                f"secret={str(folder)!r} has mode {mode:04o}, so others can read it: chmod 700 "
                "it, or choose another folder"
            )
    return Places(**found)


def resolve_link(name: str, path: Path) -> Path:
    """Return a resolved path.

    Raises:
        ValueError: if it is a broken or circular link.
    """
    for one in (path, *path.parents):
        if one.is_symlink() and not one.exists():
            raise ValueError(f"{name}={str(path)!r} is a link that leads nowhere")
    return path.resolve()


@contextmanager
def work_at(
    where: Places,
    opened: Callable[[], Ledger],
    settle: Callable[[Ledger], None],
    *,
    table: str,
    options: str,
    price: Mapping[str, float],
    ledger: Path,
    own: bool = False,
) -> Iterator[tuple[Intent, Ledger]]:
    """Hold the secret folder; yield its work for this table and these options, and its ledger.

    Any error reports what was charged and how to resume. If nothing was charged, nothing is left.

    Args:
        where: the places of the work.
        opened: returns the table's ledger.
        settle: sets its budget and unit of privacy.
        table, options: digests, as for :func:`bdpvi.releases.intent.begin_work`.
        price: ε and δ of the total.
        ledger: the ledger's file, for the owner to find.
        own: whether it is made in the secret folder, where it then stays.
    """
    with store.lock_folder(where.secret):
        file = where.secret / intent.NAME
        work = intent.begin_work(file, table=table, options=options, charge=price, ledger=ledger)
        people = opened()
        try:
            settle(people)  # before its first line is remembered
            people.remember(where.secret / intent.HEAD)
            yield work, people
        except BaseException as error:
            charged = work.charged(people)
            if not charged and not own:
                work.abandon()
            told = _explain_error(error, work, people, where.secret, charged=charged)
            if told is error:
                raise
            raise told from (None if isinstance(error, KeyboardInterrupt) else error)


def transaction(
    work: Intent, people: Ledger, what: str, out: Path, *, alone: bool = False
) -> Transaction:
    """Return the transaction of a work, which repeats what it has charged.

    Args:
        work: the work.
        people: the ledger.
        what: the release in words.
        out: what it publishes, of which the account names the last two parts.
        alone: as for :class:`~bdpvi.releases.transaction.Transaction`.
    """
    name = f"{out.parent.name}/{out.name}"
    return Transaction(people, work.secret, work.facts, alone=alone, kept=True, what=what, out=name)


@contextmanager
def file_at(path: Path, room: int) -> Iterator[Callable[[bytes], None]]:
    """Claim a new file, and yield what fills it; of one that is there, what compares it."""
    if not store.nothing_at(path):
        yield lambda content: same(path, content)
        return
    with store.claimed(path, room=room) as temporary:
        yield lambda content: store.fill(temporary, content)


@contextmanager
def folder_at(path: Path) -> Iterator[tuple[Path, Callable[[Path, bytes], None]]]:
    """Claim a new folder, and yield it with what writes its files; or what compares those there."""
    if not store.nothing_at(path):
        yield path, same
        return
    with store.claimed_folder(path) as folder:
        yield folder, store.write


def same(path: Path, content: bytes) -> None:
    """Raise ValueError unless a file has this content."""
    if not path.is_file() or path.read_bytes() != content:
        shown = path if path.is_file() else path.parent
        raise ValueError(f"{str(shown)!r} exists already; nothing is overwritten")


def _explain_error(
    error: BaseException, work: Intent, people: Ledger, folder: Path, *, charged: bool
) -> BaseException:
    """Return the error, with what was charged and how to go on."""
    words = "nothing was charged; the same command starts again"
    if charged:
        words = (
            f"ε was charged to {people.path}; the same command continues from {folder}/ (secret) "
            "without a second charge"
        )
    if isinstance(error, KeyboardInterrupt):
        return KeyboardInterrupt(words)
    if isinstance(error, OSError):
        return OSError(error.errno, f"{why(error)}; {words}", error.filename)
    if type(error) is ValueError and charged and not work.output_file.exists():
        return ValueError(f"{error}; {words}")  # such as of a lost block
    return error
