"""Made-up records: nobody's, of public facts alone, so that a work can be tried before a charge.

Of every column they have the declared values, and cells that have been hard to read or to write:
codes that are one number, numbers of any size, blanks, texts that no file takes as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from bdpvi.datasets.estimates import CATEGORY, UNDECLARED
from bdpvi.datasets.records import Held, sum_of_results

if TYPE_CHECKING:
    import pandas as pd

S = TypeVar("S")
ROWS = 50
_NUMBERS: tuple[object, ...] = (
    0, 1, 2.5, -3, 17, 40.25, 1e15, -1e300, 5e-324, 2**70, math.inf, "12", "0,5", "1e3", "", "x",
    date(2001, 12, 31), "2001-12-31", "31.12.2001",
)  # fmt: skip
_NAMES: tuple[object, ...] = (
    "12345678901234567", "12345678901234568", "1", "1.0", "01", 1.0, True, "True", "red", "Red ",
    "other", "NA", "", None, math.nan, "a\nb", "é,\"'", "=1+1", "x" * 300, "1E400", "∞",
    "9999-12-31", date(2001, 12, 31), datetime(2001, 12, 31, 1), "2001-12-31 00:00:00",
)  # fmt: skip
_DECLARED = 8
"""Declared values of a column that its cells have, at least."""
_WHOLE, _FEW = 3, 4
"""So many columns have all names, and the others a few."""
_DOUBLED = 14


@dataclass(frozen=True, eq=False)
class Copies(Held[Any]):
    """A few records as if there were 2¹⁴ of each: so many that noise hides none of their values."""

    def map(self, f: Callable[..., Any], *public: Any) -> Copies:
        """Do :meth:`Held.map`."""
        return Copies(f(self.part, *public))

    def sum(self, f: Callable[..., S], *public: Any) -> S:
        """Do :meth:`Held.sum`.

        >>> Copies([1, 2, 3]).sum(len)
        49152
        """
        result: Any = f(self.part, *public)
        for _ in range(_DOUBLED):
            result = sum_of_results(result, result)
        return result  # type: ignore[no-any-return]


def frames(
    kinds: Mapping[str, str],
    declared: Mapping[str, Sequence[object]],
    alone: Mapping[str, Sequence[object]],
) -> Iterator[pd.DataFrame]:
    """Yield made-up tables. Of the columns of undeclared kind every second has names.

    Args:
        kinds: kinds of the columns, in order, as of :class:`bdpvi.datasets.estimates.Purchase`.
        declared: values of some columns, which these have beside others.
        alone: values of some columns, which these have alone.

    >>> [len(one) for one in frames({"age": "undeclared"}, {}, {"sick": ["no", "yes"]})]
    [50, 50]
    """
    import pandas as pd

    unknown = [name for name, kind in kinds.items() if kind == UNDECLARED]
    for turn in range(2 if len(unknown) == 1 else 1):
        named = {*unknown[turn::2], *(name for name, kind in kinds.items() if kind == CATEGORY)}
        cells = {
            name: alone.get(name) or _cells(at, name in named, declared.get(name, ()))
            for at, name in enumerate({**kinds, **alone})
        }
        yield pd.DataFrame(
            {
                name: pd.Series([some[(at + row) % len(some)] for row in range(ROWS)], dtype=object)
                for at, (name, some) in enumerate(cells.items())
            }
        )


def _cells(at: int, names: bool, declared: Sequence[object]) -> Sequence[object]:
    """Return the cells of a column: in the first ones all names, each of which may be a feature."""
    some = [*declared[:_DECLARED], *declared[_DECLARED:][-1:]]
    if not names:
        return [*some, *_NUMBERS]
    return [*some, *(_NAMES if at < _WHOLE else (_NAMES * 2)[at % len(_NAMES) :][:_FEW])]
