"""A guarantee's assumptions about how its records were made, and their public description."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bdpvi.datasets.encoding import Encoding
from bdpvi.datasets.origin import DECLARED, GIVEN, MULTILINE, Origin, features_of, listed
from bdpvi.noise.keys import EXPERIMENT
from bdpvi.privacy.assumptions import Assumption, sentences

if TYPE_CHECKING:
    from bdpvi.privacy.entry import Entry

LABELLED = "classes_from_labels"
"""Preprocessing key for data whose classes were taken from the labels."""
ASSUMED = {
    Origin.FROM_THIS_TABLE: Assumption.CONSTANTS_FROM_TABLE,
    Origin.FROM_ANOTHER_RELEASE: Assumption.CONSTANTS_FROM_ANOTHER_RELEASE,
    Origin.ESTIMATED_HERE: Assumption.PRIVATE_CONSTANTS,
    Origin.PUBLIC: Assumption.PUBLIC_CONSTANTS,
}
"""Assumption of a guarantee, by origin of the preprocessing bounds."""


def assumptions_of(
    preprocessing: Mapping[str, Any], spent: Iterable[Entry] = ()
) -> tuple[Assumption, ...]:
    """Return the assumptions of a guarantee for records made this way.

    Args:
        preprocessing: how the records were made.
        spent: the charges that its ε counts.
    """
    found = [Assumption.SEEDED_EXPERIMENT] * bool(preprocessing.get(EXPERIMENT))
    if encoding := encoding_of(preprocessing, spent):
        found += [ASSUMED[origin] for origin in reversed(encoding.origins)]
    as_given = preprocessing.get(GIVEN, encoding is None)
    if Assumption.CONSTANTS_FROM_TABLE not in found and as_given and not features_of(preprocessing):
        found.append(Assumption.GIVEN_FEATURES)
    found += [Assumption.DECLARED_FACTS] * bool(preprocessing.get(DECLARED))
    found += [Assumption.PUBLIC_CLASSES] * bool(preprocessing.get(LABELLED))
    found += [Assumption.RECORDS_ACROSS_LINES] * bool(preprocessing.get(MULTILINE))
    return tuple(found)


def given_assumptions(data: object, /, **arrays: Tensor) -> tuple[Assumption, ...]:
    """Return the assumptions for records as a call is given them; warn of made features that show.

    Args:
        data: the records: what has no attribute ``preprocessing`` has no declared constants.
        arrays: features and targets in memory, by the names that the owner knows.
    """
    from bdpvi.datasets.given import warn_of_signs  # late: a release is read without it

    preprocessing: Mapping[str, Any] = getattr(data, "preprocessing", {})
    result = assumptions_of(preprocessing)
    if Assumption.GIVEN_FEATURES in result and not preprocessing.get("encoding"):
        there = {name: one.detach().cpu() for name, one in arrays.items()}
        plain = (torch.float16, torch.bfloat16)
        numbers = {n: (one.float() if one.dtype in plain else one) for n, one in there.items()}
        warn_of_signs(4, **{name: one.numpy() for name, one in numbers.items()})
    return result


def check_programs(data: Any, copies: Mapping[str, Tensor], **programs: Any) -> None:
    """Refuse programs of the owner's that can reach the records beside their arguments.

    Args:
        data: the records, in memory, in blocks or on disk.
        copies: features and targets on the host, as of :func:`.dataset.in_arrays`.
        programs: what is searched, by the names of the caller's arguments.

    Raises:
        ValueError: as :func:`.reachable.check_reach`.
    """
    from bdpvi.datasets.dataset import Dataset  # late: a release is read without these
    from bdpvi.models.reachable import check_reach

    if isinstance(data, Dataset):
        check_reach((data.x, data.y), len(data), copies.values(), **programs)
    else:
        check_reach((data,), len(data), **programs)


def encoding_of(preprocessing: Mapping[str, Any], spent: Iterable[Entry]) -> Encoding | None:
    """Return how columns become features, with their origins for an ε of these charges."""
    if not (written := preprocessing.get("encoding")):
        return None
    return Encoding.from_dict(written).counting({one.purchase for one in spent})


def published(preprocessing: Mapping[str, Any], spent: Iterable[Entry]) -> dict[str, Any]:
    """Return the public description of how records were made, for an ε of these charges."""
    encoding = encoding_of(preprocessing, spent)
    return {**preprocessing} | ({"encoding": encoding.to_dict()} if encoding else {})


def about(preprocessing: Mapping[str, Any]) -> str:
    """Return what D is, its owner's declarations, and the source of the preprocessing bounds.

    Args:
        preprocessing: as :func:`published` returns it.
    """
    words = []
    if split := preprocessing.get("split"):
        words.append(f"D is only the training part of a published table: {split}")
    words.append(listed(preprocessing.get(DECLARED, {})))
    encoding = preprocessing.get("encoding")
    made_here = (Origin.ESTIMATED_HERE.value, Origin.FROM_THIS_TABLE.value)  # named as assumptions
    if encoding and not {encoding["origin"], *encoding["besides"]} <= {*made_here}:
        words.append(f"Preprocessing bounds: {encoding['source']}")
    return sentences(*words)
