"""What a guarantee for one record implies for several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi.privacy.cost import Bound, Kind
from bdpvi.privacy.event import Event
from bdpvi.privacy.gaussian_dp import gaussian_guarantee
from bdpvi.privacy.solve import brent
from bdpvi.privacy.worst_case import deltas
from bdpvi.privacy.worst_case import epsilon as worst_case

if TYPE_CHECKING:
    from bdpvi.privacy.loss_bounds import Array, Deltas

LARGEST = 700.0
"""The largest ε whose e^ε is a float."""
_PRECISION = 1e-9
"""Precision of log δ′; its ε′ is then at most a billionth too large."""


def changes(epsilon: float, size: int) -> float:
    """Return 1 + e^ε + … + e^{(k−1)ε}, rounded up: δ of k changes in succession, over that of one.

    Args:
        epsilon: ε of one change.
        size: k.

    >>> round(changes(0.0, 3), 9), round(changes(math.log(2), 3), 9)
    (3.0, 7.0)
    """
    total = math.expm1(size * epsilon) / math.expm1(epsilon) if epsilon else float(size)
    return total * (1 + 1e-12)


def one_of(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """Return the ε′ and δ′ of one row at which k rows, one after another, cost (ε, δ).

    >>> epsilon, delta = one_of(1.0, 1e-5, 3)
    >>> f"{3 * epsilon:.3g} {delta * changes(epsilon, 3):.3g}"
    '1 1e-05'
    """
    return epsilon / size, delta / changes(epsilon / size, size)


def group(guarantee: Bound, size: int) -> Bound | None:
    """Return the guarantee for up to k records together that a worst-case guarantee implies.

    For a mechanism no worse than a Gaussian one of distance μ it is the ε of distance kμ at the
    same δ (Dong, Roth and Su, "Gaussian differential privacy", JRSS B 2022, on group privacy).
    Otherwise a group is k changes in succession: (kε, δ (1 + e^ε + … + e^{(k−1)ε})), which is
    less than the (kε, k e^{kε} δ) of Vadhan ("The complexity of differential privacy", 2017, Lemma
    2.2). One record replaced is a removal and an addition, k = 2.

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
    delta = guarantee.delta * changes(guarantee.epsilon, size)
    if delta >= 1:
        return None
    rows = guarantee.deltas and partial(_of_rows, guarantee.deltas, size, 0.0)
    return replace(guarantee, epsilon=epsilon, delta=delta, unit=unit, deltas=rows)


def _of_rows(deltas: Deltas, size: int, fixed: float, epsilons: Array) -> Array:
    """Return δ(ε) of k rows one after another, from that of one row at ε/k; and a fixed part."""
    times = np.array([changes(float(one) / size, size) for one in epsilons])
    return np.minimum(fixed + times * deltas(epsilons / size), 1.0)


def row_by_row(events: Sequence[Event], size: int, delta: float) -> Bound | None:
    """Return the joint guarantee for k rows of events priced for one row, at δ; None if none.

    Events of whole units are beside the rows: they get half of δ, and the two guarantees add up
    (Dwork and Roth 2014, Theorem 3.16).

    One row's guarantee is (ε′, δ′) at every δ′, and k rows have that of :func:`group`; this is the
    ε of the δ′ at which their δ is the given one. A threshold already covers all rows of a unit, so
    its δ counts once.

    Args:
        events: as they count for one row.
        size: k.
        delta: δ of the k rows together.

    >>> from bdpvi.privacy.perturbed_objective import PerturbedObjective
    >>> event = PerturbedObjective(noise_multiplier=12.5, curvature=0.3)
    >>> round(row_by_row([event], 3, 1e-5).epsilon, 2)
    0.89
    """
    if units := [event.for_rows(size) for event in events if event.whole_units]:
        rest_of = [event for event in events if not event.whole_units]
        found, other = row_by_row(rest_of, size, delta / 2), worst_case(units, delta / 2)
        if found is None or other is None:
            return None
        whole = found.epsilon + other.epsilon
        return replace(found, epsilon=whole, delta=delta, deltas=None)
    others = [event for event in events if event.form or event.squared_distance != 0]
    rest = delta - math.fsum(event.delta for event in events if event not in others)
    if not rest > 0:
        return None

    def excess(log_delta: float) -> float:
        """Return log(δ of the rows/δ); +inf without a guarantee."""
        found = worst_case(others, math.exp(log_delta))
        if found is None or size * found.epsilon > LARGEST:
            return math.inf
        return log_delta + math.log(changes(found.epsilon, size)) - math.log(rest)

    low = high = math.log(rest / changes(0.0, size))
    while (above := excess(low)) > 0:  # in short steps: rounding may use up a δ′ that is too small
        if math.isinf(above) or low < -LARGEST:
            return None
        high, low = low, low - 1.25 * above - 1e-3
    at = low if low == high else brent(excess, low, high, xtol=_PRECISION)
    while excess(at) > 0:
        at -= _PRECISION
    found = worst_case(others, math.exp(at))
    assert found is not None
    curve = partial(_of_rows, partial(deltas, others), size, delta - rest)
    return replace(found, epsilon=size * found.epsilon, delta=delta, distance=None, deltas=curve)
