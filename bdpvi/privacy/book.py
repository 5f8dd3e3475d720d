"""The content of a ledger: charges, marks, and the unit they belong to."""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from bdpvi._ground import validate
from bdpvi._ground.chain import Chain, chained, proven
from bdpvi._ground.outputs import several
from bdpvi._ground.types import Budget
from bdpvi.privacy.conceivable import Influence
from bdpvi.privacy.cost import RECORD
from bdpvi.privacy.events import (
    ExponentialMechanism,
    ModeDraws,
    PerturbedObjective,
    SampledGaussian,
    Threshold,
)
from bdpvi.privacy.note import Note

FORMAT = 3


class Unsaid(str):
    """The unit of privacy where no column is named; a text of the same letters names a column."""

    __slots__ = ()


ROW = Unsaid("row")
Priced = SampledGaussian | PerturbedObjective | ModeDraws | ExponentialMechanism | Threshold
"""Events as a ledger stores them: the parts that the worst case needs."""
_EVENTS = (SampledGaussian, PerturbedObjective, ModeDraws, ExponentialMechanism, Threshold)
RESERVED, ENDED = "reserved", "ended"
KINDS = ("draws", "constants", "release", "steps", "rounds", RESERVED, ENDED)
_TEXT = {"purpose": re.compile("[a-z0-9 ]{0,80}"), "seal": re.compile("[0-9a-f]{0,64}")}


class TemperatureOrigin(str, Enum):
    """Where a temperature comes from.

    Attributes:
        OWNER: chosen without looking at the data.
        CONSTANTS: computed from public numbers.
        DATA: computed from the records; a release at it has no worst-case guarantee.
    """

    OWNER = "owner"
    CONSTANTS = "constants"
    DATA = "data"


@dataclass(frozen=True)
class Charge:
    """``draws`` samples at ``temperature``, as :func:`bdpvi.bayesian.calibrate` returns them.

    It is not a number and has no arithmetic, so that the origin of the temperature stays with it.

    Attributes:
        draws: number of samples.
        temperature: τ of the draws.
        origin: where τ comes from.
        ledger: id of the ledger that τ was computed for; "" for any.

    >>> Charge(10, 5.0).origin.value
    'owner'
    """

    draws: int
    temperature: float
    origin: TemperatureOrigin = TemperatureOrigin.OWNER
    ledger: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", validate.positive_int("draws", self.draws))
        object.__setattr__(self, "temperature", validate.positive("temperature", self.temperature))
        validate.choice("origin", self.origin, [one.value for one in TemperatureOrigin])
        object.__setattr__(self, "origin", TemperatureOrigin(self.origin))

    @property
    def from_data(self) -> bool:
        """Whether the temperature was computed from the records."""
        return self.origin is TemperatureOrigin.DATA


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One charge.

    Attributes:
        kind: one of :data:`KINDS`.
        of: id of the work it belongs to: a fit, a network, a federation, a call.
        charge: the draws, if it is a charge for draws.
        events: the parts that the worst case needs; None if nothing bounds a record.
        count: number of repetitions, each at this price.
        purpose: the step of the work. After an interruption the same command repeats it from the
            same key, at no further price.
        seal: hash of the key that all its randomness follows from. A ledger never contains the key
            itself.
        note: when it was made and what for; two charges that differ in it alone are equal. None in
            ledgers of earlier versions.
    """

    kind: str
    of: str = ""
    charge: Charge | None = None
    events: tuple[Priced, ...] | None = ()
    count: int = 1
    purpose: str = ""
    seal: str = ""
    note: Note | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        validate.choice("kind", self.kind, KINDS)
        validate.positive_int("count", self.count)
        for name, pattern in _TEXT.items():
            if not isinstance(text := getattr(self, name), str) or not pattern.fullmatch(text):
                raise ValueError(f"{name} must match {pattern.pattern}, got {text!r:.80}")

    @property
    def purchase(self) -> str:
        """The public name of a charge for private preprocessing; "" for other charges."""
        return digest_of(self.seal) if self.kind == "constants" and self.seal else ""

    @property
    def once(self) -> str:
        """One of its ``count`` repetitions, in words."""
        if self.charge is None:
            return self.kind
        found = ", found from the data" if self.charge.from_data else ""
        return (
            f"{several(self.charge.draws, 'draw')} at temperature "
            f"{self.charge.temperature:.4g}{found}"
        )

    def __str__(self) -> str:
        return self.once + (f" × {self.count}" if self.count > 1 else "")

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types, without the fields that are not set."""
        content: dict[str, Any] = {"kind": self.kind, "of": self.of}
        if self.charge is not None:
            content["draws"] = self.charge.draws
            content["temperature"] = self.charge.temperature
            content["origin"] = self.charge.origin.value
        content["events"] = self.events and [
            {"event": type(one).__name__, **_fields(one)} for one in self.events
        ]
        content |= {"count": self.count, "purpose": self.purpose, "seal": self.seal}
        return content | ({"note": self.note.to_dict()} if self.note else {})

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Entry:
        """Read what :meth:`to_dict` returned.

        Raises:
            ValueError, KeyError, TypeError: if it is anything else.
        """
        rest = dict(content)
        charge = None
        if "draws" in rest:
            charge = Charge(*(rest.pop(name) for name in ("draws", "temperature", "origin")))
        events, note = rest.pop("events"), rest.pop("note", None)
        return cls(
            charge=charge,
            events=None if events is None else _events(events),
            note=None if note is None else Note(**note),
            **rest,
        )


def digest_of(seal: str) -> str:
    """Return a public name of a charge, which does not occur in the ledger."""
    return hashlib.sha256(b"bdpvi purchase" + seal.encode()).hexdigest()


def _fields(event: Priced) -> dict[str, Any]:
    """Return an event's fields without the panel's norms, which are secret and not needed here."""
    found = {one.name: getattr(event, one.name) for one in fields(event) if one.name != "norms"}
    return {name: v.to_dict() if isinstance(v, Influence) else v for name, v in found.items()}


def _events(content: Sequence[Mapping[str, Any]]) -> tuple[Priced, ...]:
    kinds = {kind.__name__: kind for kind in _EVENTS}
    return tuple(
        kinds[validate.choice("event", one["event"], kinds)](
            **{name: value for name, value in one.items() if name != "event"}
        )
        for one in content
    )


@dataclass(frozen=True)
class Book:
    """The content of a ledger.

    Attributes:
        id: id of the ledger.
        budget: the total that may be spent, if one was set.
        unit: the unit of privacy: a row, or the column that names persons.
        rows: the most rows that one unit has.
        entries: in the order they were charged.
        counts: number of charges of each fit, network or federation.
        events: all events of the worst case, with counts; None if the worst case is unbounded.
        opened: works whose reservation is open.
        marks: ids of the fits that had a temperature computed from the data.
        fits: digests of the fits that were saved.
        refused: when a target was refused by looking at the records; no charge covers such a look.
        file: the lines; its ``rest`` holds what they do not prove.
    """

    id: str
    budget: Budget | None = None
    unit: str = ROW
    rows: int = 1
    entries: tuple[Entry, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    events: Counter[Priced] | None = field(default_factory=Counter)
    opened: frozenset[str] = frozenset()
    marks: frozenset[str] = frozenset()
    fits: frozenset[str] = frozenset()
    refused: tuple[str, ...] = ()
    file: Chain = field(default_factory=Chain)

    @property
    def whose(self) -> str:
        """The unit whose presence is hidden, in words."""
        if self.unit == ROW:
            return RECORD
        return f"all records, at most {self.rows}, of one person ({self.unit!r})"

    @property
    def charges(self) -> tuple[Entry, ...]:
        """The entries that are charges, with or without a reservation."""
        return tuple(one for one in self.entries if one.kind not in (RESERVED, ENDED))

    def of_entries(self, entries: Iterable[Entry]) -> Book:
        """Return the book with only these entries."""
        entries = tuple(entries)
        return replace(self, entries=entries, events=tally(entries), opened=_opened(entries))

    def without(self, of: str) -> Book:
        """Return the book without this work."""
        return self.of_entries(one for one in self.entries if one.of != of)

    @cached_property
    def merged(self) -> Merged:
        """All events of the worst case."""
        assert self.events is not None
        return Merged(self.rows).plus(self.events)

    @property
    def header(self) -> dict[str, Any]:
        """The first line."""
        budget = asdict(self.budget) if self.budget else None
        return {
            "format": FORMAT, "id": self.id, "budget": budget,
            "unit": self.unit, "rows_per_unit": self.rows,
        }  # fmt: skip

    def content(self) -> bytes:
        """Return a whole file."""
        return chained(self.header, *self._lines())

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Return all lines after the first: in the file's order, or by kind."""
        if self.file.said:
            yield from self.file.said[1:]
            return
        yield from ({"charge": one.to_dict()} for one in self.entries)
        yield from ({"mark": one} for one in sorted(self.marks))
        yield from ({"fit": one} for one in sorted(self.fits))
        yield from ({"refused": one} for one in self.refused)

    def with_lines(self, file: Chain, *lines: tuple[str, Entry | str]) -> Book:
        """Return the book with more lines, from :func:`read_line`; ``file`` then has them all."""
        added: list[Entry] = []
        found: dict[str, list[str]] = {"mark": [], "fit": [], "refused": []}
        for kind, one in lines:
            if isinstance(one, Entry):
                added.append(one)
            else:
                found[kind].append(one)
        counts, entries = Counter(self.counts), (*self.entries, *added)
        opened, events = self.opened, self.events
        for entry in added:
            counts[entry.of] += entry.count
            opened = _opened([entry], opened)
        known = None
        if opened or opened != self.opened or events is None:
            events = tally(entries)
        elif (more := tally(added)) is None:
            events = None
        else:  # earlier charges count as before
            known = self.merged.plus(more) if self.rows == 1 else None
            events = Counter(events)
            events.update(more)
        made = replace(
            self,
            entries=entries,
            counts=counts,
            events=events,
            opened=opened,
            marks=self.marks.union(found["mark"]),
            fits=self.fits.union(found["fit"]),
            refused=(*self.refused, *found["refused"]),
            file=file,
        )
        if known is not None:
            made.__dict__["merged"] = known
        return made


def read_line(content: Mapping[str, Any]) -> tuple[str, Entry | str]:
    """Return the kind of a line, and its content.

    Raises:
        ValueError, KeyError, TypeError: if it is not a line of a ledger.
    """
    ((kind, said),) = content.items()
    if kind == "charge":
        return kind, Entry.from_dict(said)
    if kind not in ("mark", "fit", "refused") or not isinstance(said, str):
        raise ValueError(f"a ledger has no line {kind!r:.80}")
    return kind, said


def tally(entries: Iterable[Entry]) -> Counter[Priced] | None:
    """Return how often each event counts; None if one has no price.

    While a reservation is open, it counts in place of all other charges of its work.

    >>> all_of_it, part = (SampledGaussian(noise_multiplier=z) for z in (1.0, 3.0))
    >>> made = [Entry(kind=RESERVED, of="a", events=(all_of_it,))]
    >>> made.append(Entry(kind="constants", of="a", events=(part,)))
    >>> tally(made) == Counter([all_of_it])
    True
    >>> tally([*made, Entry(kind=ENDED, of="a")]) == Counter([part])
    True
    """
    entries = list(entries)
    opened = _opened(entries)
    found: Counter[Priced] = Counter()
    for entry in entries:
        if (entry.kind == RESERVED) != (entry.of in opened):
            continue
        if entry.events is None:
            return None
        for event in entry.events:
            found[event] += entry.count
    return found


def _opened(entries: Iterable[Entry], before: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the works whose reservation is open after these entries."""
    found = set(before)
    for one in entries:
        if one.kind == RESERVED:
            found.add(one.of)
        elif one.kind == ENDED:
            found.discard(one.of)
    return frozenset(found)


def for_unit(events: Mapping[Priced, int], rows: int = 1) -> Iterator[Priced]:
    """Yield events as they count for a unit of several rows, each repeated by its count.

    For k rows a Gaussian mechanism of distance μ costs at most what one of distance kμ costs for
    one row (Dong, Roth and Su 2022, Theorem 2.14), and a choice of range η costs at most range kη.
    Steps that sample rows are those of k rows, :func:`.loss_distribution.step`. A threshold already
    covers all rows of a unit. Objective perturbation is not here:
    :func:`bdpvi.privacy.groups.row_by_row` prices it together with all other events.

    Args:
        events: with how often each was charged.
        rows: k, the rows of one unit.

    Raises:
        ValueError: if a unit has several rows and no formula here prices an event.
    """
    for one, count in events.items():
        if isinstance(one, SampledGaussian):
            if rows > 1 and one.presence < 1:
                raise ValueError(
                    f"rows_per_unit={rows}: steps with seen coins of clients have no known cost "
                    f"for {rows} rows per unit"
                )
            if rows == count == 1 and one.norms is None:
                yield one
                continue
            made = replace(one, steps=count * one.steps, rounding=count * one.rounding, norms=None)
            if one.rate < 1:
                yield replace(made, rows=rows * one.rows)
            else:
                yield replace(made, noise_multiplier=one.noise_multiplier / rows)
        elif isinstance(one, ModeDraws):
            if rows > 1:
                raise ValueError(
                    f"rows_per_unit={rows}: draws at a posterior mode have no known worst-case "
                    f"cost for {rows} rows per unit"
                )
            yield replace(one, draws=count * one.draws, rounding=count * one.rounding)
        elif isinstance(one, PerturbedObjective) and rows > 1:
            raise ValueError(
                f"rows_per_unit={rows}: a minimum of a perturbed objective has no event for "
                f"{rows} rows per unit; bdpvi.privacy.left.together prices it"
            )
        elif isinstance(one, ExponentialMechanism):
            yield from [ExponentialMechanism(rows * one.range)] * count
        else:
            yield from [one] * count


def merged(events: Iterable[Priced]) -> tuple[Priced, ...]:
    """Return events of the same joint cost: :attr:`Merged.events`.

    >>> one, two = (SampledGaussian(noise_multiplier=1 / mu) for mu in (0.3, 0.4))
    >>> merged([one, two])[0].noise_multiplier
    2.0
    """
    return Merged().plus(Counter(events)).events


_LARGEST = sys.float_info.max
"""What an infinite distance counts as: its sum is an OverflowError, and never an ε."""


@dataclass(frozen=True)
class _Alike:
    """Steps whose numbers, or whose squared distances, add up.

    Attributes:
        first: one of them.
        steps: number of steps.
        precision: sum of their squared distances.
        rounding: sum of theirs.
        equal: whether all are equal.
    """

    first: SampledGaussian
    steps: int = 0
    precision: Fraction = Fraction(0)
    rounding: Fraction = Fraction(0)
    equal: bool = True

    def plus(self, one: SampledGaussian, count: int) -> _Alike:
        """Return them with another, repeated."""
        steps = count * one.steps
        return _Alike(
            self.first,
            self.steps + steps,
            self.precision + steps * Fraction(min(1 / one.noise_multiplier, _LARGEST)) ** 2,
            self.rounding + count * Fraction(one.rounding),
            self.equal and one == self.first,
        )

    @cached_property
    def together(self) -> SampledGaussian:
        """One event of their joint cost."""
        steps, noise = self.steps, self.first.noise_multiplier
        if not self.equal and self.first.rate == self.first.presence == 1:
            steps, noise = 1, float(self.precision) ** -0.5
        rounding = float(self.rounding)
        return replace(self.first, noise_multiplier=noise, steps=steps, rounding=rounding)


@dataclass(frozen=True)
class Merged:
    """Events with counts, so that one more costs no look at all of them.

    Equal steps add up, and so do the squared distances of Gaussian mechanisms (Dong, Roth and Su
    2022, Corollary 2). Sums are exact: no order of charges changes a bit.

    Attributes:
        rows: the most rows of one unit; see :func:`for_unit`.
        alike: steps that are alike.
        others: all other events.
    """

    rows: int = 1
    alike: Mapping[tuple[Any, ...], _Alike] = field(default_factory=dict)
    others: Counter[Priced] = field(default_factory=Counter)

    def plus(self, events: Mapping[Priced, int]) -> Merged:
        """Return them with more events."""
        alike, others = dict(self.alike), Counter(self.others)
        for one, count in events.items():
            if not isinstance(one, SampledGaussian):
                others[one] += count
                continue
            (unit,) = for_unit({one: 1}, self.rows)
            assert isinstance(unit, SampledGaussian)
            noise = 0.0 if unit.rate == unit.presence == 1 else unit.noise_multiplier
            key = (unit.relation.value, unit.unit, unit.rate, unit.presence, unit.rows, noise)
            alike[key] = alike.get(key, _Alike(unit)).plus(unit, count)
        return Merged(self.rows, alike, others)

    @property
    def events(self) -> tuple[Priced, ...]:
        """Events of the same joint cost, in an order that does not depend on that of charges."""
        found = (self.alike[key].together for key in sorted(self.alike))
        return (*found, *sorted(for_unit(self.others, self.rows), key=repr))


def checked(budget: Budget | None, unit: str, rows: int) -> None:
    """Raise ValueError unless these terms are valid for a ledger."""
    if budget is not None and not isinstance(budget, Budget):
        raise ValueError(f"budget must be a Budget or None, got {budget!r}")
    if not isinstance(unit, str) or not unit:
        raise ValueError(f"unit must be {ROW!r} or the column that names persons, got {unit!r}")
    if validate.positive_int("rows_per_unit", rows) > 1 and unit == ROW:
        raise ValueError(f"rows_per_unit={rows} needs unit=, the column that names persons")


def follow(path: Path, content: bytes, known: Book | None = None) -> Book:
    """Return the book that a file proves; a truncated last line is in its ``rest``.

    Args:
        path: for messages.
        content: content of the file.
        known: the book that its beginning proves.

    Raises:
        ValueError: if not even the first line is valid, or it is not a ledger of this format.
    """
    file = proven(content, None if known is None else known.file)
    number, lines = 1, []
    try:
        if known is None:
            if not file.said:
                raise ValueError(file.why or "it is empty")
            known = _begun(file.said[0])
        first = len(known.file.said) or 1
        for number, one in enumerate(file.said[first:], start=first + 1):  # noqa: B007
            lines.append(read_line(one))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        lost = "or fit again" if content else f"or `bdpvi account {path} --repair`"
        raise ValueError(
            f"{path}, line {number}, cannot be used: {error}. Nothing in the file counts as "
            f"proven: put back the newest copy of it, {lost}"
        ) from error
    return known.with_lines(file, *lines)


def _begun(header: Mapping[str, Any]) -> Book:
    """Return the book that a first line begins."""
    if header["format"] != FORMAT:
        raise ValueError(
            f"it has format {header['format']!r}, not {FORMAT}: another version of bdpvi made it; "
            "fit again"
        )
    budget, unit, rows = header["budget"], header["unit"], header["rows_per_unit"]
    made = Book(str(header["id"]), None if budget is None else Budget(**budget), unit, rows)
    checked(made.budget, unit, rows)
    return made
