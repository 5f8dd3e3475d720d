"""Private preprocessing: centres, scales and categories estimated with differential privacy.

The header, options and public constants decide what is estimated. Nothing is refused because of
the rows. Costs are distances μ of Gaussian mechanisms, which compose as Σμ²; names of categories
also cost a δ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bdpvi._ground import validate
from bdpvi.datasets import exact
from bdpvi.datasets.cells import Columns
from bdpvi.datasets.columns import Column, Hashed, Numeric, OneHot
from bdpvi.datasets.encoding import Encoding
from bdpvi.datasets.origin import Origin
from bdpvi.datasets.records import Records
from bdpvi.datasets.scales import REACH, scales
from bdpvi.datasets.types import ColumnType
from bdpvi.noise.keys import Key

NUMBER, CATEGORY, UNDECLARED = "number", "category", "undeclared"
SHARE = 0.2
"""Preprocessing's share of μ²; the rest is for the fit."""
COUNTS = 0.1
"""Share of preprocessing's μ² for N and the kinds of columns."""
NAMES = 0.1
"""Share of δ for the names of categories."""
NEED = 68.0
"""Rows needed, over √queries/μ: with more rows private preprocessing hardly lowers accuracy."""
TOO_FEW, FEW = 0.7, 1.5
"""Multiples of the rows needed: below the first nothing is fitted, below the second it warns."""
TOO_FEW_YES_NO = 0.5
"""The first for the default model of yes or no: with half of the rows needed it still beats the
base rate, on simulated and on real tables, and with 0.3 of them it does not."""
MOST_OF = 0.1
"""Categories are hashed if the threshold of a name exceeds this share of the records."""
SOURCE = "private centres and scales; categories by noisy counts or hashed"


@dataclass(frozen=True)
class Purchase:
    """What to estimate privately, decided by header, options and public constants alone.

    Attributes:
        names: columns that become features, in the order of the header.
        kinds: kind of each column: number, category, or undeclared, to be estimated too.
        public: public constants; their columns are not estimated.
        hashed: whether categories are hashed, which costs nothing, instead of counted.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    public: Encoding | None = None
    hashed: bool = False

    @classmethod
    def of(
        cls,
        header: Sequence[str],
        *,
        target: str,
        public: Encoding | None = None,
        drop: Sequence[str] = (),
        categorical: Sequence[str] = (),
        numeric: Sequence[str] = (),
        hashed: bool = False,
    ) -> Purchase:
        """Return what must be estimated for a table with this header.

        Args:
            header: names of all columns.
            target: the yes/no column.
            public: public constants, for some columns or all.
            drop: columns to leave out.
            categorical, numeric: columns whose kind is public.
            hashed: see above.

        Raises:
            ValueError: naming the argument that lists a missing or repeated column.

        >>> Purchase.of(["age", "sex", "sick"], target="sick", categorical=["sex"]).kinds
        ('undeclared', 'category')
        """
        names = [str(name).strip() for name in header]
        listed = [column.name for column in public.columns] if public else []
        for argument, some in (
            ("target", [target]), ("drop", drop), ("categorical", categorical),
            ("numeric", numeric), ("constants", listed),
        ):  # fmt: skip
            validate.columns(argument, some, names)
        for argument, some in (("drop", drop), ("constants", listed)):
            if target in some:
                raise ValueError(f"{argument} names the target {target!r}")
        if both := sorted(set(drop) & set(listed)):
            raise ValueError(f"drop={both[0]!r} has public bounds or categories")
        used = tuple(name for name in names if name != target and name not in drop)
        if not used:
            raise ValueError("no column is left to be a feature")
        kinds = {name: UNDECLARED for name in used}
        kinds |= dict.fromkeys(numeric, NUMBER) | dict.fromkeys(categorical, CATEGORY)
        return cls(used, tuple(kinds[name] for name in used), public, hashed)

    @property
    def estimated_kinds(self) -> dict[str, str]:
        """The columns to estimate, with their kinds."""
        public = {column.name for column in self.public.columns} if self.public else set()
        pairs = zip(self.names, self.kinds, strict=True)
        return {name: kind for name, kind in pairs if name not in public}

    @property
    def empty(self) -> bool:
        """Whether nothing has to be estimated."""
        return not self.estimated_kinds

    @property
    def estimated_names(self) -> list[str]:
        """The columns whose names of categories are estimated."""
        return [
            name
            for name, kind in self.estimated_kinds.items()
            if kind == CATEGORY and not self.hashed
        ]

    @property
    def may_name(self) -> bool:
        """Whether names may be estimated, for some outcome of the kinds."""
        return not self.hashed and any(kind != NUMBER for kind in self.estimated_kinds.values())

    @property
    def reserve(self) -> float:
        """Queries reserved for numeric columns that are nearly constant."""
        numbers = sum(kind != CATEGORY for kind in self.estimated_kinds.values())
        return max(1.0, numbers / 4) if numbers else 0.0

    @property
    def queries(self) -> float:
        """Number of equal parts of the budget: 3 per number, 1 per category, and the reserve.

        A column of undeclared kind counts as a number.
        """
        counted = [1 - self.hashed if k == CATEGORY else 3 for k in self.estimated_kinds.values()]
        return sum(counted) + self.reserve

    @property
    def fewest_features(self) -> int:
        """Smallest number of features; an undeclared column counts as a number.

        >>> Purchase.of(["age", "sex", "sick"], target="sick", categorical=["sex"]).fewest_features
        4
        """
        made = {name: self._least(name, kind) for name, kind in self.estimated_kinds.items()}
        public = {column.name: column for column in self.public.columns} if self.public else {}
        columns = tuple((public | made)[name] for name in self.names)
        return len(Encoding(columns, SOURCE, unknown="other").feature_names)

    def _least(self, name: str, kind: str) -> Column:
        if kind != CATEGORY:
            return Numeric(name, 0.0, 1.0)
        return Hashed(name) if self.hashed else OneHot(name, ())

    def need(self, distance: float) -> int:
        """Return the number of rows above which private preprocessing costs little accuracy.

        Args:
            distance: μ of preprocessing and fit together.

        >>> numbers = Purchase.of(list("abcdeft"), target="t", numeric=list("abcdef"))
        >>> numbers.queries, numbers.need(0.27)
        (19.5, 1113)
        """
        return math.ceil(NEED * math.sqrt(self.queries) / validate.positive("distance", distance))


def numbers_of(queries: float) -> int:
    """Return how many numeric columns this number of queries suffices for.

    >>> [numbers_of(queries) for queries in (3.9, 4, 19.5)]
    [0, 1, 6]
    """
    return int(queries / 3.25 if queries >= 13 else max(queries - 1, 0) / 3)


def count(
    table: Records[Columns], purchase: Purchase, *, distance: float, key: Key
) -> tuple[float, Purchase]:
    """Estimate N and the undeclared kinds of columns privately, with half of μ² each.

    It is the first stage, which decides whether the second is carried out; that has all kinds.

    A column is numeric if the noisy count of its numbers exceeds that of its other cells.

    Args:
        table: cells of the records.
        purchase: what to estimate.
        distance: the cost μ.
        key: key of this call only.
    """
    open_ones = [name for name, kind in purchase.estimated_kinds.items() if kind == UNDECLARED]
    share = 0.5 if open_ones else 1.0
    deviation = 1 / (distance * math.sqrt(share))
    size, more = table.sum(_sizes, tuple(open_ones))
    records = size + float(exact.count_noise(1, deviation, key.child("records"))[0])
    kinds = dict(zip(purchase.names, purchase.kinds, strict=True))
    if open_ones:
        deviation = math.sqrt(len(open_ones)) / (distance * math.sqrt(1 - share))
        for name in open_ones:
            one = float(exact.count_noise(1, deviation, key.child("kind", name))[0])
            kinds[name] = NUMBER if more[name] + one > 0 else CATEGORY
    return records, replace(purchase, kinds=tuple(kinds[name] for name in purchase.names))


def _sizes(table: Columns, names: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Return N, and :func:`excess`."""
    return len(next(iter(table.values()))), excess(table, names)


def excess(table: Columns, names: Sequence[str]) -> dict[str, int]:
    """Return by how much a column's numbers are more than its other cells that are not blank."""
    result = {}
    for name in names:
        cells = table[name]
        numbers = int(np.isfinite(cells.numbers).sum())
        result[name] = 2 * numbers - len(cells) + int(cells.blank.sum())
    return result


def count_rounding(purchase: Purchase, distance: float) -> float:
    """Return the total variation distance due to rounding in :func:`count`, in advance."""
    undeclared = sum(kind == UNDECLARED for kind in purchase.estimated_kinds.values())
    largest = math.sqrt(2 * max(1, undeclared)) / distance
    return exact.count_rounding(largest, 1 + undeclared)


def hashed_if_few(
    purchase: Purchase, records: float, *, distance: float, delta: float, rows: int = 1
) -> Purchase:
    """Return the purchase, with categories hashed if too few names would pass the threshold.

    That is so if a name would need more than a tenth of the noisy number of records.

    Args:
        purchase: has the kinds of all columns.
        records: noisy number of records.
        distance, delta, rows: as for :func:`estimate`.

    >>> one = Purchase.of(["sex", "sick"], target="sick", categorical=["sex"])
    >>> [hashed_if_few(one, n, distance=0.1, delta=1e-6).hashed for n in (400, 4_000)]
    [True, False]
    """
    named = sum(kind == CATEGORY for kind in purchase.estimated_kinds.values())
    if not named or purchase.hashed:
        return purchase
    deviation = math.sqrt(purchase.queries) / distance
    least = exact.threshold(deviation, delta / named, rows)
    return replace(purchase, hashed=least > MOST_OF * records)


def estimate(
    table: Records[Columns],
    purchase: Purchase,
    *,
    distance: float,
    delta: float,
    key: Key,
    rows: int = 1,
    charged: str = "",
    types: Mapping[str, ColumnType] | None = None,
) -> Encoding:
    """Estimate centres, scales and categories privately, in equal parts of μ²; return the encoding.

    A numeric column has three queries: the median, the median distance from it, and the mean and
    mean distance of values clipped at a multiple of that distance. The last two give centre and
    scale, to agree with published means and standard deviations.

    Args:
        table: cells of the records.
        purchase: has the kinds of all columns, as returned by :func:`count`.
        distance: the cost μ.
        delta: δ for the names of categories, in equal parts.
        key: key of this call only.
        rows: largest number of rows of a unit. The distance is for one row, δ for all of them.
        charged: digest of the charge; "" if nothing was charged, so that no ε covers the encoding.
        types: the declared types by which the cells were read.
    """
    each = distance / math.sqrt(purchase.queries) if purchase.queries else 0.0
    named = purchase.estimated_names
    made: dict[str, Column] = {
        c.name: c for c in (purchase.public.columns if purchase.public else ())
    }
    counts = table.sum(name_counts, tuple(named)) if named else {}
    for name in named:
        made[name] = _categories(name, counts[name], each, delta / len(named), key, rows)
    for name, kind in purchase.estimated_kinds.items():
        if kind == CATEGORY and name not in named:
            made[name] = Hashed(name)
    numbers = [name for name, kind in purchase.estimated_kinds.items() if kind != CATEGORY]
    made |= scales(table, numbers, each, purchase.reserve, key)
    given, origin = purchase.public, Origin.ESTIMATED_HERE if charged else Origin.FROM_THIS_TABLE
    known = types or {}
    columns = tuple(
        replace(made[name], type=made[name].type or known.get(name)) for name in purchase.names
    )
    charges = [charged] * bool(charged)
    if given is None:
        return Encoding(columns, SOURCE, unknown="other").of([origin], charges)
    found = Encoding(columns, f"{given.source.rstrip('.')}; the others {SOURCE}", unknown="other")
    return found.of([*given.origins, origin], [*given.purchases, *charges])


def rounding(purchase: Purchase, distance: float, rows: int = 1) -> float:
    """Return the total variation distance due to rounding in :func:`estimate`, in advance.

    Of names, only those of one unit matter, as in :func:`bdpvi.datasets.bounds.rounding`.
    """
    if not purchase.queries:
        return 0.0
    each = distance / math.sqrt(purchase.queries)
    numbers = sum(kind != CATEGORY for kind in purchase.estimated_kinds.values())
    counts = 3 * numbers + rows * len(purchase.estimated_names)
    return numbers * 3 * exact.ROUNDING + exact.count_rounding(
        exact.means_deviation(REACH, each), counts
    )


def name_counts(table: Columns, names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return how often each name of these columns occurs, if it does."""
    return {name: table[name].counts for name in names}


def _categories(
    name: str, found: Mapping[str, int], distance: float, delta: float, key: Key, rows: int
) -> Column:
    """Return the names with a noisy count above the threshold; all others become one level.

    They are in the order of their noisy counts, so that the base level is a frequent one.
    """
    deviation = 1 / distance
    names = sorted(found)
    counts = np.array([found[one] for one in names], dtype=np.int64)
    # Noise is keyed by name, so that nobody's category changes another's noise.
    noise = exact.count_noise_of((key.child("category", name, one) for one in names), deviation)
    noisy, least = counts + noise, exact.threshold(deviation, delta, rows)
    order = np.argsort(-noisy, kind="stable")
    return OneHot(name, tuple(names[at] for at in order if noisy[at] > least))
