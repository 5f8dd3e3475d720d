"""What the owner should see of a table before anything is spent. It changes nothing released."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bdpvi._ground.outputs import several
from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi.datasets.cells import read_cells
from bdpvi.datasets.spelling import number_of
from bdpvi.datasets.types import UNUSED, ColumnType, unfit

_CLAMPED = 0.01
"""The largest share of clamped targets without a word."""
_SHOWN = 8
"""Most values of a target that are shown."""


class ReadingWarning(PrivacyUtilityWarning):
    """For the owner: something in a table is read otherwise than it seems meant."""


def tell_of_unfit(frame: pd.DataFrame, types: Mapping[str, ColumnType]) -> None:
    """Warn the owner how many cells do not fit the declared type of their column."""
    say_unfit(unfit_cells(frame, types), len(frame), types)


def unfit_cells(frame: pd.DataFrame, types: Mapping[str, ColumnType]) -> dict[str, int]:
    """Return how many cells do not fit the declared type of their column."""
    used = {n: one for n, one in types.items() if one.kind not in UNUSED and n in frame}
    return {name: unfit(frame[name], one) for name, one in used.items()}


def say_unfit(counts: Mapping[str, int], rows: int, types: Mapping[str, ColumnType]) -> None:
    """Do :func:`tell_of_unfit` for the numbers of cells of a table with so many rows."""
    for name, count in counts.items():
        if count:
            _tell(
                f"column {name!r}: {several(count, 'cell')} of {rows} do not fit kind "
                f"{types[name].kind}, and count as blank",
                5,
            )


def tell_of_text(frame: pd.DataFrame, types: Mapping[str, ColumnType]) -> None:
    """Warn the owner about text without a type that options would read.

    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     tell_of_text(pd.DataFrame({"kg": ["70,5", "81,0"]}), {})
    >>> str(said[0].message)[20:75]
    "column 'kg': 2 of 2 cells are numbers with a comma as d"
    """
    lost = 0
    for name in map(str, frame):
        texts = frame[name][[isinstance(one, str) for one in frame[name].tolist()]]
        counts = texts.astype(str).str.strip().value_counts()
        lost += int(sum(n for one, n in counts.items() if "\ufffd" in str(one)))
        if name in types:
            continue
        groups = sum(n for one, n in counts.items() if _with_comma(str(one), ".", ","))
        comma = sum(n for one, n in counts.items() if _with_comma(str(one), ",", ".")) - groups
        for count, sign in ((comma, "decimal"), (groups, "thousands")):
            if 2 * count > len(texts):
                _tell(
                    f"column {name!r}: {count} of {len(frame)} cells are numbers with a comma as "
                    f"{sign} sign, and are read as text; make them numbers by --{sign} , "
                    f"({sign}=',')"
                )
    if lost:
        _tell(
            f"{several(lost, 'cell')} with characters that are not of the file's character set, "
            "such as latin-1; --charset (charset=) names it"
        )


def tell_of_target(values: pd.Series[Any], type: ColumnType | None, positive: str) -> None:
    """Warn the owner about several spellings of a yes/no target that count as not positive.

    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     tell_of_target(pd.Series(["yes", "Yes", "no", "no"], name="sick"), None, "yes")
    >>> str(said[0].message)[20:78]
    "target 'sick': counted as not 'yes': 'no' (2), 'Yes' (1). "
    """
    cells = read_cells(values, type)
    counts = np.bincount(cells.codes[~cells.blank], minlength=len(cells.names)).tolist()
    tell_of_labels(str(values.name), dict(zip(cells.names, counts, strict=True)), positive, 5)


def tell_of_labels(
    target: str, counts: Mapping[str, int], positive: str, stacklevel: int = 4
) -> None:
    """Do :func:`tell_of_target` for the counts of the target's labels."""
    pairs = sorted(counts.items(), key=lambda pair: -pair[1])
    others = [(name, count) for name, count in pairs if name != positive and count]
    like = any(name.casefold() == positive.casefold() for name, _ in others)
    if len(others) < 2 and not like:
        return
    listed = ", ".join(f"{name!r} ({count})" for name, count in others[:_SHOWN])
    _tell(
        f"target {target!r}: counted as not {positive!r}: {listed}"
        f"{', …' if len(others) > _SHOWN else ''}. If one of them means {positive!r}, declare its "
        "spellings in types (--types)",
        stacklevel,
    )


def tell_of_clamped(values: NDArray[np.float64], middle: float, most: float) -> None:
    """Warn the owner if more than 1 % of the targets, (N,), are clamped to their public bound.

    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     tell_of_clamped(np.array([1.0, 12.0, 3.0]), 0.0, 10.0)
    >>> str(said[0].message)[20:71]
    '1 of 3 targets are beyond their public bound of 10,'
    """
    beyond = int((np.abs(values - middle) > most).sum())
    if beyond > _CLAMPED * len(values):
        _tell(
            f"{beyond} of {len(values)} targets are beyond their public bound of {most:g}, and "
            "clamped to it: a mean near the bound is estimated too small, and only Poisson counts "
            "by noisy scores are corrected for it. A larger bound (largest=, --largest, "
            "--target-bounds) would keep them"
        )


def _with_comma(text: str, decimal: str, thousands: str) -> bool:
    return "," in text and number_of(text, decimal, thousands) is not None


def _tell(words: str, stacklevel: int = 4) -> None:
    said = f"for the owner only: {words} (secret)"
    warnings.warn(said, ReadingWarning, stacklevel=stacklevel)
