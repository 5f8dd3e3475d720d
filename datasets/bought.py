"""Constants bought from a table: centres, scales and categories under a price, not read off it.

What is bought follows from the header, from options and from public constants. Nothing is refused
because of the rows. Prices are distances μ of Gaussian mechanisms, which add up as Σμ²; names of
categories cost a δ besides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bdpvi._runtime import validate
from bdpvi._runtime.keys import Key
from bdpvi.datasets import exact
from bdpvi.datasets.cells import Cells, Columns
from bdpvi.datasets.columns import Column, Hashed, Numeric, OneHot
from bdpvi.datasets.encoding import Encoding
from bdpvi.datasets.origin import Origin

NUMBER, CATEGORY, UNDECLARED = "number", "category", "undeclared"
SHARE = 0.2
"""Share of μ² that buys constants; the rest is for the fit."""
COUNTS = 0.1
"""Share of the constants' μ² that buys N and what kind each column is."""
NAMES = 0.1
"""Share of δ that pays for the names of categories."""
NEED = 68.0
"""Rows needed are this times √queries/μ: measured where bought constants begin to cost little."""
TOO_FEW, FEW = 0.7, 1.5
"""Below the first share of the need nothing is fitted; below the second a warning is given."""
MOST_OF = 0.1
"""Share of the records that a counted name must at most be in, or categories are hashed."""
MAD = 1.4826
"""Standard deviation of a Gaussian over its median absolute deviation, 1/Φ⁻¹(¾)."""
HALF_NORMAL = 1.2533
"""Standard deviation of a Gaussian over its mean absolute deviation, √(π/2)."""
REACH = 4.0
"""Values further than this many scales from a median are cut off where a mean is taken."""
_LEAST, _LEAST_FLAT = 0.3372, 0.01
"""Of the mean of |z|: half of the median of a Gaussian's |z|, and a share of 1 % that are not 0."""
SOURCE = "private centres and scales; categories by noisy counts or hashed"


@dataclass(frozen=True)
class Purchase:
    """What is bought: it follows from the header, options and public constants alone.

    Attributes:
        names: columns that become features, in the order of the header.
        kinds: of each: a number, a category, or undeclared, and then its kind is bought too.
        public: constants that are public; their columns are not bought.
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
        """Return what has to be bought for a table with this header.

        Args:
            header: names of all columns.
            target: the yes/no column.
            public: public constants, for some columns or all.
            drop: columns to leave out.
            categorical, numeric: columns whose kind is public.
            hashed: see above.

        Raises:
            ValueError: naming the argument that names a column which is not there, or there twice.

        >>> Purchase.of(["age", "sex", "sick"], target="sick", categorical=["sex"]).kinds
        ('undeclared', 'category')
        """
        names = [str(name).strip() for name in header]
        listed = [column.name for column in public.columns] if public else []
        for argument, some in (
            ("target", [target]), ("drop", drop), ("categorical", categorical),
            ("numeric", numeric), ("constants", listed),
        ):  # fmt: skip
            for name in some:
                if names.count(name) != 1:
                    raise ValueError(
                        f"{argument}={name!r} must be a column of the table once, there are "
                        f"{names.count(name)}"
                    )
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
    def bought(self) -> dict[str, str]:
        """The columns that are bought, with their kinds."""
        public = {column.name for column in self.public.columns} if self.public else set()
        pairs = zip(self.names, self.kinds, strict=True)
        return {name: kind for name, kind in pairs if name not in public}

    @property
    def empty(self) -> bool:
        """Whether nothing has to be bought."""
        return not self.bought

    @property
    def named(self) -> list[str]:
        """The columns of which names are bought."""
        return [name for name, kind in self.bought.items() if kind == CATEGORY and not self.hashed]

    @property
    def may_name(self) -> bool:
        """Whether names may be bought, whatever kinds are found."""
        return not self.hashed and any(kind != NUMBER for kind in self.bought.values())

    @property
    def reserve(self) -> float:
        """Queries set aside for numbers that are nearly always the same."""
        numbers = sum(kind != CATEGORY for kind in self.bought.values())
        return max(1.0, numbers / 4) if numbers else 0.0

    @property
    def queries(self) -> float:
        """Parts that the price is divided into: 3 a number, 1 a category, and the reserve.

        A column whose kind is not declared counts as a number.
        """
        counted = [1 - self.hashed if k == CATEGORY else 3 for k in self.bought.values()]
        return sum(counted) + self.reserve

    @property
    def fewest_features(self) -> int:
        """The features that columns have at least: an undeclared one those of a number.

        >>> Purchase.of(["age", "sex", "sick"], target="sick", categorical=["sex"]).fewest_features
        4
        """
        made = {name: self._least(name, kind) for name, kind in self.bought.items()}
        public = {column.name: column for column in self.public.columns} if self.public else {}
        columns = tuple((public | made)[name] for name in self.names)
        return len(Encoding(columns, SOURCE, unknown="other").feature_names)

    def _least(self, name: str, kind: str) -> Column:
        if kind != CATEGORY:
            return Numeric(name, 0.0, 1.0)
        return Hashed(name) if self.hashed else OneHot(name, ())

    def need(self, distance: float) -> int:
        """Return the rows from which on bought constants cost little.

        Args:
            distance: μ of everything together, constants and fit.

        >>> numbers = Purchase.of(list("abcdeft"), target="t", numeric=list("abcdef"))
        >>> numbers.queries, numbers.need(0.27)
        (19.5, 1113)
        """
        return math.ceil(NEED * math.sqrt(self.queries) / validate.positive("distance", distance))


def numbers_of(queries: float) -> int:
    """Return how many columns of numbers so many queries are enough for.

    >>> [numbers_of(queries) for queries in (3.9, 4, 19.5)]
    [0, 1, 6]
    """
    return int(queries / 3.25 if queries >= 13 else max(queries - 1, 0) / 3)


@dataclass(frozen=True)
class Counted:
    """The first half of a purchase, on which it depends whether the second is made.

    Attributes:
        records: noisy number of records.
        purchase: with the kinds of all columns.
        distance, rounding: what was paid: μ, and the total variation of the arithmetic.
    """

    records: float
    purchase: Purchase
    distance: float
    rounding: float


def count(table: Columns, purchase: Purchase, *, distance: float, key: Key) -> Counted:
    """Buy N and the kinds of columns that are not declared, half of μ² each.

    A column is a number if the noisy count of its numbers is above that of its other cells.

    Args:
        table: cells of the records.
        purchase: what is bought.
        distance: μ that is paid.
        key: of this purchase alone.
    """
    open_ones = [name for name, kind in purchase.bought.items() if kind == UNDECLARED]
    share = 0.5 if open_ones else 1.0
    deviation = 1 / (distance * math.sqrt(share))
    size = len(next(iter(table.values())).codes)
    records = size + float(exact.count_noise(1, deviation, key.child("records"))[0])
    kinds = dict(zip(purchase.names, purchase.kinds, strict=True))
    if open_ones:
        deviation = math.sqrt(len(open_ones)) / (distance * math.sqrt(1 - share))
        for name in open_ones:
            one = float(exact.count_noise(1, deviation, key.child("kind", name))[0])
            cells = table[name]
            numbers = int(np.isfinite(cells.numbers).sum())
            others = size - numbers - int(cells.blank.sum())
            kinds[name] = NUMBER if numbers - others + one > 0 else CATEGORY
    found = replace(purchase, kinds=tuple(kinds[name] for name in purchase.names))
    return Counted(records, found, distance, count_rounding(purchase, distance))


def count_rounding(purchase: Purchase, distance: float) -> float:
    """Return the total variation of the arithmetic of :func:`count`, before anything is drawn."""
    undeclared = sum(kind == UNDECLARED for kind in purchase.bought.values())
    share = 0.5 if undeclared else 1.0
    found = exact.count_rounding(1 / (distance * math.sqrt(share)))
    if undeclared:
        deviation = math.sqrt(undeclared) / (distance * math.sqrt(1 - share))
        found += undeclared * exact.count_rounding(deviation)
    return found


def hashed_if_few(
    purchase: Purchase, records: float, *, distance: float, delta: float, rows: int = 1
) -> Purchase:
    """Return the purchase, with categories hashed where few names would be counted.

    That is where a name must be in more than a tenth of the records, by their noisy number.

    Args:
        purchase: with the kinds of all columns.
        records: their noisy number.
        distance, delta, rows: as for :func:`buy`.

    >>> one = Purchase.of(["sex", "sick"], target="sick", categorical=["sex"])
    >>> [hashed_if_few(one, n, distance=0.1, delta=1e-6).hashed for n in (400, 4_000)]
    [True, False]
    """
    named = sum(kind == CATEGORY for kind in purchase.bought.values())
    if not named or purchase.hashed:
        return purchase
    deviation = math.sqrt(purchase.queries) / distance
    least = exact.threshold(deviation, delta / named, rows)
    return replace(purchase, hashed=least > MOST_OF * records)


def buy(
    table: Columns,
    purchase: Purchase,
    *,
    distance: float,
    delta: float,
    key: Key,
    rows: int = 1,
    charged: str = "",
) -> Encoding:
    """Buy centres, scales and categories, in equal parts of μ², and return the encoding.

    Of a column of numbers three things are bought: the median, the median distance from it, and,
    with values cut off at a multiple of that, the mean and the mean distance. The latter two make
    centre and scale, as those who publish constants use means and deviations.

    Args:
        table: cells of the records.
        purchase: with the kinds of all columns, as :func:`count` returns it.
        distance: μ that is paid.
        delta: δ for the names of categories, in equal parts.
        key: of this purchase alone.
        rows: that one unit has at most. The distance is that of one row, δ that of all of them.
        charged: digest of the charge; "" where nobody was charged, and no ε covers them.
    """
    bought = purchase.bought
    each = distance / math.sqrt(purchase.queries) if purchase.queries else 0.0
    named = purchase.named
    made: dict[str, Column] = {
        c.name: c for c in (purchase.public.columns if purchase.public else ())
    }
    rough: dict[str, tuple[float, float]] = {}
    for name, kind in bought.items():
        if name in named:
            made[name] = _categories(name, table[name], each, delta / len(named), key, rows)
        elif kind == CATEGORY:
            made[name] = Hashed(name)
        else:
            values = _numbers(table[name])
            centre = exact.median(values, each, key.child("centre", name))
            away = np.abs(values - centre)
            scale = exact.median(away, each, key.child("scale", name), positive=True)
            rough[name] = (centre, MAD * scale)
    flat = [name for name, (_, scale) in rough.items() if not scale]
    for name, (centre, scale) in rough.items():
        away = _numbers(table[name]) - centre
        if name in flat:
            paid = each * math.sqrt(purchase.reserve / len(flat))
            own = key.child("flat", name)
            scale = exact.median(np.abs(away[away != 0]), paid, own, positive=True) or 1.0
        with np.errstate(over="ignore"):
            z = away / scale
        mean, spread = exact.means(z, REACH, each, key.child("means", name))
        if name in flat:  # z is mostly 0, and else about ±1: then z² has the mean of |z|
            spread = math.sqrt(max(spread, _LEAST_FLAT))
        else:
            spread = HALF_NORMAL * max(spread, _LEAST)
        made[name] = Numeric(name, centre + scale * mean, scale * spread)
    given, origin = purchase.public, Origin.BOUGHT_HERE if charged else Origin.FROM_THIS_TABLE
    columns = tuple(made[name] for name in purchase.names)
    charges = [charged] * bool(charged)
    if given is None:
        return Encoding(columns, SOURCE, unknown="other").of([origin], charges)
    found = Encoding(columns, f"{given.source}; the others {SOURCE}", unknown="other")
    return found.of([*given.origins, origin], [*given.purchases, *charges])


def rounding(purchase: Purchase, distance: float) -> float:
    """Return the total variation of the arithmetic of :func:`buy`, before anything is drawn."""
    if not purchase.queries:
        return 0.0
    each = distance / math.sqrt(purchase.queries)
    numbers = sum(kind != CATEGORY for kind in purchase.bought.values())
    found = numbers * 3 * exact.ROUNDING
    if numbers:
        found += 3 * numbers * exact.count_rounding(exact.means_deviation(REACH, each))
    return found + len(purchase.named) * exact.count_rounding(1 / each)


def _numbers(cells: Cells) -> exact.Floats:
    return np.asarray(cells.numbers[np.isfinite(cells.numbers)])


def _categories(
    name: str, cells: Cells, distance: float, delta: float, key: Key, rows: int
) -> Column:
    """Return the names whose noisy count is above the threshold; all others are one level."""
    deviation = 1 / distance
    found = np.bincount(cells.codes[~cells.blank], minlength=len(cells.names))
    names = [name for name, number in zip(cells.names, found, strict=True) if number]
    counts = found[found > 0]
    # Each by its own name, so that nobody's category changes another's noise.
    noise = [exact.count_noise(1, deviation, key.child("category", name, one))[0] for one in names]
    kept = counts + np.array(noise) > exact.threshold(deviation, delta, rows)
    return OneHot(name, tuple(one for one, keep in zip(names, kept, strict=True) if keep))


def public_encoding(public: Encoding) -> Encoding:
    """Return public constants that know every cell there can be.

    >>> public_encoding(Encoding((Numeric("age", 40.0, 10.0),), "By law.")).feature_names
    ('age', 'age is missing')
    """
    return replace(public, unknown="other")
