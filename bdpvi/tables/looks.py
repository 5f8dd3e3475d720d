"""What the owner of a table sees before anything is spent: plain values and their lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bdpvi._ground.outputs import several
from bdpvi.datasets.formats import FileFormat

_SHOWN = 8
"""Most values of a target that are shown."""


@dataclass(frozen=True)
class Finding:
    """Something that is read otherwise than it seems meant.

    Attributes:
        words: what was found.
        option: the option, or what to declare in the table's public file; "" if nothing changes it.
        costly: whether the release would lose much by it.

    >>> print(Finding("column 'id' looks like an identifier", "--drop id"))
    column 'id' looks like an identifier: --drop id
    """

    words: str
    option: str = ""
    costly: bool = False

    def __str__(self) -> str:
        return f"{self.words}: {self.option}" if self.option else self.words


@dataclass(frozen=True)
class ColumnLook:
    """How the cells of a column are read.

    Attributes:
        name: name of the column.
        kind: the declared kind, or the one that its cells look like.
        declared: whether the kind is declared.
        numbers, names, blank, unread: numbers of cells; an unread one does not fit the declared
            kind and counts as a blank.
        levels: number of different values.
    """

    name: str
    kind: str
    declared: bool
    numbers: int
    names: int
    blank: int
    unread: int
    levels: int

    @property
    def filled(self) -> int:
        """The number of cells that are no blanks."""
        return self.numbers + self.names + self.unread

    def __str__(self) -> str:
        rows = self.filled + self.blank
        parts = [
            f"{100 * count / max(rows, 1):.0f} % {what}"
            for what, count in (
                ("numbers", self.numbers), ("names", self.names), ("blank", self.blank),
                ("unread", self.unread),
            )
            if count
        ]  # fmt: skip
        kind = self.kind if self.declared else f"{self.kind}?"
        return f"{self.name} ({kind}): {', '.join([*parts, several(self.levels, 'value')])}"


@dataclass(frozen=True)
class TargetLook:
    """The values of a target.

    Attributes:
        name: name of the column.
        positive: the value that counts as 1; "" if none was given.
        counts: number of cells with each value, most frequent first.
    """

    name: str
    positive: str
    counts: Mapping[str, int]

    def __str__(self) -> str:
        others = [one for one in self.counts if one != self.positive]
        listed = ", ".join(f"{one!r} ({self.counts[one]})" for one in others[:_SHOWN])
        listed += ", …" if len(others) > _SHOWN else ""
        if not self.positive:
            return f"target {self.name!r}: {listed}"
        count = self.counts.get(self.positive, 0)
        return f"target {self.name!r}: {self.positive!r} ({count}); not {self.positive!r}: {listed}"


@dataclass(frozen=True)
class PersonsLook:
    """A column whose values may name persons.

    Attributes:
        name: name of the column.
        persons: number of different values.
        median, usual, most: rows of a value: the median, the 95 % quantile and the largest.
        rows: rows with a value.
    """

    name: str
    persons: int
    median: int
    usual: int
    most: int
    rows: int

    def __str__(self) -> str:
        return (
            f"column {self.name!r} has {self.persons} different values in {self.rows} rows: "
            f"{self.median} each at the median, {self.usual} at 95 %, {self.most} at most"
        )


@dataclass(frozen=True)
class Price:
    """What ε pays for before the model.

    Attributes:
        epsilon: ε of everything.
        columns: columns whose bounds or categories are estimated privately, with their kinds.
        needed: the rows it needs.
        refused_below: with fewer rows nothing is fitted.
    """

    epsilon: float
    columns: Mapping[str, str]
    needed: int
    refused_below: int

    def __str__(self) -> str:
        if not self.columns:
            return f"the model gets all of ε = {self.epsilon:g}: all columns are declared"
        named = ", ".join(f"{name} ({kind})" for name, kind in self.columns.items())
        return (
            f"a fifth of ε = {self.epsilon:g} (of μ²) pays for bounds or categories of "
            f"{several(len(self.columns), 'column')}: {named}. It needs about {self.needed} rows; "
            f"below {self.refused_below} nothing is fitted. What the table's file or --constants "
            "declare costs nothing"
        )


@dataclass(frozen=True)
class TableLook:
    """What the owner sees of a table; it is secret, and changes no release.

    Attributes:
        rows: number of rows.
        file: how the file seems to be written.
        columns: its columns.
        findings: what is read otherwise than it seems meant.
        target: the values of the target, if one was named.
        persons: columns that may name persons, best first.
        price: what ε pays for, if it was given with the target.
        first: number of first rows that all but the counts of cells is from; 0 if it is from all.
    """

    rows: int
    file: FileFormat
    columns: tuple[ColumnLook, ...]
    findings: tuple[Finding, ...] = ()
    target: TargetLook | None = None
    persons: tuple[PersonsLook, ...] = ()
    price: Price | None = field(default=None)
    first: int = 0

    @property
    def costly(self) -> bool:
        """Whether something was found that costs the owner much."""
        return any(finding.costly for finding in self.findings)

    @property
    def short(self) -> tuple[str, ...]:
        """A line for each finding, and one before them."""
        found = several(len(self.findings), "finding") if self.findings else "nothing found"
        what = f"{several(self.rows, 'row')}, {several(len(self.columns), 'column')}"
        return f"For the owner only: {what}; {found}", *(
            f"  {finding}" for finding in self.findings
        )

    @property
    def lines(self) -> tuple[str, ...]:
        """Everything, in lines."""
        more = [one for one in (self.target, *self.persons, self.price) if one is not None]
        part = (
            f"Cells and rows are counted in the whole table; kinds, many values, persons and "
            f"findings are from its first {self.first} rows",
        )
        columns = (f"  {column}" for column in self.columns)
        return *part[: bool(self.first)], *columns, *map(str, more), *self.short

    def __str__(self) -> str:
        return "\n".join(self.lines)
