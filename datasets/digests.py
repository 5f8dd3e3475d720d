"""Digests of a block's rows, by which the passes over a table are compared. Not for publication."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

DIGEST = "digest"
"""Attribute of a block's rows: the digest of the bytes they were read from, or () if their file is
watched."""
_ODD = np.uint64(0x9E3779B97F4A7C15)


def of(part: Any) -> tuple[int, ...]:
    """Return the digest of a part of a block, if it is a frame."""
    if (noted := getattr(part, "attrs", None)) is None:
        return ()
    found: tuple[int, ...] = noted[DIGEST] if DIGEST in noted else (of_rows(part),)
    return found


def of_bytes(content: bytes) -> int:
    """Return the digest of bytes."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big")


def of_rows(frame: pd.DataFrame) -> int:
    """Return the digest of rows in any order: a sum of a hash of each.

    >>> import pandas as pd
    >>> one = pd.DataFrame({"age": [1.5, 2.0], "sex": ["F", "M"]})
    >>> of_rows(one) == of_rows(one.iloc[::-1]), of_rows(one) == of_rows(one.iloc[:1])
    (True, False)
    """
    each = np.zeros(len(frame), dtype=np.uint64)
    for at, name in enumerate(frame.columns):
        factor = of_bytes(f"{at} {name}".encode("utf-8", "replace")) | 1
        each += _hashes(frame.iloc[:, at]) * np.uint64(factor)
    each = (each ^ (each >> np.uint64(32))) * _ODD
    return int((each ^ (each >> np.uint64(29))).sum(dtype=np.uint64))


def _hashes(values: pd.Series[Any]) -> NDArray[np.uint64]:
    """Return a number for each cell; equal cells of one type have equal numbers."""
    import pandas as pd

    kind = values.dtype
    if isinstance(kind, np.dtype) and kind.kind in "biuf" and kind.itemsize <= 8:
        wide = np.float64 if kind.kind == "f" else np.int64
        return values.to_numpy().astype(wide).view(np.uint64)
    try:
        return np.asarray(pd.util.hash_pandas_object(values, index=False), dtype=np.uint64)
    except TypeError:  # lists and dictionaries are not hashable
        return _hashes(values.astype(str).astype(object))
