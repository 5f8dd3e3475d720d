"""The durable record of what was released about the people of one table.

There is one ledger for one table: fits, releases, bought constants and networks write to it, and
what they cost together is computed from it alone (:func:`bdpvi.accounting.bought.together`).
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from filelock import FileLock

from bdpvi._runtime import store, validate
from bdpvi.accounting.chain import Chain, chained, link, proven
from bdpvi.types import Budget, People

FORMAT = 2
_HEX = re.compile("[0-9a-f]{0,64}")


@dataclass(frozen=True)
class Charge:
    """Samples of one release: what :func:`bdpvi.calibrate` returns and a ledger writes down.

    Attributes:
        draws: number of samples.
        temperature: τ that they are drawn at.
        from_data: whether the temperature was found from the training data. It then says something
            of them itself, so no worst-case guarantee holds for anything released with it.
        purpose: digest of what the draws are for, if they may be made again: by the same command
            after an interruption, from the same key and at no further price.
        key: secret, in hexadecimal; what all of these draws follow from.
        of: the fit's id.
        distance: μ of these draws, no worse than a Gaussian mechanism of that distance for any
            record there may be; None where nothing bounds that.
        rounding: total variation between the samples and exact ones.
    """

    draws: int
    temperature: float
    from_data: bool = False
    purpose: str = ""
    key: str = field(default="", repr=False)
    of: str = field(default="", repr=False, compare=False)
    distance: float | None = field(default=None, repr=False, compare=False)
    rounding: float = field(default=0.0, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", validate.positive_int("draws", self.draws))
        object.__setattr__(self, "temperature", validate.positive("temperature", self.temperature))
        if not isinstance(self.from_data, bool):
            raise ValueError(f"from_data must be True or False, got {self.from_data!r}")
        if self.distance is not None:
            validate.non_negative("distance", self.distance)
        validate.non_negative("rounding", self.rounding)
        _check_hex(self, "purpose", "key", "of")

    def __str__(self) -> str:
        found = ", found from the data" if self.from_data else ""
        return f"{self.draws} draws at temperature {self.temperature:.4g}{found}"


@dataclass(frozen=True)
class Bought:
    """What was learnt of the table besides samples, paid for: constants, counts, or a whole fit.

    It is no worse than a Gaussian mechanism of that distance μ, but for a δ of its own.

    Attributes:
        distance: μ, as in μ-Gaussian DP.
        delta: δ besides.
        rounding: total variation between what was learnt and what that price is for.
        of: the fit's id.
        purpose: digest of what it is for; it is charged once.
    """

    distance: float
    delta: float = 0.0
    rounding: float = 0.0
    of: str = field(default="", repr=False, compare=False)
    purpose: str = field(default="", repr=False, compare=False)

    def __post_init__(self) -> None:
        distance = validate.non_negative("distance", self.distance)
        object.__setattr__(self, "distance", distance)
        validate.non_negative("rounding", self.rounding)
        delta = validate.non_negative("delta", self.delta)
        if not delta < 1:
            raise ValueError(f"delta must be below 1, got {self.delta!r}")
        object.__setattr__(self, "delta", delta)
        _check_hex(self, "purpose", "of")

    def __str__(self) -> str:
        return f"bought from the table: Gaussian DP of distance {self.distance:.4g}"


@dataclass(frozen=True)
class Steps:
    """Steps of training, each a clipped sum over a Poisson sample with Gaussian noise.

    Attributes:
        noise_multiplier: z, in units of the clip.
        rate: Poisson sampling rate q.
        steps: their number. They are written down before they are taken.
        rounding: total variation of all of them.
        of: the run's id.
    """

    noise_multiplier: float
    rate: float
    steps: int
    rounding: float = 0.0
    of: str = field(default="", repr=False, compare=False)

    def __post_init__(self) -> None:
        validate.positive("noise_multiplier", self.noise_multiplier)
        validate.rate("rate", self.rate)
        validate.positive_int("steps", self.steps)
        validate.non_negative("rounding", self.rounding)
        _check_hex(self, "of")

    def __str__(self) -> str:
        z, q = self.noise_multiplier, self.rate
        return f"{self.steps} steps of training at noise multiplier {z:.4g}, rate {q:.4g}"


@dataclass(frozen=True)
class Mark:
    """A temperature was found from the records: from then on a plain number counts as such.

    Attributes:
        of: the fit's id.
    """

    of: str

    def __post_init__(self) -> None:
        _check_hex(self, "of")


@dataclass(frozen=True)
class Fitted:
    """A fit was saved.

    Attributes:
        of: its id.
        digest: of its file, in hexadecimal.
    """

    of: str
    digest: str

    def __post_init__(self) -> None:
        _check_hex(self, "of", "digest")


@dataclass(frozen=True)
class Limit:
    """What may be spent in all was decided, or decided anew."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)


Line = Charge | Bought | Steps | Mark | Fitted | Limit
"""What a ledger writes down."""
KINDS: dict[str, type[Line]] = {
    "draws": Charge, "bought": Bought, "steps": Steps, "mark": Mark, "fit": Fitted, "limit": Limit,
}  # fmt: skip
_NAMES = {kind: name for name, kind in KINDS.items()}


def _check_hex(line: Any, *names: str) -> None:
    for name in names:
        if not isinstance(text := getattr(line, name), str) or not _HEX.fullmatch(text):
            raise ValueError(f"{name} must be hexadecimal digits, got {text!r:.80}")


@dataclass(frozen=True)
class Unit:
    """What is protected, fixed when the ledger is made.

    Attributes:
        name: "row", or the column that names persons.
        rows: k, how many rows of the table one of them has at most.
    """

    name: str = "row"
    rows: int = 1

    def __post_init__(self) -> None:
        validate.positive_int("rows_per_unit", self.rows)


class Book(NamedTuple):
    """The content of a ledger.

    Attributes:
        id: of the ledger.
        unit: what is protected.
        lines: in the order they were written.
        file: the lines; what they do not prove is in its ``rest``.
    """

    id: str
    unit: Unit
    lines: tuple[Line, ...]
    file: Chain = Chain((), "", (), "")


class Ledger:
    """Charges in the order they were made, in memory or in a file that outlives the process.

    A charge is on the disk before :meth:`charge` returns, so a draw that follows it can never be
    forgotten; a crash in between costs budget, not privacy.

    A file's first line names the ledger and the unit; every line ends in the SHA-256 of itself and
    of the hash before it. So a file that is missing, edited, reordered or another one is refused.
    A last line whose writing was cut off is cut back by the next charge: nothing was drawn for it.
    What cannot be seen is whole lines cut off the end and an old copy of the file put back, unless
    a release's secret receipt shows it, nor whoever edits the file and works out all hashes anew.

    Args:
        path: a file that :meth:`at` made, whole by :func:`repair` where it is damaged; None keeps
            the charges in memory, for this process alone.
        id: of the ledger that the file must be; None takes any.
        budget: what may be spent in all, for a ledger in memory; a file holds its own.
        unit: what is protected, for a ledger in memory.

    >>> ledger = Ledger()
    >>> ledger.charge(Charge(draws=10, temperature=5.0))
    >>> ledger.charges()
    (Charge(draws=10, temperature=5.0, from_data=False, purpose=''),)
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        id: str | None = None,
        budget: Budget | None = None,
        unit: Unit | None = None,
    ) -> None:
        if budget is not None and not isinstance(budget, Budget):
            raise ValueError(f"budget must be a Budget or None, got {budget!r}")
        if budget is not None and path is not None:
            raise ValueError(f"budget={budget} was given, but that of {path} stands in the file")
        self.path = None if path is None else Path(path).resolve()
        self._id = id or (secrets.token_hex(16) if path is None else None)
        self._unit = unit or Unit()
        self._memory: list[Line] = [Limit(**asdict(budget))] if budget else []
        self._owner: int | None = os.getpid()
        self._threads: Any = threading.RLock()
        self.folders: dict[str, Path] = {}  # where this process keeps fits, by their ids

    def __getstate__(self) -> dict[str, Any]:
        # What a copy in memory is charged, the ledger it was copied from would never learn.
        return {**self.__dict__, "_owner": None, "_threads": None}

    @classmethod
    def at(cls, path: str | Path, *, unit: Unit | None = None) -> Ledger:
        """Return the ledger in a file of its own, which is made if it is not there.

        Raises:
            ValueError: if the file is there and protects another unit.
            OSError: if it cannot be made.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Ledger.at(f"{folder}/table.jsonl").charge(Bought(0.1))
        ...     Ledger.at(f"{folder}/table.jsonl").bought()
        (Bought(distance=0.1, delta=0.0, rounding=0.0),)
        """
        path = Path(path).resolve()
        with FileLock(f"{path}.lock", mode=0o600, is_singleton=True):
            if not path.exists():
                store.write(path, _content(secrets.token_hex(16), unit or Unit(), ()))
        found = cls(path)
        if unit is not None and found.unit != unit:
            raise ValueError(
                f"unit: {path} protects {found.unit.rows} rows of one {found.unit.name}, fixed "
                f"when it was made; got {unit.rows} of one {unit.name}"
            )
        return found

    @classmethod
    def beside(
        cls, table: str | Path, file: str | Path | None = None, *, unit: Unit | None = None
    ) -> Ledger:
        """Return the ledger of a table on the disk: a file beside it, or the one that is named.

        Whatever is released from the table goes on in it, wherever that is written.

        Raises:
            ValueError: as :meth:`at`, or if it cannot be written, naming it.
        """
        place = Path(f"{table}.ledger.jsonl") if file is None else Path(file)
        try:
            return cls.at(place, unit=unit)
        except OSError as error:
            raise ValueError(
                f"ledger: {place}, which says what was released from {table}, cannot be written "
                f"({error.strerror}); name another place by --ledger, the same for every command"
            ) from error

    @property
    def id(self) -> str:
        """The ledger's name, which a saved fit keeps."""
        return self._book().id

    @property
    def unit(self) -> Unit:
        """What is protected."""
        return self._book().unit

    @property
    def budget(self) -> Budget | None:
        """What may be spent in all, if that was decided."""
        return _budget(self._book().lines)

    def lines(self) -> tuple[Line, ...]:
        """Return everything.

        Raises:
            ValueError: if the file is damaged or another one; to read on could hide a release.
        """
        return self._book().lines

    def charges(self, of: str | None = None) -> tuple[Charge, ...]:
        """Return all releases of samples so far; of the fit ``of`` and those of none, if given."""
        return tuple(
            line
            for line in self._book().lines
            if isinstance(line, Charge) and (of is None or line.of in ("", of))
        )

    def bought(self) -> tuple[Bought, ...]:
        """Return all else that was paid for at once; errors as of :meth:`lines`."""
        return tuple(line for line in self._book().lines if isinstance(line, Bought))

    def limit(self, budget: Budget) -> None:
        """Decide what may be spent in all, if that is not what was decided before."""
        if self.budget != budget:
            self.charge(Limit(budget.epsilon, budget.delta))

    def charge(self, line: Line) -> None:
        """Append a line, durably; one whose purpose has been charged is not charged again.

        Raises:
            ValueError: if the file is damaged or another one, or if this is a copy of a ledger in
                memory, in a forked process for one, whose charges would be forgotten.
        """
        with self.locked():
            book = self._book()
            if purpose := getattr(line, "purpose", ""):
                kind = type(line)
                if any(type(one) is kind and vars(one)["purpose"] == purpose for one in book.lines):
                    return
            if self.path is None:
                self._memory.append(line)
                return
            written, _ = link(book.file.last, said(line))
            with self.path.open("r+b", buffering=0) as file:  # never creates it
                file.truncate(book.file.length)  # an append that never came to its end
                end = file.seek(0, os.SEEK_END)
                try:
                    if file.write(written) != len(written):
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

    def join(self, kept: Ledger) -> None:
        """Write what is in memory to another ledger, and go on in that one's file."""
        with self.locked(), kept.locked():
            for line in self.lines():
                kept.charge(line)
            self.path, self._id = kept.path, kept.id

    def move(self, path: Path) -> None:
        """Go on in the file at ``path``, which has to hold what :meth:`content` gave."""
        self.path = path

    def content(self, *more: Line) -> bytes:
        """Return a file with this ledger's lines, and more."""
        book = self._book()
        return _content(book.id, book.unit, (*book.lines, *more))

    def _book(self) -> Book:
        if self.path is None:
            assert self._id is not None
            return Book(self._id, self._unit, tuple(self._memory))
        with _lock(self.path, reading=True):
            book = _follow(self.path, self._id)
        if book.file.rest and not book.file.torn:
            raise ValueError(
                f"{self.path}, line {len(book.file.said) + 1}: {book.file.why}. Until that is "
                f"settled nothing can be released: `bdpvi ledger repair {self.path}`"
            )
        return book


class OfPeople(Protocol):
    """A table that is about people."""

    @property
    def people(self) -> People:
        """Those whom it is about."""


def ledger_of(data: OfPeople) -> Ledger:
    """Return the ledger of the people in a table; of all data sets that were selected from it.

    >>> import torch
    >>> from bdpvi.types import Dataset
    >>> data = Dataset(torch.zeros(3, 1), torch.zeros(3))
    >>> ledger_of(data.without(0)) is ledger_of(data)
    True
    """
    if data.people.ledger is None:
        data.people.ledger = Ledger()
    found = data.people.ledger
    assert isinstance(found, Ledger)
    return found


def said(line: Line) -> dict[str, Any]:
    """Return a line as JSON types."""
    return {"kind": _NAMES[type(line)], **asdict(line)}


def repair(path: str | Path, charges: Sequence[Line] = ()) -> tuple[Line, ...]:
    """Make a ledger whole again; return what was charged on top of what is proven.

    Lines are proven up to the first whose hash is wrong. The old file stays beside the new one, as
    ``ledger.damaged-1.jsonl``.

    Args:
        path: the file.
        charges: what the owner reports after the lines that are proven, instead of the rest of
            the file. On a file that is whole they are added.

    Raises:
        ValueError: if the first line is damaged, or there are lines that prove nothing, and no
            ``charges`` are given for them.
    """
    path = Path(path).resolve()
    with _lock(path):
        book = _follow(path, None)
        found, added = book.file, tuple(charges)
        if found.rest and not found.torn and not added:
            lines = "".join(f"\n  {line[:120]!r}" for line in found.rest)
            raise ValueError(
                f"{path}, line {len(found.said) + 1}: {found.why}. {len(book.lines)} lines are "
                "proven. What follows is not, and only the table's owner can know what was "
                "released: give all of it, in doubt too much, by --charge DRAWS,TEMPERATURE:"
                f"{lines}"
            )
        if added:
            names = (path.with_name(f"{path.stem}.damaged-{n}.jsonl") for n in itertools.count(1))
            store.write(next(name for name in names if not name.exists()), path.read_bytes())
            store.write(path, _content(book.id, book.unit, (*book.lines, *added)))
    return added


def _budget(lines: Sequence[Line]) -> Budget | None:
    decided = [line for line in lines if isinstance(line, Limit)]
    return Budget(**asdict(decided[-1])) if decided else None


@contextmanager
def _lock(path: Path, *, reading: bool = False) -> Iterator[None]:
    if not path.exists():  # or the lock would create the folder
        raise ValueError(
            f"{path} is missing, so nobody knows what was released about the people of this "
            "table: put the file back, the newest there is, or fit again"
        )
    lock = FileLock(f"{path}.lock", mode=0o600, is_singleton=True)  # so one thread may nest it
    try:
        lock.acquire()
    except OSError:
        if not reading:
            raise
        yield  # a folder that cannot be written to answers questions
        return
    try:
        yield
    finally:
        lock.release()


def _content(id: str, unit: Unit, lines: Sequence[Line]) -> bytes:
    """Return a whole file."""
    return chained({"format": FORMAT, "id": id, "unit": asdict(unit)}, *map(said, lines))


def _follow(path: Path, id: str | None) -> Book:
    """Return what the file proves.

    Raises:
        ValueError: if that is not even its first line, or if that names another ledger.
    """
    found = proven(path.read_bytes())
    lines: list[Line] = []
    number = 1
    try:
        if not found.said:
            raise ValueError(found.why or "it is empty")
        header, *rest = found.said
        if header["format"] != FORMAT:
            raise ValueError(f"it has format {header['format']!r}, not {FORMAT}: fit again")
        name, unit = str(header["id"]), Unit(**header["unit"])
        for one in rest:
            number += 1
            lines.append(KINDS[one.pop("kind")](**one))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(
            f"{path}, line {number}, cannot be used: {error}. Nothing in the file counts as "
            "proven: put back the newest copy of it, or fit again"
        ) from error
    if id not in (None, name):
        raise ValueError(
            f"{path} is another ledger than the one this fit was made for: one of the two was "
            "changed or exchanged. Put back the one that belongs to the other, or fit again"
        )
    return Book(name, unit, tuple(lines), found)
