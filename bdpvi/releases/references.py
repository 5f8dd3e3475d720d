"""The levels that the others of a category are compared with: contrasts of released weights.

The features of a category sum to 1, so one number can be added to all weights of its levels and
taken from the intercept without a change of any prediction. A table with another reference level is
this linear map of the same release, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bdpvi.datasets.columns import OneHot, distinct_names
from bdpvi.datasets.encoding import MISSING, OTHER

if TYPE_CHECKING:
    from bdpvi.datasets.encoding import Encoding


@dataclass(frozen=True)
class Compared:
    """A category whose levels are compared with one of them.

    Attributes:
        column, level: the names of the category and of its reference level.
        places: indices of all its levels' weights.
        base: index of the reference level's weight.
    """

    column: str
    level: str
    places: tuple[int, ...]
    base: int


def compared(
    encoding: Encoding | None, names: Sequence[str], reference: Mapping[str, str]
) -> tuple[Compared, ...]:
    """Return the categories with a given reference level.

    Args:
        encoding: the encoding of the raw columns.
        names: names of the weights, in order.
        reference: reference level by category; ``other`` and ``missing`` are levels too.

    Raises:
        ValueError: naming a column without levels, or a level that it lacks.

    >>> from bdpvi.datasets.encoding import Encoding
    >>> made = Encoding((OneHot("smokes", ("no", "yes")),), "Form 7.")
    >>> compared(made, ["smokes=no", "smokes=yes", "intercept"], {"smokes": "yes"})
    (Compared(column='smokes', level='yes', places=(0, 1), base=1),)
    """
    groups: dict[str, dict[str, int]] = {}
    if encoding is not None:
        features = encoding.feature_names
        for block, places in encoding.groups:
            one = block.column
            if not isinstance(one, OneHot):
                continue
            without = len(one.categories) + 2 - len(places)  # of the two, there may be fewer
            levels = distinct_names([*one.categories, *(OTHER, MISSING)[without:]])
            weights = [names.index(features[place]) for place in places]
            groups[one.name] = dict(zip(levels, weights, strict=True))
    found = []
    for column, level in reference.items():
        if column not in groups:
            raise ValueError(
                f"reference={column!r} must be a category with named levels: {sorted(groups)}"
            )
        if level not in groups[column]:
            raise ValueError(
                f"reference={level!r} must be a level of {column!r}: {[*groups[column]]}"
            )
        places = tuple(groups[column].values())
        found.append(Compared(column, level, places, groups[column][level]))
    return tuple(found)


def contrasts(weights: int, baselines: int, pairs: Sequence[tuple[Sequence[int], int]]) -> Tensor:
    """Return the map from weights to their contrasts with the reference levels, (d, d) float64.

    Args:
        weights: d.
        baselines: how many of the last weights are of no feature, such as the intercept: they are
            then for reference levels.
        pairs: the places of each category's levels, and of its reference level.

    >>> contrasts(3, 1, [((0, 1), 1)]).tolist()
    [[1.0, -1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 1.0]]
    """
    made = torch.eye(weights, dtype=torch.float64)
    for places, base in pairs:
        made[list(places), base] -= 1
        made[weights - baselines :, base] += 1
    return made
