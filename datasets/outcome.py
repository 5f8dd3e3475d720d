"""The two values of a yes/no target, as its rows have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from bdpvi.datasets.columns import label


def outcome(
    values: pd.Series[Any], positive: object
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], dict[str, str]]:
    """Return y, (N,), and the target's values for 1 and 0."""
    labels = values.map(label)
    numbers = pd.to_numeric(labels, errors="coerce")
    found = [str(v) for v in labels.unique()]
    # Sort numbers as numbers, so that 1 is the positive of -1 and 1, and 10 of 9 and 10.
    found.sort(key=(lambda v: (float(v), v)) if numbers.notna().all() else (lambda v: (0.0, v)))
    if len(found) != 2:
        some = ", ".join(map(repr, found[:8])) + (", …" if len(found) > 8 else "")
        raise ValueError(
            f"target={values.name!r} must have two different values, it has {len(found)}: {some}"
        )
    chosen = found[1] if positive is None else label(positive)
    if chosen not in found:
        raise ValueError(
            f"positive={positive!r} is not a value of target {values.name!r}: {found[0]!r}, "
            f"{found[1]!r}"
        )
    other = found[0] if chosen == found[1] else found[1]
    meaning = {"column": str(values.name), "positive": chosen, "negative": other}
    return np.asarray(labels == chosen, dtype=np.float64), meaning
