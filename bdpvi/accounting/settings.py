"""How a Bayesian ε is computed, as a value that can be stored and compared."""

from __future__ import annotations

from dataclasses import dataclass

from bdpvi.accounting.bayesian import BayesianAccountant


@dataclass(frozen=True, kw_only=True)
class Accounting:
    """Makes accountants, all alike.

    Args:
        conversion: as for :class:`~bdpvi.accounting.bayesian.BayesianAccountant`.
        failure_probability: γ of each estimate, as there.
        only_reliable: as for :class:`~bdpvi.accounting.bayesian.BayesianAccountant`.

    >>> Accounting(conversion="chernoff")().conversion
    'chernoff'
    """

    conversion: str | None = None
    failure_probability: float | None = None
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
