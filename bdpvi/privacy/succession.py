"""The δ of several changes in succession, as in group privacy (:mod:`bdpvi.privacy.groups`)."""

from __future__ import annotations

import math


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
