"""The content of a synthetic table's file, which is untrusted: anything malformed is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bdpvi._ground import validate
from bdpvi.datasets import grid
from bdpvi.datasets.grid import Codes
from bdpvi.datasets.origin import listed
from bdpvi.datasets.schema import Schema
from bdpvi.noise import secure
from bdpvi.privacy.assumptions import Assumption, sentences
from bdpvi.privacy.cost import Bound
from bdpvi.releases.receipt import in_one_sentence
from bdpvi.synthesis.counts import Counts, Group, MeasurementPlan, NoisyCounts

FORMAT = 2
_MOST_COUNT = 2**40
"""Largest count in a file, so that the sum over all its cells fits in 64 bits."""
_LEAST_DEVIATION = 1e-6
_MOST_KEPT = 2**26
"""Largest total number of cells in the tables of a file's network."""


@dataclass(frozen=True, kw_only=True)
class TableReceipt:
    """The public guarantee; all of it may be published.

    Attributes:
        worst_case: ε at δ for any one row, or all rows of any one person. All rows move the counts
            equally far, so the Bayesian ε would be the same number.
        source: source of the schema.
        from_data: columns whose bounds or levels were read from the table; ε does not cover them.
        bought: columns whose bounds or levels were estimated privately; ε covers them.
        declared: the owner's declarations about the table: facts by name, in words.
        together: as of :class:`bdpvi.releases.receipt.Receipt`.
    """

    worst_case: Bound
    source: str
    from_data: tuple[str, ...] = ()
    bought: tuple[str, ...] = ()
    declared: Mapping[str, str] = field(default_factory=dict)
    together: str = field(default="", metadata={"absent": ""})

    def assuming(self, *more: Assumption) -> TableReceipt:
        """Return the guarantee with further assumptions."""
        return replace(self, worst_case=self.worst_case.assuming(*more))

    def declaring(self, facts: Mapping[str, str]) -> TableReceipt:
        """Return the guarantee with further declarations."""
        if not facts:
            return self
        made = replace(self, declared={**self.declared, **facts})
        return made.assuming(Assumption.DECLARED_FACTS)

    @property
    def meaning(self) -> str:
        """The guarantee in words, with its assumptions and the owner's declarations."""
        together = self.together[:1].upper() + self.together[1:]
        return sentences(self.worst_case.meaning, listed(self.declared), together)

    @property
    def in_one_sentence(self) -> str:
        """How well anybody tells who is in the table, by these public numbers; "" if seeded."""
        return in_one_sentence(self.worst_case)

    def __repr__(self) -> str:
        return f"TableReceipt({self})"

    def __str__(self) -> str:
        listed = ", ".join(self.bought)
        return (
            f"{self.worst_case}"
            + f"; bounds or levels of {listed} were estimated privately" * bool(listed)
            + f"; {self.together}" * bool(self.together)
        )


@dataclass(frozen=True, kw_only=True)
class TableContent:
    """Noisy counts of one column's codes, or of the bins of several columns.

    Attributes:
        columns: indices of the columns.
        deviation: standard deviation of the noise.
        counts: counts of all cells; the last column varies fastest.
    """

    columns: tuple[int, ...]
    deviation: float
    counts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class File:
    """The content of the file."""

    format: int
    receipt: TableReceipt
    schema: Schema
    target: str | None
    settings: Counts
    bins: tuple[tuple[int, ...], ...]
    single: tuple[TableContent, ...]
    joint: tuple[TableContent, ...]

    @classmethod
    def of(
        cls,
        receipt: TableReceipt,
        schema: Schema,
        target: str | None,
        settings: Counts,
        noisy: NoisyCounts,
    ) -> File:
        """Return the file of a release; arguments as for :class:`bdpvi.synthesis.Synthetic`."""

        def table(columns: Group, deviation: float, counts: Codes) -> TableContent:
            return TableContent(
                columns=columns, deviation=deviation, counts=tuple(counts.ravel().tolist())
            )

        return cls(
            format=FORMAT,
            receipt=receipt,
            schema=schema,
            target=target,
            settings=settings,
            bins=tuple(tuple(one.tolist()) for one in noisy.bins),
            single=tuple(table((at,), noisy.deviation, one) for at, one in enumerate(noisy.single)),
            joint=tuple(table(at, noisy.deviations[at], one) for at, one in noisy.joint.items()),
        )

    def counts(self) -> NoisyCounts:
        """Return the noisy counts.

        Raises:
            ValueError: naming the entry at fault.
        """
        if self.format != FORMAT:
            raise ValueError(
                f"format must be {FORMAT}, got {self.format}: another version of bdpvi made it"
            )
        names, columns = list(self.schema.columns), list(self.schema.columns.values())
        if len(self.schema.bounded) < len(columns):
            raise ValueError("schema.columns must all have levels, or low and high")
        if self.target is not None and self.target not in names:
            raise ValueError(f"target must be a column, got {self.target!r}")
        for name, some in (("bins", self.bins), ("single", self.single)):
            validate.same_length(name, some, "columns", columns)
        bins = []
        codes = [*map(grid.size, columns)]
        for at, (one, size) in enumerate(zip(self.bins, codes, strict=True)):
            if len(one) != size or sorted({*one}) != list(range(len({*one}))):
                raise ValueError(f"bins[{at}] must number the bins of {size} codes from 0")
            bins.append(np.array(one, dtype=np.int64))
        sizes = [int(one.max()) + 1 for one in bins]
        room = self.settings.cells * len(columns)
        validate.at_most("settings.cells times columns", room, _MOST_KEPT)
        # Checked before that many are listed.
        least = self.settings.pairs * math.comb(len(columns), 2)
        if len(self.joint) < least:
            raise ValueError(f"joint must have {least} pairs of columns, got {len(self.joint)}")
        places = MeasurementPlan.of(self.schema, self._place, 1.0, self.settings).joint
        if [one.columns for one in self.joint] != list(places):
            raise ValueError(
                "joint must have every pair of columns and every named group, in order"
            )
        return NoisyCounts(
            tuple(
                _shaped(f"single[{at}]", one, (codes[at],)) for at, one in enumerate(self.single)
            ),
            tuple(bins),
            {
                one.columns: _shaped(f"joint[{at}]", one, tuple(sizes[i] for i in one.columns))
                for at, one in enumerate(self.joint)
            },
            _deviation("single[0]", self.single[0]),
            {one.columns: _deviation(f"joint[{at}]", one) for at, one in enumerate(self.joint)},
        )

    @property
    def _place(self) -> int | None:
        return None if self.target is None else list(self.schema.columns).index(self.target)


def _shaped(name: str, table: TableContent, shape: Sequence[int]) -> Codes:
    if len(table.counts) != math.prod(shape):
        raise ValueError(f"{name} must have {math.prod(shape)} counts, got {len(table.counts)}")
    validate.at_most(f"{name}.counts", max(map(abs, table.counts)), _MOST_COUNT)
    return np.array(table.counts, dtype=np.int64).reshape(shape)


def _deviation(name: str, table: TableContent) -> float:
    name = f"{name}.deviation"
    if not validate.positive(name, table.deviation) >= _LEAST_DEVIATION:
        raise ValueError(f"{name} must be at least {_LEAST_DEVIATION:g}, got {table.deviation!r}")
    secure.whole_parts(table.deviation)  # refuses noise too large to represent
    return table.deviation
