"""Records that are groups of rows: a person, a hospital."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.types import tell_owner
from bdpvi.datasets.named import tensor_of
from bdpvi.datasets.units import at_most, persons_of

PRESENT = "present"
"""The name of the mask."""
_GROUP = "group"


def padded(
    group: Any = None, *, rows_per_unit: int, lengths: Any = None, **columns: Any
) -> dict[str, Tensor]:
    """Return records that are whole groups: their rows, padded with zeros, and a mask.

    A model that takes them observes one target of each group, with R entries:
    :class:`bdpvi.models.grouped.RandomIntercept` is a likelihood for it. Every guarantee for a
    record is then for all rows of a group.

    Of each group the first ``rows_per_unit`` rows are used, and the owner is told how many are left
    out. So are rows without a group, and rows with a number that is not finite. A group of which no
    row is left is no record.

    Args:
        group: each row's group, (N,), in any order; any names. See
            :func:`bdpvi.datasets.units.persons_of`.
        rows_per_unit: R, the most rows of a group. Public: choose it without the rows.
        lengths: instead of ``group``, the number of rows of each group, (G,), if rows of one lie
            together.
        columns: what there is of each row, (N, ...) each, by the names of the model's arguments.

    Returns:
        Each of them, (G, R, ...), and ``present``, (G, R), whether there is such a row.

    Raises:
        ValueError: if not one of ``group`` and ``lengths`` is given, a length is below 1, or the
            number of rows is another.

    >>> found = padded(["a", "b", "a"], rows_per_unit=2, x=[1.0, 2.0, 3.0])
    >>> found["x"].tolist(), found["present"].tolist()
    ([[1.0, 3.0], [2.0, 0.0]], [[True, True], [True, False]])
    >>> padded(lengths=[1, 2], rows_per_unit=2, x=[1.0, 2.0, 3.0])["x"].tolist()
    [[1.0, 0.0], [2.0, 3.0]]
    """
    size = validate.positive_int("rows_per_unit", rows_per_unit)
    if PRESENT in columns or not columns:
        raise ValueError(
            f"columns={[*columns]}: name those of the model's arguments; {PRESENT!r} is the mask's"
        )
    values = {name: tensor_of(name, one) for name, one in columns.items()}
    names = pd.Series(_groups(group, lengths), name=_GROUP)
    good = torch.ones(len(names), dtype=torch.bool)
    for name, value in values.items():
        validate.same_length(name, value if value.ndim else (), "the groups", names)
        good &= value.isfinite().reshape(len(value), -1).all(1).cpu()
    tell_owner(int((~good).sum()), "row", "a value is not finite")
    kept = at_most(names[good.numpy()].to_frame(), _GROUP, size)
    ordered = persons_of(kept[_GROUP]).groupby(persons_of(kept[_GROUP]), sort=False)
    at, place, row = (
        torch.tensor(one.to_numpy(), dtype=torch.int64)
        for one in (ordered.ngroup(), ordered.cumcount(), kept.index)
    )
    result = {}
    for name, value in [*values.items(), (PRESENT, torch.ones(len(names), dtype=torch.bool))]:
        blank = value.new_zeros(ordered.ngroups, size, *value.shape[1:])
        blank[at, place] = value[row.to(value.device)]
        result[name] = blank
    return result


def _groups(group: Any, lengths: Any) -> Any:
    """Return the group of each row."""
    if (group is None) == (lengths is None):
        raise ValueError(
            f"group={group!r:.80}, lengths={lengths!r:.80}: give one of them, the group of each "
            "row or the number of rows of each group"
        )
    if lengths is None:
        return group.cpu().numpy() if isinstance(group, Tensor) else group
    sizes = validate.numbers("lengths", lengths)
    whole = (sizes >= 1) & (sizes == sizes.round())
    validate.every("lengths", sizes, whole, "be whole numbers of at least 1: a group has rows")
    return torch.arange(len(sizes)).repeat_interleave(sizes.long()).numpy()
