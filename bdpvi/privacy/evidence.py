"""The estimate behind a bound that was computed from a panel of records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The estimate behind a bound that was computed from a panel of records. Secret.

    Attributes:
        order: λ at which ε is smallest; None if the conversion has no orders.
        direction: the most costly direction, such as "remove D‖D′".
        conversion, estimator: names of the methods that turned costs into ε.
        failure_probability: γ of each estimate; δ includes ``estimates`` times γ.
        estimates: number of bounds behind ε.
        sample_size: records m in the panel.
        skewness: of the values at ``order``: if it is large, a bound from mean and variance fails
            more often than γ.
    """

    order: float | None
    direction: str
    conversion: str
    estimator: str
    failure_probability: float
    estimates: int
    sample_size: int
    skewness: float
