"""The first rows of a table in blocks, for what its owner looks at in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from bdpvi.datasets.blocks import LEFT_OUT, Blocks

MOST = 200_000
"""Most rows that are looked at in memory."""


@dataclass(frozen=True, eq=False)
class FirstRows:
    """The first rows of a table in blocks.

    Attributes:
        frame: the rows, those of CSV files as text.
        whole: whether the table has no others.
        left_out: number of lines of their blocks that are left out, as :data:`ODD` says.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "a.csv").write_text("age\\n40\\n50\\n")
    ...     _ = (Path(folder) / "b.csv").write_text("age\\n60\\n")
    ...     first = FirstRows.of(Blocks.of(folder), most=2)
    >>> first.frame["age"].tolist(), first.whole
    (['40', '50'], False)
    """

    frame: pd.DataFrame
    whole: bool
    left_out: int = 0

    @classmethod
    def of(cls, blocks: Blocks, most: int | None = None) -> FirstRows:
        """Return the first rows, at most ``most``, by default :data:`MOST`; no more is read.

        Raises:
            ValueError: naming a block that cannot be read.
        """
        most = MOST if most is None else most
        parts: list[pd.DataFrame] = []
        read = rows = 0
        for found in blocks.records().each(_listed):
            parts += found
            read, rows = read + 1, sum(map(len, parts))
            if rows >= most:
                break
        odd = sum(int(one.attrs.get(LEFT_OUT, 0)) for one in parts)
        plain = [one.copy(deep=False) for one in parts if len(one)] or parts[:1]
        for one in plain:
            one.attrs = {}
        frame = pd.concat(plain, ignore_index=True)
        return cls(frame.head(most), read == blocks.records().blocks and rows <= most, odd)


def _listed(frame: Any) -> list[Any]:
    return [frame]
