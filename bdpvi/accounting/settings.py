"""How a Bayesian ε is computed, as a value that can be stored and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bdpvi.accounting.bayesian import HOCKEY_STICK, BayesianAccountant
from bdpvi.accounting.panel import Panel


@dataclass(frozen=True, kw_only=True)
class Accounting:
    """Makes accountants, all alike.

    Args:
        conversion: as for :class:`~bdpvi.accounting.bayesian.BayesianAccountant`.
        failure_probability: γ of each estimate.
        only_reliable: as for :class:`~bdpvi.accounting.bayesian.BayesianAccountant`.

    >>> Accounting(conversion="chernoff")().conversion
    'chernoff'
    """

    conversion: str = "cks"
    failure_probability: float = 1e-15
    only_reliable: bool = False

    def __post_init__(self) -> None:
        self()  # refuses what no accountant takes

    def __call__(self) -> BayesianAccountant:
        """Return an accountant with nothing charged."""
        return BayesianAccountant(
            conversion=self.conversion,
            failure_probability=self.failure_probability,
            only_reliable=self.only_reliable,
        )

    @classmethod
    def of(cls, panels: Sequence[Panel]) -> Accounting:
        """Return the usual settings for draws from a fit with these panels.

        The hockey-stick conversion gives a third to a quarter of the ε that the conversion of
        Canonne, Kamath and Steinke gives on the same panel. Where a bound on every record's cost is
        known, its estimate holds for every distribution and a γ of 1e-10 is enough. Elsewhere
        skewed costs make an estimate fail more often than γ says, and with 1e-30 the largest
        skewness is tolerated (:mod:`bdpvi.accounting.reliability`).

        >>> Accounting.of(()).conversion
        'hockey-stick'
        """
        bounded = all(panel.largest is not None for panel in panels)
        return cls(conversion=HOCKEY_STICK, failure_probability=1e-10 if bounded else 1e-30)
