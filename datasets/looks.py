"""What the owner should see of a table before anything is spent. It changes nothing released."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bdpvi._ground.outputs import several
from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi.datasets.cells import Columns, places_of, read_cells
from bdpvi.datasets.columns import words_of_counts
from bdpvi.datasets.encoding import Encoding
from bdpvi.datasets.origin import target_bounds
from bdpvi.datasets.types import ColumnType
from bdpvi.score.reading import BLANK, UNFIT, UNUSED
from bdpvi.score.spelling import number_of

_CLAMPED = 0.01
"""The largest share of clamped targets without a word."""
_SHOWN = 8
"""Most values of a target that are shown."""


class ReadingWarning(PrivacyUtilityWarning):
    """For the owner: something in a table is read otherwise than it seems meant."""


Misread = tuple[int, dict[str, int], dict[str, tuple[int, int, int]], int]
"""Cells that may be read otherwise than meant: the number of rows; by column with a type, how many
do not fit it; by column without one, its texts, numbers with a comma as decimal sign, and numbers
with commas between thousands; and cells with characters that are not of the file's character set.
Of a table in blocks, the sum over them."""


def misread(
    frame: pd.DataFrame, types: Mapping[str, ColumnType], texts: Sequence[str] = ()
) -> Misread:
    """Return what is misread of a table's columns with types, and of others as texts."""
    found, lost = {}, 0
    for name in texts:
        cells = [] if frame[name].dtype.kind in "biuf" else frame[name].tolist()
        counts = Counter(cell.strip() for cell in cells if isinstance(cell, str))
        lost += sum(n for one, n in counts.items() if "\ufffd" in one)
        if name not in types:
            groups = sum(n for one, n in counts.items() if _with_comma(one, ".", ","))
            comma = sum(n for one, n in counts.items() if _with_comma(one, ",", "."))
            found[name] = (sum(counts.values()), comma - groups, groups)
    there = {n: one for n, one in types.items() if one.kind not in UNUSED and n in frame}
    unfit = {name: read_cells(frame[name], one).count(UNFIT) for name, one in there.items()}
    return len(frame), unfit, found, lost


def tell_of_misread(found: Misread, types: Mapping[str, ColumnType]) -> None:
    """Warn the owner of the cells that :func:`misread` counts.

    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     tell_of_misread(misread(pd.DataFrame({"kg": ["70,5", "81,0"]}), {}, ["kg"]), {})
    >>> str(said[0].message)[20:75]
    "column 'kg': 2 of 2 cells are numbers with a comma as d"
    """
    cells, unfit, columns, lost = found
    for name, count in unfit.items():
        if count:
            _tell(
                f"column {name!r}: {several(count, 'cell')} of {cells}, not of kind "
                f"{types[name].kind}, counted as blank"
            )
    for name, (texts, comma, groups) in columns.items():
        for count, sign in ((comma, "decimal"), (groups, "thousands")):
            if 2 * count > texts:
                _tell(
                    f"column {name!r}: {count} of {cells} cells are numbers with a comma as {sign} "
                    f"sign, and are read as text; make them numbers by {sign}=',' (`bdpvi table` "
                    "declares it)"
                )
    if lost:
        _tell(
            f"{several(lost, 'cell')} with characters that are not of the file's character set, "
            "such as latin-1 (charset=; `bdpvi table` finds it)"
        )


Unclear = dict[str, dict[str, int]]
"""How many cells of new rows say nothing that training knows, by kind and column."""


def unclear(encoding: Encoding, table: Columns) -> Unclear:
    """Return how many cells of new rows are blank, unfit or of an unlisted level, by column.

    >>> from bdpvi.datasets.cells import read_columns
    >>> from bdpvi.datasets.columns import OneHot
    >>> levels = Encoding((OneHot("sex", ("F", "M")),), "By law.", unknown="other")
    >>> unclear(levels, read_columns(pd.DataFrame({"sex": ["F", "X", None]})))
    {'blank': {'sex': 1}, 'unlisted level': {'sex': 1}}
    """
    result: Unclear = {}
    for column in encoding.columns:
        if (cells := table.get(column.name)) is None:  # all are blank, or it is refused
            result.setdefault("blank", {})[column.name] = max(map(len, table.values()), default=0)
            continue
        odd = {"blank": cells.count(BLANK), "unfit": cells.count(UNFIT)}
        if column.named:
            listed = places_of(getattr(column, "categories", ()), column.type)
            strange = [at for at, name in enumerate(cells.names) if name not in listed]
            odd["unlisted level"] = int(np.isin(cells.codes, strange).sum())
        elif column.scaled:
            odd["unfit"] += int((np.isnan(cells.numbers) & ~cells.blank).sum())
        for kind, count in odd.items():
            if count:
                result.setdefault(kind, {})[column.name] = count
    return result


def tell_of_unclear(found: Unclear, encoding: Encoding, stacklevel: int = 4) -> None:
    """Warn the owner of the cells that :func:`unclear` counts.

    >>> from bdpvi.datasets.columns import OneHot
    >>> levels = Encoding((OneHot("sex", ("F", "M")),), "By law.", unknown="base")
    >>> with warnings.catch_warnings(record=True) as told:
    ...     warnings.simplefilter("always")
    ...     tell_of_unclear({"blank": {"sex": 1, "age": 2}, "unfit": {"age": 3}}, levels)
    >>> str(told[0].message)[20:77]
    "cells of these rows: blank: 1 of 'sex', 2 of 'age'; unfit"
    """
    if found:
        each = "; ".join(f"{kind}: {words_of_counts(counts)}" for kind, counts in found.items())
        how = (
            "Each counts as what training saw of such cells, or, if that was little, about as the "
            "mean of its column"
            if encoding.unknown == "other"
            else "The features of each are 0, but for a blank that the column has a feature for"
        )
        _tell(f"cells of these rows: {each}. {how}", stacklevel)


def tell_of_labels(target: str, counts: Mapping[str, int], positive: str) -> None:
    """Warn the owner about several labels of a yes/no target that count as not positive.

    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     tell_of_labels("sick", {"yes": 1, "Yes": 1, "no": 2}, "yes")
    >>> str(said[0].message)[20:78]
    "target 'sick': counted as not 'yes': 'no' (2), 'Yes' (1). "
    """
    pairs = sorted(counts.items(), key=lambda pair: -pair[1])
    others = [(name, count) for name, count in pairs if name != positive]
    like = any(name.casefold() == positive.casefold() for name, _ in others)
    if len(others) < 2 and not like:
        return
    listed = ", ".join(f"{name!r} ({count})" for name, count in others[:_SHOWN])
    _tell(
        f"target {target!r}: counted as not {positive!r}: {listed}"
        f"{', …' if len(others) > _SHOWN else ''}. If one of them means {positive!r}, declare its "
        "spellings in types (`bdpvi table`)"
    )


def beyond(values: NDArray[np.float64], model: object) -> int:
    """Return how many targets, (N,), a regression of numbers clamps to its public bound."""
    most = getattr(model, "largest", None)
    if most is None:
        return 0
    return int((np.abs(values - getattr(model, "middle", 0.0)) > most).sum())


def tell_of_clamped(clamped: int, targets: int, model: object) -> None:
    """Warn the owner if more than 1 % of the targets are clamped to their public bounds.

    >>> from bdpvi.models.linear import BayesianLinearRegression
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     tell_of_clamped(1, 3, BayesianLinearRegression.of_bounds(0, 10))
    >>> str(said[0].message)[20:78]
    '1 of 3 targets are beyond their public bounds, 0 and 10, a'
    """
    if clamped > _CLAMPED * targets:
        _tell(
            f"{clamped} of {targets} targets are beyond their public bounds, "
            f"{' and '.join(target_bounds(model))}, and clamped to them: a mean near a bound is "
            "estimated too small, and only Poisson counts by noisy scores are corrected for it. A "
            "larger bound (largest=, --largest, "
            "--target-bounds) would keep them"
        )


def _with_comma(text: str, decimal: str, thousands: str) -> bool:
    return "," in text and number_of(text, decimal, thousands) is not None


def _tell(words: str, stacklevel: int = 4) -> None:
    said = f"for the owner only: {words} (secret)"
    warnings.warn(said, ReadingWarning, stacklevel=stacklevel)
