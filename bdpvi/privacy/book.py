"""The content of a ledger: charges, and the unit they belong to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bdpvi._ground import validate
from bdpvi._ground.chain import Chain, proven, whole_file
from bdpvi._ground.types import Budget
from bdpvi.privacy.cost import RECORD
from bdpvi.privacy.entry import ENDED, RESERVED, Entry
from bdpvi.privacy.event import Event, for_unit

FORMAT = 3


class Unsaid(str):
    """The unit of privacy where no column is named; a text of the same letters names a column."""

    __slots__ = ()


ROW = Unsaid("row")
NOTHING = Budget(1e-9)
"""The budget of a table with unknown charges and an unknown budget."""


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
        fits: digests of the fits that were saved.
        refused: when a target was refused by looking at the records; no charge covers such a look.
        raised: when the budget was raised, and to what: ``TIME EPSILON DELTA``.
        file: the lines; its ``rest`` holds what they do not prove.
    """

    id: str
    budget: Budget | None = None
    unit: str = ROW
    rows: int = 1
    entries: tuple[Entry, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    events: Counter[Event] | None = field(default_factory=Counter)
    opened: frozenset[str] = frozenset()
    fits: frozenset[str] = frozenset()
    refused: tuple[str, ...] = ()
    raised: tuple[str, ...] = ()
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
        return tuple(entry for entry in self.entries if entry.kind not in (RESERVED, ENDED))

    def of_entries(self, entries: Iterable[Entry]) -> Book:
        """Return the book with only these entries."""
        entries = tuple(entries)
        return replace(self, entries=entries, events=tally(entries), opened=_open_works(entries))

    def without(self, of: str) -> Book:
        """Return the book without this work."""
        return self.of_entries(entry for entry in self.entries if entry.of != of)

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
        first = self.file.said[0] if self.raised and self.file.said else self.header
        return whole_file(first, *self._lines())

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Return all lines after the first: in the file's order, or by kind."""
        if self.file.said:
            yield from self.file.said[1:]
            return
        yield from ({"charge": entry.to_dict()} for entry in self.entries)
        yield from ({"fit": fit} for fit in sorted(self.fits))
        yield from ({"refused": one} for one in self.refused)
        yield from ({"raised": one} for one in self.raised)

    def with_lines(self, file: Chain, *lines: tuple[str, Entry | str]) -> Book:
        """Return the book with more lines, from :func:`read_line`; ``file`` then has them all."""
        added: list[Entry] = []
        found: dict[str, list[str]] = {"fit": [], "refused": [], "raised": []}
        for kind, one in lines:
            if isinstance(one, Entry):
                added.append(one)
            else:
                found[kind].append(one)
        counts, entries = Counter(self.counts), (*self.entries, *added)
        opened, events = self.opened, self.events
        for entry in added:
            counts[entry.of] += entry.count
            opened = _open_works([entry], opened)
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
            fits=self.fits.union(found["fit"]),
            refused=(*self.refused, *found["refused"]),
            raised=(*self.raised, *found["raised"]),
            budget=budget_of(found["raised"][-1]) if found["raised"] else self.budget,
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
    if kind not in ("mark", "fit", "refused", "raised") or not isinstance(said, str):
        raise ValueError(f"a ledger has no line {kind!r:.80}")
    if kind == "mark":  # of an earlier version: a temperature of this fit was found from the data
        return "charge", Entry(kind="draws", of=said, events=None)
    if kind == "raised":
        budget_of(said)
    return kind, said


def budget_of(raised: str) -> Budget:
    """Return the budget that a line says it was raised to.

    >>> budget_of("2026-01-31T23:59:00Z 3.0 1e-05")
    Budget(epsilon=3.0, delta=1e-05)
    """
    _, epsilon, delta = raised.split(" ")
    return Budget(float(epsilon), float(delta))


def tally(entries: Iterable[Entry]) -> Counter[Event] | None:
    """Return how often each event counts; None if one has no price.

    While a reservation is open, it counts in place of all other charges of its work.

    >>> from bdpvi.privacy.events import SampledGaussian
    >>> all_of_it, part = (SampledGaussian(noise_multiplier=z) for z in (1.0, 3.0))
    >>> made = [Entry(kind=RESERVED, of="a", events=(all_of_it,))]
    >>> made.append(Entry(kind="constants", of="a", events=(part,)))
    >>> tally(made) == Counter([all_of_it])
    True
    >>> tally([*made, Entry(kind=ENDED, of="a")]) == Counter([part])
    True
    """
    entries = list(entries)
    opened = _open_works(entries)
    result: Counter[Event] = Counter()
    for entry in entries:
        if (entry.kind == RESERVED) != (entry.of in opened):
            continue
        if entry.events is None:
            return None
        for event in entry.events:
            result[event] += entry.count
    return result


def _open_works(entries: Iterable[Entry], before: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the works whose reservation is open after these entries."""
    found = set(before)
    for entry in entries:
        if entry.kind == RESERVED:
            found.add(entry.of)
        elif entry.kind == ENDED:
            found.discard(entry.of)
    return frozenset(found)


def merged(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return events of the same joint cost: :attr:`Merged.events`.

    >>> from bdpvi.privacy.events import SampledGaussian
    >>> one, two = (SampledGaussian(noise_multiplier=1 / mu) for mu in (0.3, 0.4))
    >>> merged([one, two])[0].noise_multiplier
    2.0
    """
    return Merged().plus(Counter(events)).events


@dataclass(frozen=True)
class Merged:
    """Events with counts, so that one more costs no look at all of them.

    Those that are alike add up (:meth:`.Event.total`).

    Attributes:
        rows: the most rows of one unit; see :meth:`.Event.for_rows`.
        alike: sums of events that are alike.
        others: all other events.
    """

    rows: int = 1
    alike: Mapping[tuple[Any, ...], Any] = field(default_factory=dict)
    others: Counter[Event] = field(default_factory=Counter)

    def plus(self, events: Mapping[Event, int]) -> Merged:
        """Return them with more events."""
        alike, others = dict(self.alike), Counter(self.others)
        for one, count in events.items():
            unit = one.for_rows(self.rows)
            if (total := unit.total()) is None:
                others[unit] += count
            else:
                alike[total.key] = alike.get(total.key, total).plus(unit, count)
        return Merged(self.rows, alike, others)

    @property
    def events(self) -> tuple[Event, ...]:
        """Events of the same joint cost, in an order that does not depend on that of charges."""
        found = (self.alike[key].together for key in sorted(self.alike))
        return (*found, *sorted(for_unit(self.others), key=repr))


def check_terms(budget: Budget | None, unit: str, rows: int) -> None:
    """Raise ValueError unless these terms are valid for a ledger."""
    if budget is not None and not isinstance(budget, Budget):
        raise ValueError(f"budget must be a Budget or None, got {budget!r}")
    validate.text("unit", unit, len, f"be {ROW!r} or the column that names persons")
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
            known = _book_of(file.said[0])
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


def _book_of(header: Mapping[str, Any]) -> Book:
    """Return the book that a first line begins."""
    if header["format"] != FORMAT:
        raise ValueError(
            f"it has format {header['format']!r}, not {FORMAT}: another version of bdpvi made it; "
            "fit again"
        )
    budget, unit, rows = header["budget"], header["unit"], header["rows_per_unit"]
    made = Book(str(header["id"]), None if budget is None else Budget(**budget), unit, rows)
    check_terms(made.budget, unit, rows)
    return made
