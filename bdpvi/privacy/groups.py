"""What a guarantee for one record implies for several."""

from __future__ import annotations

import math
from dataclasses import replace

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi.privacy.cost import Bound, Kind
from bdpvi.privacy.gaussian_dp import gaussian_guarantee

LARGEST = 700.0
"""The largest ε whose e^ε is a float."""


def group(guarantee: Bound, size: int) -> Bound | None:
    """Return the guarantee for up to k records together that a worst-case guarantee implies.

    For a mechanism no worse than a Gaussian one of distance μ it is the ε of distance kμ at the
    same δ (Dong, Roth and Su, "Gaussian differential privacy", JRSS B 2022, on group privacy).
    Otherwise a group is k changes in succession: (kε, δ (1 + e^ε + … + e^{(k−1)ε})), which is
    less than the (kε, k e^{kε} δ) of Vadhan ("The complexity of differential privacy", 2017, Lemma
    2.2); :func:`.worst_case.replace_one` is k = 2.

    Args:
        guarantee: for one record, client or other unit.
        size: k.

    Returns:
        The guarantee; None if its δ would reach 1, or its ε is too large.

    Raises:
        ValueError: if the guarantee is not a worst case, or is for a group already. A Bayesian ε
            is for one random record and this table. A group passes through other tables, which it
            does not cover.

    >>> one = gaussian_guarantee(0.0625, 1e-5)
    >>> print(group(one, 3))
    worst-case DP: ε = 3.147 at δ = 1e-05 (Gaussian DP, to add or remove up to 3 records)
    >>> print(group(Bound(kind=Kind.WORST_CASE, epsilon=0.5, delta=1e-6, by="a proof"), 2))
    worst-case DP: ε = 1 at δ = 2.64872e-06 (a proof, to add or remove up to 2 records)
    """
    validate.positive_int("size", size)
    if guarantee.kind is not Kind.WORST_CASE:
        raise ValueError(
            f"guarantee is {guarantee.kind.value}, for one random record: it gives no "
            "guarantee for groups"
        )
    if not guarantee.unit.startswith("one "):
        raise ValueError(f"guarantee is already one for a group, to {guarantee.neighbours}")
    if size == 1:
        return guarantee
    unit = f"up to {several(size, guarantee.unit.removeprefix('one '))}"
    if guarantee.distance == 0:
        return replace(guarantee, unit=unit)
    if guarantee.distance is not None:
        variance = (size * guarantee.distance) ** 2
        found = gaussian_guarantee(variance, guarantee.delta, guarantee.rounding)
        return found and replace(
            guarantee, epsilon=found.epsilon, distance=found.distance, unit=unit
        )
    epsilon = size * guarantee.epsilon
    if epsilon > LARGEST:
        return None
    changes = math.expm1(epsilon) / math.expm1(guarantee.epsilon) if epsilon else float(size)
    delta = guarantee.delta * changes * (1 + 1e-12)  # rounded up
    return replace(guarantee, epsilon=epsilon, delta=delta, unit=unit) if delta < 1 else None
