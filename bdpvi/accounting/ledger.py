"""The durable record of what was released from a fit.

In a file it is JSON lines that show where they were changed: each ends in a hash of itself and of
all before.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock

from bdpvi._runtime import store, validate
from bdpvi.types import Budget

_FORMAT = 1
_HEX = re.compile("[0-9a-f]{0,64}")
_WRITTEN = re.compile(
    rb'\{"draws": (\d{1,15}), "temperature": ([0-9.e+-]{1,30}), ("from_data": f)?'
)


_NUMBER = rb"([0-9.e+-]{1,30})"
_PAID = re.compile(
    rb'\{"distance": ' + _NUMBER + rb', "delta": ' + _NUMBER + rb', "rounding": ' + _NUMBER + rb","
)


@dataclass(frozen=True)
class Charge:
    """One release: ``draws`` samples at ``temperature``.

    Attributes:
        draws: number of samples.
        temperature: τ that they were drawn at.
        from_data: whether the temperature was found from the training data. It then says something
            of them itself, so no worst-case guarantee holds for anything released with it.
        purpose: digest of what the draws are for, if they may be made again: by the same command
            after an interruption, from the same key and at no further price.
        key: secret, in hexadecimal; what all of these draws follow from.
    """

    draws: int
    temperature: float
    from_data: bool = False
    purpose: str = ""
    key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", validate.positive_int("draws", self.draws))
        object.__setattr__(self, "temperature", validate.positive("temperature", self.temperature))
        if not isinstance(self.from_data, bool):
            raise ValueError(f"from_data must be True or False, got {self.from_data!r}")
        for name in ("purpose", "key"):
            if not isinstance(text := getattr(self, name), str) or not _HEX.fullmatch(text):
                raise ValueError(f"{name} must be hexadecimal digits, got {text!r:.80}")


@dataclass(frozen=True)
class Bought:
    """What was learnt of the table before the fit, paid for: constants, or a whole release.

    It is no worse than a Gaussian mechanism of that distance μ, but for a δ of its own.

    Attributes:
        distance: μ, as in μ-Gaussian DP.
        delta: δ besides.
        rounding: total variation between what was learnt and what that price is for.
    """

    distance: float
    delta: float = 0.0
    rounding: float = 0.0

    def __post_init__(self) -> None:
        distance = validate.non_negative("distance", self.distance)
        object.__setattr__(self, "distance", distance)
        validate.non_negative("rounding", self.rounding)
        delta = validate.non_negative("delta", self.delta)
        if not delta < 1:
            raise ValueError(f"delta must be below 1, got {self.delta!r}")
        object.__setattr__(self, "delta", delta)


Line = Charge | Bought
"""What a ledger writes down."""


@dataclass(frozen=True)
class Chain:
    """The lines of a file whose hashes hold, and the rest.

    Attributes:
        said: the content of the lines before the first whose hash is wrong.
        last: the hash that the next line goes on from.
        rest: that first line and all after it.
        why: what is wrong with it, in words.
    """

    said: tuple[dict[str, Any], ...]
    last: str
    rest: tuple[bytes, ...]
    why: str


class Book(NamedTuple):
    """The content of a ledger.

    Attributes:
        budget: what may be spent in all, if that was decided.
        lines: charges, in the order they were made.
        binding: digest of the fit.
        file: the lines; what they do not prove is in its ``rest``.
    """

    budget: Budget | None
    lines: tuple[Line, ...]
    binding: str = ""
    file: Chain = Chain((), "", (), "")


class Ledger:
    """Charges in the order they were made, in memory or in a file that outlives the process.

    A charge is on the disk before :meth:`charge` returns, so a draw that follows it can never be
    forgotten; a crash in between costs budget, not privacy.

    A file's first line names the fit and what it may spend; every line ends in the
    SHA-256 of itself and of the hash before it. So a file that is missing, cut within a line,
    edited, reordered or another fit's is refused. What cannot be seen is whole lines cut off the
    end and an old copy of the whole folder put back, which both forget releases, nor whoever edits
    the file and works out all hashes anew.

    Args:
        path: the file of a fit that was saved, made whole by :func:`repair` where it is damaged;
            None keeps the charges in memory, for this process alone.
        binding: digest of the fit that the file must be of; None takes any.
        budget: what may be spent in all, for a ledger in memory; a file holds its own.

    >>> ledger = Ledger()
    >>> ledger.charge(Charge(draws=10, temperature=5.0))
    >>> ledger.charges()
    (Charge(draws=10, temperature=5.0, from_data=False, purpose=''),)
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
        self._memory: list[Line] = []
        self._owner: int | None = os.getpid()
        self._threads: Any = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        # What a copy in memory is charged, the ledger it was copied from would never learn.
        return {**self.__dict__, "_owner": None, "_threads": None}

    @classmethod
    def at(cls, path: str | Path) -> Ledger:
        """Return the ledger in a file of its own, which is made if it is not there.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Ledger.at(f"{folder}/table.jsonl").charge(Bought(0.1))
        ...     Ledger.at(f"{folder}/table.jsonl").bought()
        (Bought(distance=0.1, delta=0.0, rounding=0.0),)
        """
        path = Path(path).resolve()
        with FileLock(f"{path}.lock", mode=0o600, is_singleton=True):
            if not path.exists():
                store.write(path, _content("", None, ()))
        return cls(path)

    @property
    def budget(self) -> Budget | None:
        """What may be spent in all, if that was decided when the fit was made."""
        return self._book().budget

    def charges(self) -> tuple[Charge, ...]:
        """Return all releases of samples so far.

        Raises:
            ValueError: if the file is damaged or another fit's; to read on could hide a release.
        """
        return tuple(line for line in self._book().lines if isinstance(line, Charge))

    def bought(self) -> tuple[Bought, ...]:
        """Return all else that was paid for; errors as of :meth:`charges`."""
        return tuple(line for line in self._book().lines if isinstance(line, Bought))

    def charge(self, charge: Line) -> None:
        """Append ``charge``, durably.

        Raises:
            ValueError: if the file is damaged or another fit's, or if this is a copy of a ledger in
                memory, in a forked process for one, whose charges would be forgotten.
        """
        with self.locked():
            if self.path is None:
                self._memory.append(charge)
                return
            line, _ = _link(self._book().file.last, asdict(charge))
            with self.path.open("r+b", buffering=0) as file:  # never creates it
                end = file.seek(0, os.SEEK_END)
                try:
                    if file.write(line) != len(line):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                    os.fsync(file.fileno())
                except BaseException:
                    file.truncate(end)  # nothing follows a charge that is not on the disk
                    raise

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
        book = self._book()
        return _content(binding, book.budget, book.lines)

    def _book(self) -> Book:
        if self.path is None:
            return Book(self._budget, tuple(self._memory))
        with _lock(self.path):
            book = _follow(self.path, self.binding)
        if book.file.rest:
            raise ValueError(
                f"{self.path}, line {len(book.file.said) + 1}: {book.file.why}. Until that is "
                f"settled nothing can be released: `bdpvi ledger repair {self.path.parent}`"
            )
        return book


def repair(
    path: str | Path, charges: Sequence[Line] = (), *, binding: str | None = None
) -> tuple[Line, ...]:
    """Make a ledger whole again; return what was charged on top of what is proven.

    Lines are proven up to the first whose hash is wrong. A last line that was cut off is charged in
    full if the amount is still legible. The old file stays beside the new one, as
    ``ledger.damaged-1.jsonl``.

    Args:
        path: the file.
        charges: what the owner reports after the lines that are proven, instead of the rest of
            the file. On a file that is whole they are added.
        binding: digest of the fit that the file must be of; None takes any.

    Raises:
        ValueError: if the first line is damaged, or lines that prove nothing are more than one that
            was cut off, and no ``charges`` are given for them.
    """
    path = Path(path).resolve()
    with _lock(path):
        book = _follow(path, binding)
        found, added = book.file, tuple(charges) or _torn(book.file.rest)
        if found.rest and not added:
            said = "".join(f"\n  {line[:120]!r}" for line in found.rest)
            raise ValueError(
                f"{path}, line {len(found.said) + 1}: {found.why}. {len(book.lines)} charges are "
                "proven. What follows is not, and only the fit's owner can know what was released: "
                f"give all of it, in doubt too much, by --charge DRAWS,TEMPERATURE:{said}"
            )
        if added:
            names = (path.with_name(f"{path.stem}.damaged-{n}.jsonl") for n in itertools.count(1))
            store.write(next(name for name in names if not name.exists()), path.read_bytes())
            store.write(path, _content(book.binding, book.budget, (*book.lines, *added)))
    return added


def _lock(path: Path) -> FileLock:
    if not path.exists():  # or the lock would create the folder
        raise ValueError(
            f"{path} is missing, so nobody knows what was released from this fit: put the file "
            "back, the newest there is, or fit again"
        )
    return FileLock(f"{path}.lock", mode=0o600, is_singleton=True)  # so one thread may nest it


def _content(binding: str, budget: Budget | None, lines: Sequence[Line]) -> bytes:
    """Return a whole file."""
    header = {"format": _FORMAT, "fit": binding, "budget": asdict(budget) if budget else None}
    return chained(header, *map(asdict, lines))


def _follow(path: Path, binding: str | None) -> Book:
    """Return what the file proves.

    Raises:
        ValueError: if that is not even its first line, or if that names another fit.
    """
    found = proven(path.read_bytes())
    lines: list[Line] = []
    number = 1
    try:
        if not found.said:
            raise ValueError(found.why or "it is empty")
        header, *said = found.said
        if header["format"] != _FORMAT:
            raise ValueError(f"it has format {header['format']!r}, not {_FORMAT}")
        made_for, kept = str(header["fit"]), header["budget"]
        budget = None if kept is None else Budget(**kept)
        for one in said:
            number += 1
            lines.append(Bought(**one) if "distance" in one else Charge(**one))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(
            f"{path}, line {number}, cannot be used: {error}. Nothing in the file counts as "
            "proven: put back the newest copy of it, or fit again"
        ) from error
    if binding not in (None, made_for):
        raise ValueError(
            f"{path} was not made for {path.parent / 'fit.json'} as it is: one of the two was "
            "changed or exchanged. Put back the one that belongs to the other, or fit again"
        )
    return Book(budget, tuple(lines), made_for, found)


def _torn(rest: Sequence[bytes]) -> tuple[Line, ...]:
    """Return the charge of a last line that was cut off, if all of it is still legible."""
    if len(rest) != 1 or rest[0][-1:] == b"\n":
        return ()
    try:
        if found := _WRITTEN.match(rest[0]):
            return (Charge(int(found[1]), float(found[2]), found[3] is None),)
        if found := _PAID.match(rest[0]):
            return (Bought(*map(float, found.groups())),)
    except ValueError:
        pass
    return ()


def _link(previous: str, content: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the line with ``content`` that follows the hash ``previous``, and its own hash."""
    digest = hashlib.sha256((previous + json.dumps(content)).encode()).hexdigest()
    return (json.dumps({**content, "hash": digest}) + "\n").encode(), digest


def chained(*contents: Mapping[str, Any]) -> bytes:
    """Return a whole file.

    >>> proven(chained({"a": 1}, {"b": 2})).said
    ({'a': 1}, {'b': 2})
    >>> proven(chained({"a": 1}, {"b": 2}).replace(b"2", b"3", 1)).why
    'it was changed or is not in its place'
    """
    lines, last = [], ""
    for content in contents:
        line, last = _link(last, content)
        lines.append(line)
    return b"".join(lines)


def proven(file: bytes) -> Chain:
    """Read a file as far as its hashes prove it. Every byte counts; it does not raise."""
    said: list[dict[str, Any]] = []
    lines, last = file.splitlines(keepends=True), ""
    for number, line in enumerate(lines):
        try:
            content, last = _parse(last, line)
        except ValueError as error:
            return Chain(tuple(said), last, tuple(lines[number:]), str(error))
        said.append(content)
    return Chain(tuple(said), last, (), "")


def _parse(previous: str, line: bytes) -> tuple[dict[str, Any], str]:
    if not line.endswith(b"\n"):
        raise ValueError("it is cut off")
    try:
        content = json.loads(line)
        del content["hash"]
        expected, digest = _link(previous, content)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"it cannot be read ({error})") from error
    if line != expected:
        raise ValueError("it was changed or is not in its place")
    return content, digest
