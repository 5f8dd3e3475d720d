"""What a door does: the keys that it draws from, the charges that pay for them, its files."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rehearsals
from doors import Place

from bdpvi._ground import chain
from bdpvi.bayesian import fit as _fit
from bdpvi.noise import secure
from bdpvi.noise.keys import Key
from bdpvi.noise.whole_normals import WholeNormals
from bdpvi.privacy import stored as ledgers
from bdpvi.privacy.book import Book, follow
from bdpvi.releases import transaction
from bdpvi.releases.transaction import Plan, Transaction, seal
from bdpvi.tables.prepared import Prepared

_LONGEST = 120
"""Seconds that a work in a process may take."""
COINS = ("held out", "folds", "panel", "work", "split")
"""Labels of keys whose coins choose rows or name a work: no noise, and nothing to pay for."""


@dataclass
class Watch:
    """What was seen.

    Attributes:
        place: of the work.
        before: what to do before a draw.
        drawn: secrets of the keys that noise was drawn from, in their order.
        unpaid: labels of keys that were drawn from before their charge was in the file.
        plans: what was charged.
        sums: noisy sums of steps, and how many steps the file had when each was drawn.
        names: ancestors and labels of each key.
        rehearsing: whether what is drawn is for made-up records, by a key that is public.
    """

    place: Place
    before: Callable[[], object] = lambda: None
    drawn: list[bytes] = field(default_factory=list)
    unpaid: list[str] = field(default_factory=list)
    plans: list[Plan[Any]] = field(default_factory=list)
    sums: list[tuple[int, int]] = field(default_factory=list)
    names: dict[bytes, tuple[bytes, tuple[object, ...]]] = field(default_factory=dict)
    rehearsing: bool = False

    def line(self, secret: bytes) -> tuple[bytes, ...]:
        """Return the secrets of a key and of all that it follows from."""
        found = [secret]
        while found[-1] in self.names:
            found.append(self.names[found[-1]][0])
        return tuple(found)

    def labels(self, secret: bytes) -> tuple[object, ...]:
        """Return the labels that lead to a key."""
        made = (self.names[one][1] for one in self.line(secret) if one in self.names)
        return tuple(label for labels in made for label in labels)

    def draw(self, key: Key) -> None:
        """Note that something is drawn from a key."""
        if set(self.labels(key.secret)) & set(COINS) or key.secret in self.drawn:
            return
        self.before()
        content = read(self.place.ledger)
        self.drawn.append(key.secret)
        if not any(seal(Key(one)).encode() in content for one in self.line(key.secret)):
            self.unpaid.append(repr(self.labels(key.secret)[:2]))

    def sum(self) -> None:
        """Note that a noisy sum is drawn."""
        charged = sum(charge.count for charge in book(self.place.ledger).charges)
        self.sums.append((1 + len(self.sums), charged))

    @property
    def secrets(self) -> set[bytes]:
        """Everything that noise can be made again from."""
        return {one for secret in self.drawn for one in self.line(secret)}


@contextmanager
def watching(place: Place, before: Callable[[], object] = lambda: None) -> Iterator[Watch]:
    """Watch everything that is drawn."""
    seen = Watch(place, before)
    child, words = Key.child, Key.words
    begun, make = WholeNormals.__init__, WholeNormals._make
    charge, add, of_seed = Transaction.charge, secure.add_whole, Key.of_seed
    rehearse = Prepared.rehearse

    def named(self: Key, *labels: str | int) -> Key:
        made = child(self, *labels)
        seen.names[made.secret] = (self.secret, labels)
        return made

    def drawn(self: Key, count: int) -> Any:
        if not seen.rehearsing:
            seen.draw(self)
        return words(self, count)

    def started(self: Any, key: Key) -> None:
        self.key = key
        begun(self, key)

    def made(self: Any, count: int) -> Any:
        if not seen.rehearsing:
            seen.draw(self.key)
        return make(self, count)

    def added(total: Any, deviation: float, whole: Any) -> Any:
        if not seen.rehearsing:
            seen.sum()
        return add(total, deviation, whole)

    def of_key(seed: int) -> Key:
        made = of_seed(seed)
        if seed > 2**128:  # a key that goes as a number
            seen.names[made.secret] = (int(seed).to_bytes(32, "big"), ("seed",))
        return made

    def charged(self: Transaction, mechanism: Any, **given: Any) -> Any:
        result = charge(self, mechanism, **given)
        if not seen.rehearsing:
            seen.plans.append(result[0])
        return result

    def rehearsed(self: Prepared) -> None:
        seen.rehearsing = True
        try:
            rehearse(self)
        finally:
            seen.rehearsing = False

    with pytest.MonkeyPatch.context() as patch:
        rehearsals.left_out(patch)
        patch.setattr(Key, "child", named)
        patch.setattr(Key, "words", drawn)
        patch.setattr(WholeNormals, "__init__", started)
        patch.setattr(WholeNormals, "_make", made)
        patch.setattr(secure, "add_whole", added)
        patch.setattr(Key, "of_seed", staticmethod(of_key))
        patch.setattr(transaction.Transaction, "charge", charged)
        patch.setattr(Prepared, "rehearse", rehearsed)
        yield seen


@contextmanager
def same_secrets(seed: int = 0) -> Iterator[None]:
    """Let the operating system's randomness be the same each time."""
    numbers = itertools.count()

    def fresh() -> Key:
        return Key(hashlib.sha256(f"{seed} {next(numbers)}".encode()).digest())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Key, "fresh", staticmethod(fresh))
        for module in (ledgers, _fit):
            patch.setattr(module, "secrets", SimpleNamespace(token_hex=lambda size: "5a" * size))
        yield


# --- files ----------------------------------------------------------------------------------------


def read(path: Path) -> bytes:
    """Return a file's content, nothing where there is none."""
    return path.read_bytes() if path.exists() else b""


def book(path: Path) -> Book:
    """Return what a ledger's file says, whatever its head is."""
    return follow(path, path.read_bytes())


def files(*places: Path) -> dict[Path, bytes]:
    """Return everything in files and folders but for locks."""
    every = [one for place in places for one in (place, *place.rglob("*"))]
    return {one: one.read_bytes() for one in every if one.is_file() and one.suffix != ".lock"}


def holds(content: bytes, secret: bytes) -> bool:
    """Return whether a secret of 32 bytes is written there, in any usual way."""
    number = str(int.from_bytes(secret, "big")).encode()
    listed = ", ".join(map(str, secret)).encode()
    texts = (secret.hex().encode(), base64.b64encode(secret).rstrip(b"="), number, listed)
    safe = base64.urlsafe_b64encode(secret).rstrip(b"=")
    return any(one in content for one in (secret, *texts, safe, secret.hex().upper().encode()))


def candidates(content: bytes) -> set[bytes]:
    """Return everything of 32 bytes that a reader of a file could try as a key."""
    found = {bytes.fromhex(one.decode()) for one in re.findall(rb"(?=([0-9a-f]{64}))", content)}
    for one in re.findall(rb"(?=([A-Za-z0-9+/_-]{43}))", content):
        found.add(base64.b64decode(one.translate(bytes.maketrans(b"-_", b"+/")) + b"="))
    return found | {content[at : at + 32] for at in range(max(len(content) - 31, 0))}


# --- interruptions and rivals ---------------------------------------------------------------------


@contextmanager
def events(act: Callable[[int], object]) -> Iterator[list[str]]:
    """Call ``act`` with its number before each change of a file that others may see."""
    seen: list[str] = []

    def before(name: str) -> None:
        seen.append(name)
        act(len(seen))

    def watched(module: Any, name: str) -> Callable[..., Any]:
        usual = getattr(module, name)

        def changed(*arguments: Any, **given: Any) -> Any:
            before(name)
            return usual(*arguments, **given)

        return changed

    def torn(path: Path, known: chain.Chain, content: Any) -> Any:
        line, _ = chain.link(known.last, content)
        whole = path.read_bytes()
        seen.append("half a line")
        with path.open("ab", buffering=0) as file:
            file.write(line[: len(line) // 2])
        act(len(seen))
        path.write_bytes(whole)
        before("a line")
        return append(path, known, content)

    append = chain.append
    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "fsync", "link", "rename", "unlink", "rmdir", "mkdir"):
            patch.setattr(os, name, watched(os, name))
        patch.setattr(ledgers, "append", torn)
        yield seen


def killed(work: Callable[[], object], when: int | Callable[[int], bool]) -> bool:
    """Do a work in a process that dies at its n-th event, or one; return whether it came to it."""
    dies = when if callable(when) else when.__eq__
    assert sys.platform != "win32"
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        code = 3
        signal.alarm(_LONGEST)  # a lock that another thread held at the fork is never released
        try:
            with events(lambda now: os._exit(9) if dies(now) else None):
                work()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert code in (0, 9)
    return code == 9


@contextmanager
def rival(path: Path, turn: int, spend: Callable[[], object]) -> Iterator[list[int]]:
    """Let another spend just before the ledger's lock is taken for the n-th time."""
    turns: list[int] = []
    usual = chain.lock

    def lock(file: Path) -> Any:
        result = usual(file)
        if file == path and not result.is_locked:
            turns.append(len(turns) + 1)
            if len(turns) == turn:
                spend()
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledgers, "lock", lock)
        yield turns
