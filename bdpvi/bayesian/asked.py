"""What a release is asked for: draws, and the temperature that an ε allows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from bdpvi._ground import log, validate
from bdpvi._ground.host import on_host
from bdpvi._ground.types import Budget
from bdpvi.bayesian import guarantees, pricing
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.bayesian.fit import Fit
from bdpvi.bayesian.guarantees import BayesianDP, Guarantee
from bdpvi.privacy.cost import Kind
from bdpvi.privacy.entry import Charge
from bdpvi.releases.refitted import Refitted
from bdpvi.releases.transaction import Transaction

SOLVED = (
    "Every release is solved again for its ε, and has no temperature: bdpvi.release(fit, "
    "epsilon=…). bdpvi.fit takes a guide, which has one"
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The arguments of :func:`release`.

    Args:
        draws, temperature, epsilon, guarantee, delta, accounting, generator: as there.
        work: the transaction of which the release is the last step. A repeated call makes the same
            draws and charges nothing. By default a new one, from a secret that is not stored.
    """

    draws: int | Charge | None = None
    temperature: float | None = None
    epsilon: float | None = None
    guarantee: Guarantee | None = None
    delta: float = 1e-5
    accounting: Accounting | None = None
    generator: torch.Generator | None = None
    work: Transaction | None = None

    def limit(self, guarantee: Guarantee) -> Budget | None:
        """Return the limit for a temperature that is not calibrated."""
        fixed = self.temperature is not None or isinstance(self.draws, Charge)
        fixed = fixed or isinstance(guarantee, BayesianDP)
        return Budget(self.epsilon, self.delta) if fixed and self.epsilon is not None else None

    def charge(self, fit: Fit, guarantee: Guarantee) -> Charge:
        """Return the draws and their temperature."""
        if self.epsilon is None or self.limit(guarantee) is not None:
            found = _asked(self.draws, self.temperature)
            free = self.temperature is None and not isinstance(self.draws, Charge)
            if free and self.epsilon is not None and isinstance(guarantee, BayesianDP):
                tau = guarantee.planned(fit, found.draws, self.epsilon, self.delta)
                found = replace(found, temperature=tau)
            return fit.ledger.as_it_is(found)
        assert not isinstance(self.draws, Charge)
        return calibrate(
            fit,
            1 if self.draws is None else self.draws,
            epsilon=self.epsilon,
            delta=self.delta,
            guarantee=guarantee,
            accounting=self.accounting,
        )


def check_solved(asked: Asked) -> None:
    """Refuse arguments that a solved release does not have."""
    draws, guarantee = asked.draws, asked.guarantee
    if isinstance(draws, Charge) or asked.temperature is not None or asked.epsilon is None:
        tau = f"temperature={asked.temperature!r}"
        given = f"draws={draws}" if isinstance(draws, Charge) else tau
        raise ValueError(f"{'epsilon=None' if asked.epsilon is None else given}: {SOLVED}")
    if guarantee is not None and guarantee.name != guarantees.WORST_CASE:
        raise ValueError(
            f"guarantee={guarantee.name}: the noise of this release covers every conceivable "
            "record; draws of bdpvi.fit with guides.Laplace can have a Bayesian guarantee"
        )


def _asked(draws: int | Charge | None, temperature: float | None) -> Charge:
    """Return the requested draws."""
    if not isinstance(draws, Charge):
        return Charge(1 if draws is None else draws, 1.0 if temperature is None else temperature)
    if temperature is not None:
        raise ValueError(f"{draws} and temperature={temperature!r} were both given; give one")
    return draws


@log.step("calibration")
@on_host
def calibrate(
    fit: Fit | Refitted,
    draws: int = 1,
    *,
    epsilon: float,
    delta: float = 1e-5,
    guarantee: Guarantee | None = None,
    least: float = 1e-9,
    accounting: Accounting | None = None,
) -> Charge:
    """Return ``draws`` more samples at the smallest temperature that keeps ε within ``epsilon``.

    Temperature lowers the loss from the neighbours' means, but not the loss from their covariances
    (the floor), so not every ε can be reached.

    Args:
        fit: the fit to draw from; earlier releases count.
        draws: number of samples.
        epsilon: target, met from below: within 0.1 % for worst-case DP, otherwise within 4.5 %.
            Then the temperature is computed from the records, on a coarse grid: no δ covers it, and
            a release at it is an experiment and never certified.
        delta: δ of the target.
        guarantee: as for :func:`release`.
        least: lowest temperature to consider. At 1 samples are from the posterior itself; below 1
            they lie closer to the mean and cost more.
        accounting: as for :func:`release`.

    Returns:
        The draws, their temperature and its origin, for :func:`release`. The ledger first records
        that a temperature was computed from the data.

    Raises:
        BudgetExceededError: if ``epsilon`` is spent.
        ValueError: if no temperature reaches ``epsilon``; the message says why. Or if the fit
            cannot give the guarantee.
    """
    validate.epsilon(epsilon)
    validate.probability("delta", delta)
    validate.positive("least", least)
    if not isinstance(fit, Fit):
        raise ValueError(f"fit: there is no temperature to calibrate. {SOLVED}")
    guarantee = guarantee or guarantees.by_default(fit)
    pricing.check_delta(fit, delta, Kind(guarantee.name))
    guarantees.check_unit(fit, guarantee.name)
    with fit.ledger.attempt(guarantee.name != guarantees.WORST_CASE):
        return guarantee.calibrated(
            fit, draws, epsilon=epsilon, delta=delta, least=least, accounting=accounting
        )
