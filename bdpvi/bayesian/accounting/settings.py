"""How a Bayesian ε is computed: settings, without the code that computes it."""

from __future__ import annotations

from dataclasses import dataclass

from bdpvi._ground import validate
from bdpvi.privacy.conversions import CONVERSIONS


@dataclass(frozen=True, kw_only=True)
class Accounting:
    """How a Bayesian ε is computed, as a value that can be stored and compared.

    Args:
        conversion: "cks", "chernoff" (see :mod:`bdpvi.privacy.conversions`) or "hockey-stick"
            (see :mod:`bdpvi.bayesian.accounting.losses`; for draws from Gaussian guides and for
            whole runs of DP-SGD). None means "hockey-stick" where it applies and "cks" elsewhere.
            On the same records "hockey-stick" gives a quarter to a third of the ε of "cks".
        failure_probability: γ, the probability that an estimate fails. None means
            :func:`~bdpvi.privacy.conversions.least_failure` for betting and 1e-30 for other
            estimators, which fail more often than γ on skewed costs: at this γ they tolerate the
            most skewness (:mod:`bdpvi.bayesian.accounting.reliability`).
        only_reliable: return the smallest ε with a reliable estimate. Its order is lower, so that
            exposed records weigh less. Not available for "hockey-stick".

    Raises:
        ValueError: if an argument is none of these values.
    """

    conversion: str | None = None
    failure_probability: float | None = None
    only_reliable: bool = False

    def __post_init__(self) -> None:
        if self.conversion not in (None, *CONVERSIONS[: 2 if self.only_reliable else 3]):
            raise ValueError(
                f"conversion must be one of {CONVERSIONS}, or with only_reliable=True, which "
                f"chooses an order, one of the first two; got {self.conversion!r}"
            )
        if self.failure_probability is not None:
            validate.probability("failure_probability", self.failure_probability)
