"""The number of records for which settings are made, declared or counted with noise. Public."""

from __future__ import annotations

import math

from bdpvi._ground import validate

COUNT = 0.01
"""Share of μ² for the noisy number of records, if the owner declares none."""
FEWEST, MOST = 10.0, 1e12
"""Range of rows for which settings can be computed."""


def magnitude(rows: float) -> float:
    """Return the number of rows rounded to 1, 2 or 5 times a power of ten.

    >>> magnitude(7)
    Traceback (most recent call last):
        ...
    ValueError: rows must be from 10 to 1e12, got 7
    >>> magnitude(39_073), magnitude(1.3e6)
    (50000.0, 1000000.0)
    """
    if not FEWEST <= validate.positive("rows", rows) <= MOST:
        raise ValueError(f"rows must be from 10 to 1e12, got {rows!r}")
    power = 10.0 ** math.floor(math.log10(rows))
    return min((d * power for d in (1, 2, 5, 10)), key=lambda n: abs(math.log(rows / n)))


def about(rows: float | None) -> str | None:
    """Return a declared number of rows in words, rounded for publication."""
    return None if rows is None else f"about {magnitude(rows):,.0f}"


def words_of_rows(rows: float | None, counted: bool) -> str:
    """Return a sentence on the rounded number of rows and its source; "" if it is unknown.

    >>> words_of_rows(1900, counted=False)
    'Settings assume about 2,000 rows, declared by the owner'
    """
    if rows is None:
        return ""
    how = "counted with noise, which ε covers" if counted else "declared by the owner"
    return f"Settings assume about {magnitude(min(max(rows, FEWEST), MOST)):,.0f} rows, {how}"
