"""What the owner should see of a table before anything is spent. It changes nothing released."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bdpvi._ground.outputs import several
from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi.datasets.cells import Columns, places_of, read_cells
from bdpvi.datasets.columns import Numeric, OneHot, Ordinal
from bdpvi.datasets.encoding import Encoding, said
from bdpvi.datasets.origin import target_bounds
from bdpvi.datasets.records import added
from bdpvi.datasets.spelling import number_of
from bdpvi.datasets.types import BLANK, UNFIT, UNUSED, ColumnType

_CLAMPED = 0.01
"""The largest share of clamped targets without a word."""
_SHOWN = 8
"""Most values of a target that are shown."""


class ReadingWarning(PrivacyUtilityWarning):
    """For the owner: something in a table is read otherwise than it seems meant."""


@dataclass(frozen=True)
class Misread:
    """Cells that may be read otherwise than meant; of a table in blocks, the sum over them.

    Attributes:
        cells: the number of rows.
        unfit: by column, how many cells do not fit its declared type, and the type's kind.
        texts: texts by column without a type: their number, numbers with a comma as decimal sign,
            and numbers with commas between thousands.
        lost: cells with characters that are not of the file's character set.
    """

    cells: int
    unfit: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    texts: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    lost: int = 0

    @classmethod
    def of(
        cls, frame: pd.DataFrame, types: Mapping[str, ColumnType], texts: Sequence[str] = ()
    ) -> Misread:
        """Return what is misread of a table's columns with types, and of others as texts."""
        found, lost = {}, 0
        for name in texts:
            values = frame[name]
            if values.dtype.kind not in "biuf":
                values = values[[isinstance(one, str) for one in values.tolist()]]
            else:
                values = values[:0]
            counts = Counter(one.strip() for one in values.tolist())
            lost += sum(n for one, n in counts.items() if "\ufffd" in one)
            if name in types:
                continue
            groups = sum(n for one, n in counts.items() if _with_comma(one, ".", ","))
            comma = sum(n for one, n in counts.items() if _with_comma(one, ",", "."))
            found[name] = (len(values), comma - groups, groups)
        read = {name: one for name, one in types.items() if one.kind not in UNUSED}
        not_fit = {
            n: (read_cells(frame[n], one).count(UNFIT), one.kind)
            for n, one in read.items()
            if n in frame
        }
        return cls(len(frame), not_fit, found, lost)

    def __add__(self, other: Misread) -> Misread:
        more = {name: added(one, other.texts[name]) for name, one in self.texts.items()}
        not_fit = {n: (one[0] + other.unfit[n][0], one[1]) for n, one in self.unfit.items()}
        return Misread(self.cells + other.cells, not_fit, more, self.lost + other.lost)

    def tell(self) -> None:
        """Warn the owner.

        >>> with warnings.catch_warnings(record=True) as said:
        ...     warnings.simplefilter("always")
        ...     Misread.of(pd.DataFrame({"kg": ["70,5", "81,0"]}), {}, ["kg"]).tell()
        >>> str(said[0].message)[20:75]
        "column 'kg': 2 of 2 cells are numbers with a comma as d"
        """
        for name, (count, kind) in self.unfit.items():
            if count:
                _tell(
                    f"column {name!r}: {several(count, 'cell')} of {self.cells}, not of kind "
                    f"{kind}, counted as blank"
                )
        for name, (texts, comma, groups) in self.texts.items():
            for count, sign in ((comma, "decimal"), (groups, "thousands")):
                if 2 * count > texts:
                    _tell(
                        f"column {name!r}: {count} of {self.cells} cells are numbers with a comma "
                        f"as {sign} sign, and are read as text; make them numbers by {sign}=',' "
                        "(`bdpvi table` declares it)"
                    )
        if self.lost:
            _tell(
                f"{several(self.lost, 'cell')} with characters that are not of the file's "
                "character set, such as latin-1 (charset=; `bdpvi table` finds it)"
            )


Unclear = dict[str, dict[str, int]]
"""How many cells of new rows say nothing that training knows, by kind and column."""


def unclear(encoding: Encoding, table: Columns) -> Unclear:
    """Return how many cells of new rows are blank, unfit or of an unlisted level, by column.

    >>> from bdpvi.datasets.cells import read_columns
    >>> levels = Encoding((OneHot("sex", ("F", "M")),), "By law.", unknown="other")
    >>> unclear(levels, read_columns(pd.DataFrame({"sex": ["F", "X", None]})))
    {'blank': {'sex': 1}, 'unlisted level': {'sex': 1}}
    """
    found: Unclear = {}
    for column in encoding.columns:
        if (cells := table.get(column.name)) is None:  # all are blank, or it is refused
            found.setdefault("blank", {})[column.name] = max(map(len, table.values()), default=0)
            continue
        odd = {"blank": cells.count(BLANK), "unfit": cells.count(UNFIT)}
        if isinstance(column, OneHot | Ordinal):
            listed = places_of(column.categories, column.type)
            strange = [at for at, name in enumerate(cells.names) if name not in listed]
            odd["unlisted level"] = int(np.isin(cells.codes, strange).sum())
        elif isinstance(column, Numeric):
            odd["unfit"] += int((np.isnan(cells.numbers) & ~cells.blank).sum())
        for kind, count in odd.items():
            if count:
                found.setdefault(kind, {})[column.name] = count
    return found


def tell_of_unclear(found: Unclear, encoding: Encoding, stacklevel: int = 4) -> None:
    """Warn the owner of the cells that :func:`unclear` counts.

    >>> levels = Encoding((OneHot("sex", ("F", "M")),), "By law.", unknown="base")
    >>> with warnings.catch_warnings(record=True) as told:
    ...     warnings.simplefilter("always")
    ...     tell_of_unclear({"blank": {"sex": 1, "age": 2}, "unfit": {"age": 3}}, levels)
    >>> str(told[0].message)[20:77]
    "cells of these rows: blank: 1 of 'sex', 2 of 'age'; unfit"
    """
    if found:
        each = "; ".join(f"{kind}: {said(counts)}" for kind, counts in found.items())
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

    >>> from bdpvi.models.regression import BayesianLinearRegression
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
