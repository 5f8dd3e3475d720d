"""A synthetic table that may be shared: noisy counts, rows from them, and its file."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from bdpvi._ground import schema as files
from bdpvi._ground import store, validate
from bdpvi._ground.outputs import several
from bdpvi.datasets import grid
from bdpvi.datasets.schema import Schema, of_today
from bdpvi.privacy.assumptions import Assumption
from bdpvi.synthesis.content import File, TableReceipt
from bdpvi.synthesis.counts import Counts, NoisyCounts
from bdpvi.synthesis.network import Network, network, redrawn

_MOST_ROWS = 10**8


@dataclass(frozen=True, eq=False)
class Synthetic:
    """Noisy counts of a table, and any number of rows from them, all of which may be shared.

    Attributes:
        receipt: the guarantee.
        schema: schema of the rows.
        target: name of the column on which all others are conditioned, or None.
        settings: see :class:`Counts`.
        counts: the noisy counts with their standard deviations, for your own models.
    """

    receipt: TableReceipt
    schema: Schema
    target: str | None
    settings: Counts
    counts: NoisyCounts

    def __repr__(self) -> str:
        columns = several(len(self.schema.columns), "column")
        return f"Synthetic({columns}, target={self.target!r}, {self.receipt})"

    @property
    def rows(self) -> int:
        """The estimated number of rows of the table, at least 1. The exact number is secret."""
        return round(self.counts.records)

    @cached_property
    def network(self) -> Network:
        """The distribution of the rows."""
        return self._fit_network(self.counts)

    def sample(self, rows: int | None = None, *, seed: int | None = None) -> pd.DataFrame:
        """Return rows at no privacy cost, with the columns, spellings and ranges of the schema.

        A blank is None or NaN; an unknown level is "other".

        Args:
            rows: number of rows; :attr:`rows` by default.
            seed: makes the rows repeatable; by default they differ each time.

        Raises:
            ValueError: naming the argument that is out of range.
        """
        random = _random(seed)
        return self.schema.decode(self.network.sample(self._number(rows), random), random)

    def tables(
        self, number: int, rows: int | None = None, *, seed: int | None = None
    ) -> tuple[pd.DataFrame, ...]:
        """Return bootstrap tables, which vary like tables from other samples and other noise.

        They are for :func:`~bdpvi.synthesis.combine` and cost nothing. Each table is drawn from the
        network of a bootstrap replicate of the counts (:func:`~bdpvi.synthesis.network.redrawn`),
        fitted without shrinkage, so that intervals are not biased.

        Args:
            number: M, number of tables.
            rows: rows of each; :attr:`rows` by default.
            seed: as for :meth:`sample`.

        Raises:
            ValueError: naming the argument that is out of range.
        """
        number, rows = checked_rows("number", number), self._number(rows)
        random = _random(seed)
        made = []
        for _ in range(number):
            again = redrawn(self.counts, self.network, self.rows, random)
            codes = self._fit_network(again, shrink=False).sample(rows, random)
            made.append(self.schema.decode(codes, random))
        return tuple(made)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a JSON file, which may be shared.

        Raises:
            ValueError: if the path exists, or this is a seeded experiment.
        """
        if not store.nothing_at(Path(path)):
            raise ValueError(f"path={str(path)!r} exists already; choose another")
        store.write(Path(path), self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the content that :meth:`save` writes.

        Raises:
            ValueError: if this is a seeded experiment.
        """
        if Assumption.SEEDED_EXPERIMENT in self.receipt.worst_case.assumptions:
            raise ValueError(
                "seed: an experiment has no guarantee and is not saved; leave the seeded key out"
            )
        return store.json_text(
            files.to_json(
                File.of(self.receipt, self.schema, self.target, self.settings, self.counts)
            )
        ).encode()

    def _number(self, rows: int | None) -> int:
        return checked_rows("rows", self.rows if rows is None else rows)

    def _fit_network(self, counts: NoisyCounts, *, shrink: bool = True) -> Network:
        if not self.settings.pairs:
            raise ValueError(
                "these are counts for a Table 1, without pairs of columns, of which no rows can be "
                "made; `bdpvi synthesize` counts pairs"
            )
        settings, shares = self.settings, [*map(grid.shares, self.schema.columns.values())]
        target = None if self.target is None else list(self.schema.columns).index(self.target)
        return network(counts, target, shares, settings.parents, settings.cells, shrink=shrink)


def checked_rows(name: str, rows: int) -> int:
    """Return a valid number of rows or tables.

    Raises:
        ValueError: naming the argument, if it is not.
    """
    return validate.at_most(name, validate.positive_int(name, rows), _MOST_ROWS)


def load(path: str | os.PathLike[str]) -> Synthetic:
    """Read a file written by :meth:`Synthetic.save`.

    The file is untrusted: no memory is allocated for a size that it merely claims.

    Raises:
        ValueError: naming the file, if it was cut, edited, is of another format or too large.
        OSError: if it cannot be read.
    """
    try:
        return of_bytes(store.read_shared(Path(path)))
    except ValueError as error:
        raise ValueError(f"{path} holds no synthetic table: {error}") from error


def of_bytes(content: bytes) -> Synthetic:
    """Read the bytes of :meth:`Synthetic.to_bytes`, of any size.

    Raises:
        ValueError: naming the entry that is missing or wrong.
    """
    given = files.parsed(content)
    if isinstance(given.get("schema"), dict):
        given["schema"] = of_today(given["schema"])
    found = files.from_json(File, given)
    return Synthetic(found.receipt, found.schema, found.target, found.settings, found.counts())


def _random(seed: int | None) -> np.random.Generator:
    if seed is not None:
        validate.positive_int("seed", seed, least=0)
    return np.random.default_rng(seed)


@dataclass(frozen=True, kw_only=True)
class Combined:
    """An estimate combined from several tables.

    Attributes:
        mean: mean of the estimates.
        low, high: ends of the interval.
    """

    mean: float
    low: float
    high: float


def combine(estimates: Sequence[float], level: float = 0.95) -> Combined:
    """Return the mean of one estimate per table, and an interval for the population's value.

    With M estimates of mean q̄ and sample variance b it is q̄ ± t √((1 + 1/M) b), t the quantile of
    Student's t with M − 1 degrees of freedom. A bootstrapped table's estimate varies about that of
    the published counts as the latter varies about the population value, so this interval has
    coverage ``level`` (the predictive interval of normal samples; Raghunathan, Reiter and Rubin
    2003 without variance within tables, because rows cost nothing: draw 20 times as many rows as
    the real table has, or that variance counts twice).

    Args:
        estimates: estimates of one quantity, one from each of
            :meth:`~bdpvi.synthesis.Synthetic.tables`, at least 2.
        level: coverage of the interval.

    Raises:
        ValueError: naming the argument that is out of range.

    >>> found = combine([0.50, 0.52, 0.48])
    >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3)
    (0.5, 0.401, 0.599)
    """
    validate.probability("level", level)
    values = np.asarray(estimates, dtype=np.float64)
    if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all():
        raise ValueError(
            f"estimates must be at least two finite numbers, one for each table, got {estimates!r}"
        )
    mean, number = float(values.mean()), len(values)
    spread = math.sqrt((1 + 1 / number) * float(values.var(ddof=1)))
    half = float(stdtrit(number - 1, (1 + level) / 2)) * spread
    return Combined(mean=mean, low=mean - half, high=mean + half)
