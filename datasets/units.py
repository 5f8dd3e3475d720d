"""Limits the number of rows used for each person."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from bdpvi._ground import validate
from bdpvi._ground.types import tell_owner
from bdpvi.datasets.cells import read_cell


def without_unit(header: Sequence[str], unit: str) -> list[str]:
    """Return a header without the column that identifies persons.

    Raises:
        ValueError: unless there is exactly one such column.
    """
    if (found := list(header).count(unit)) != 1:
        raise ValueError(f"unit={unit!r} must be a column of the table once, there are {found}")
    return [name for name in header if name != unit]


def at_most(frame: pd.DataFrame, unit: str, rows: int, tell: bool = True) -> pd.DataFrame:
    """Return the first ``rows`` rows of every person; rows without a person are left out.

    The choice for one person does not depend on others. The owner is told how many are left out.

    Args:
        frame: a table with strings as column names.
        unit: the column that identifies persons.
        rows: largest number of rows kept for each.
        tell: whether to tell the owner.

    Raises:
        ValueError: unless there is exactly one such column.

    >>> frame = pd.DataFrame({"who": ["ada", "bob", "ada", None], "age": [1, 2, 3, 4]})
    >>> at_most(frame, "who", 1)["age"].tolist()
    [1, 2]
    """
    validate.positive_int("rows_per_unit", rows)
    without_unit(list(frame.columns), unit)
    names = frame[unit].map(read_cell).str[1]
    kept = (names != "") & (names.groupby(names).cumcount() < rows)
    if tell:
        why = f"it has no person, or a person with more than {rows} (unit={unit!r})"
        tell_owner(int((~kept).sum()), "row", why)
    return frame[kept.to_numpy()]
