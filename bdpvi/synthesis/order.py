"""The plan and privacy cost of a release, from header, schema and options alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd

from bdpvi._ground import validate
from bdpvi.datasets import bounds, estimates
from bdpvi.datasets.cells import Columns, LazyColumns, read_cell
from bdpvi.datasets.estimates import CATEGORY, NUMBER, UNDECLARED
from bdpvi.datasets.origin import declarations
from bdpvi.datasets.records import Records
from bdpvi.datasets.schema import Schema
from bdpvi.datasets.types import MOST_LEVELS, ColumnType, types_of
from bdpvi.datasets.units import RowLimit, at_most
from bdpvi.noise.keys import Key
from bdpvi.privacy.book import ROW
from bdpvi.privacy.cost import Bound
from bdpvi.privacy.event import Event, for_unit
from bdpvi.privacy.events import SampledGaussian, Threshold
from bdpvi.privacy.gaussian_dp import gaussian_distance
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.worst_case import epsilon as worst_case
from bdpvi.releases.persons import ONE_ROW, warn_of_repeats
from bdpvi.score.reading import ANY, NAMES, NUMBERS, UNUSED
from bdpvi.synthesis.counts import Counts, MeasurementPlan

_ANY = ColumnType(levels=tuple(map(str, range(MOST_LEVELS))))
"""Stands for a column that is estimated privately: no column can have more codes."""


def rows_to_count(
    table: pd.DataFrame,
    settings: Counts,
    key: Key,
    tell: bool = False,
    person: ColumnType | None = None,
) -> pd.DataFrame:
    """Return the rows to count: all, or at most k of each person, chosen by secret coins.

    Args:
        table: the rows.
        settings: with the unit.
        key: of the coins.
        tell: whether to warn the owner about repeated persons and omitted rows.
        person: declared type of the column that identifies persons.
    """
    if tell:
        warn_of_repeats(table, settings.unit, 4)
    if settings.unit == ROW:
        return table
    order = np.argsort(key.child("rows").coins(len(table)))
    return at_most(table.iloc[order], settings.unit, settings.rows_per_unit, tell, person)


def _columns(table: pd.DataFrame, names: Sequence[str], types: Mapping[str, ColumnType]) -> Columns:
    """Return columns of a table, each read when it is needed."""
    return LazyColumns(table[list(names)], types, drop="")


def for_persons(
    ledger: Ledger | None, settings: Counts, table: Records[pd.DataFrame] | None = None
) -> Ledger:
    """Return the ledger, with this privacy unit; without one, that of the table's rows."""
    unit, rows = settings.unit, settings.rows_per_unit
    if ledger is None:
        assert table is not None
        return Ledger.of(table.first(), unit=unit, rows_per_unit=rows)
    if (ledger.unit, ledger.rows_per_unit) != (unit, rows):
        ledger.settle(unit=unit, rows_per_unit=rows)
    return ledger


@dataclass(frozen=True, eq=False)
class Order:
    """One release of a table. All of it counts as public, so it must not depend on the rows.

    Attributes:
        declared: the columns described by the schema.
        source: source of the schema; "" if there is none.
        kinds: kinds of the columns to estimate privately: number, category or undeclared.
        target: name of the target, or None.
        epsilon, delta: for everything together.
        settings: see :class:`Counts`.
        left_out: number of columns that the schema leaves out.
        types: declared types of the columns to estimate, by which their cells are read.
        person: declared type of the column that identifies persons, if it has one.

    Raises:
        ValueError: naming the argument at fault.

    >>> order = Order.of(["age", "sex"], None, "sex", 1.0, 1e-6, Counts())
    >>> order.kinds, f"{order.bound.epsilon:.6f}"
    ({'age': 'undeclared', 'sex': 'undeclared'}, '1.000000')
    """

    declared: Mapping[str, ColumnType]
    source: str
    kinds: Mapping[str, str]
    target: str | None
    epsilon: float
    delta: float
    settings: Counts
    left_out: int = 0
    types: Mapping[str, ColumnType] = field(default_factory=dict)
    person: ColumnType | None = None

    @classmethod
    def of(
        cls,
        header: Sequence[str],
        schema: Schema | None,
        target: str | None,
        epsilon: float,
        delta: float,
        settings: Counts,
    ) -> Order:
        """Return the release of a table with this header."""
        validate.epsilon(epsilon)
        validate.probability("delta", delta)
        if schema is not None:
            schema.check(header)
        known = {} if schema is None else schema.bounded
        out = set(() if schema is None else schema.left_out)
        types = {n: one for n, one in (schema.columns if schema else {}).items() if n not in known}
        out |= {name for name, one in types.items() if one.kind in UNUSED}
        if (unit := settings.unit) != ROW:
            validate.columns("unit", [unit], header)
            out.add(unit)
        if out & set(known):
            raise ValueError(
                f"unit={settings.unit!r} is a column of the schema; it names persons and is not "
                "counted: take it out there"
            )
        kinds = {one: UNDECLARED for one in header if one not in known and one not in out}
        kinds |= {n: CATEGORY for n, one in types.items() if n in kinds and one.kind in NAMES}
        kinds |= {n: NUMBER for n, one in types.items() if n in kinds and one.kind in NUMBERS}
        for kind, some in ((CATEGORY, settings.categorical), (NUMBER, settings.numeric)):
            for name in some:
                if kinds.get(name) not in (UNDECLARED, kind):
                    raise ValueError(
                        f"{kind}: {name!r} must be a column of the table that the schema lacks"
                    )
                kinds[name] = kind
        role = "target" if settings.pairs else "by"
        if not settings.pairs and target is not None:
            if kinds.get(target) == NUMBER or (target in known and known[target].bounds):
                raise ValueError(f"by={target!r} is a column of numbers; groups need levels")
            kinds |= {target: CATEGORY} if target in kinds else {}
        types = types_of(settings.categorical, types)
        names = [*known, *kinds]
        if not names:
            raise ValueError("table must have at least one column to count")
        if target is not None and target not in names:
            raise ValueError(f"{role}={target!r} must be a column that is counted: one of {names}")
        source = "" if schema is None else schema.source
        left_out = len(out & set(header) - {settings.unit})
        types = {name: one for name, one in types.items() if name in kinds}
        person = None if schema is None or unit == ROW else schema.of_unit(unit)[0]
        made = cls(known, source, kinds, target, epsilon, delta, settings, left_out, types, person)
        made.plan(made._widest)  # refuses noise too large to represent
        if kinds:
            bounds.check(kinds, made.distances[1])
        return made

    @property
    def facts(self) -> dict[str, str]:
        """The owner's declarations about the table, in words."""
        settings = self.settings
        return declarations(
            persons=ONE_ROW if settings.unit == ROW else None,
            kinds_by_the_schema=tuple(self.declared),
            types=tuple(
                f"{name} ({one.kind})"
                for name, one in self.types.items()
                if name not in settings.categorical and one.kind != ANY
            ),
            numeric=settings.numeric,
            categorical=settings.categorical,
            columns_left_out=self.left_out or None,
            counted_together=tuple(" and ".join(one) for one in settings.also),
        )

    @property
    def limit(self) -> RowLimit | None:
        """The rows used of each person of a table in blocks; None for all."""
        unit, rows = self.settings.unit, self.settings.rows_per_unit
        return None if unit == ROW else RowLimit(unit, rows, self.person)

    @property
    def place(self) -> int | None:
        """Index of the target among the columns."""
        return None if self.target is None else [*self.declared, *self.kinds].index(self.target)

    @property
    def names(self) -> float:
        """δ for privately estimated names of levels."""
        return estimates.NAMES * self.delta * any(kind != NUMBER for kind in self.kinds.values())

    @cached_property
    def rounding(self) -> tuple[float, float]:
        """Total variation distances from exact noise: private preprocessing, and counts."""
        constants = bounds.rounding(self.kinds, self.settings.rows_per_unit)
        return constants, MeasurementPlan.of(self._widest, self.place, 1.0, self.settings).rounding

    @cached_property
    def distances(self) -> tuple[float, float, float]:
        """μ of one row for the kinds, for bounds and levels, and for the counts; 0 if unused."""
        paid = self.delta - self.names
        whole = gaussian_distance(self.epsilon, paid, sum(self.rounding))
        whole /= self.settings.rows_per_unit
        share = estimates.SHARE if self.kinds else 0.0
        kinds = share * estimates.COUNTS if UNDECLARED in self.kinds.values() else 0.0
        a, b, c = (whole * math.sqrt(one) for one in (kinds, share - kinds, 1 - share))
        return a, b, c

    @property
    def _widest(self) -> Schema:
        return Schema({**self.declared, **dict.fromkeys(self.kinds, _ANY)}, "")

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """All charges; they are made before anything is drawn.

        The costs of all parts are fixed, whatever the first parts return. So the parts are one
        Gaussian mechanism (Dong, Roth and Su 2022, Corollary 2), plus the δ for names.
        """
        kinds, constants, counts = self.distances
        theta, rounding = self.rounding
        paid: list[Event] = []
        if kinds:
            paid.append(SampledGaussian(noise_multiplier=1 / kinds))
        if constants:
            paid.append(SampledGaussian(noise_multiplier=1 / constants, rounding=theta))
        if self.names:
            paid.append(Threshold(self.names))
        return (*paid, SampledGaussian(noise_multiplier=1 / counts, rounding=rounding))

    @cached_property
    def bound(self) -> Bound:
        """The total privacy cost to one row, or to all rows of one person, by the accountant."""
        result = worst_case(for_unit(Counter(self.events), self.settings.rows_per_unit), self.delta)
        assert result is not None
        assert result.epsilon <= self.epsilon * (1 + 1e-9)
        return result

    def rows_to_count(self, table: Records[pd.DataFrame], key: Key) -> Records[pd.DataFrame]:
        """Return the rows to count: all, or some of each person.

        In memory secret coins choose them. Of a table in blocks they are the first ones, as no
        worker has the key.
        """
        if table.in_memory:
            return table.map(rows_to_count, self.settings, key, True, self.person)
        return table if self.limit is None else table.map(self.limit.of)

    def complete_schema(self, table: Records[pd.DataFrame], key: Key) -> Schema:
        """Return the schema of all columns; estimate missing ones privately, once they are charged.

        Args:
            table: the rows, with all columns to estimate.
            key: secret key of this release only.
        """
        if not self.kinds:
            return Schema(self.declared, self.source)
        cells = table.map(_columns, tuple(self.kinds), self.types)
        first, second, _ = self.distances
        kinds = self.kinds
        if first:
            kinds = bounds.kinds_of(cells, kinds, distance=first, key=key.child("kinds"))
        made = bounds.estimate(
            cells,
            kinds,
            distance=second,
            delta=self.names,
            key=key.child("bounds"),
            rows=self.settings.rows_per_unit,
            types=self.types,
        )
        made = {name: self._guess_type(name, one) for name, one in made.items()}
        source = f"{self.source}; the others {bounds.SOURCE}" if self.source else bounds.SOURCE
        return Schema({**self.declared, **made}, source)

    def _guess_type(self, name: str, made: ColumnType) -> ColumnType:
        """Return a column's type; of kind any for names of which guessing makes nothing else."""
        named = name in self.settings.categorical
        named = named and self.types[name] == ColumnType(kind="category")
        same = named and all(read_cell(one)[1] == one for one in made.levels or ())
        return replace(made, kind=ANY) if same else made

    def plan(self, schema: Schema) -> MeasurementPlan:
        """Return the tables to count and their noise, by the schema of all columns."""
        return MeasurementPlan.of(schema, self.place, self.distances[-1], self.settings)
