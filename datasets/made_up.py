"""Made-up records: nobody's, of public facts alone, so that a work can be tried before a charge.

Of every column they have the declared values, and cells that have been hard to read or to write:
codes that are one number, numbers of any size, blanks, texts that no file takes as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from bdpvi.datasets.blocks import Blocks
from bdpvi.datasets.records import Held, added

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
        found: Any = f(self.part, *public)
        for _ in range(_DOUBLED):
            found = added(found, found)
        return found  # type: ignore[no-any-return]


@dataclass(frozen=True)
class MadeUp(Blocks):
    """A made-up table, in place of one in blocks."""

    frame: Any = None

    def records(self, executor: object = None, **shown: Any) -> Any:
        """Return copies of its rows."""
        return Copies(self.frame)


def cells(names: bool, declared: Sequence[object] = ()) -> list[object]:
    """Return the cells of a column, mostly of names or mostly of numbers, and declared values."""
    some = [*declared[:_DECLARED], *declared[_DECLARED:][-1:]]
    return [*some, *(_NAMES if names else _NUMBERS)]


def frame(columns: Mapping[str, Sequence[object]]) -> pd.DataFrame:
    """Return made-up rows with these cells.

    >>> frame({"age": [20, 30], "sex": ["F", "M"]}).iloc[0].tolist()
    [20, 'M']
    """
    import pandas as pd

    pairs = enumerate(columns.items())
    return pd.DataFrame(
        {
            name: pd.Series([some[(at + row) % len(some)] for row in range(ROWS)], dtype=object)
            for at, (name, some) in pairs
        }
    )
