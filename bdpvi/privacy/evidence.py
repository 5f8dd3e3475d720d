"""The estimate behind a bound that was computed from a panel of records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnostics:
    """How much an estimate depends on its largest records, at the order used.

    Attributes:
        top_share: fraction of the mean that the largest record contributes.
        effective_size: (Σy)²/Σy², the effective number of records in the mean.
        pareto_k: shape of the upper tail's generalised Pareto distribution; above 0.7 the sample
            does not show the variance.
        skewness: skewness of the values; if it is large, a bound from mean and variance fails more
            often than γ.
    """

    top_share: float
    effective_size: float
    pareto_k: float
    skewness: float


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
        diagnostics: of the estimate at ``order``.
    """

    order: float | None
    direction: str
    conversion: str
    estimator: str
    failure_probability: float
    estimates: int
    sample_size: int
    diagnostics: Diagnostics
