"""Release samples: charge first, then draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bdpvi import _validate, secure
from bdpvi.accountants import BayesianAccountant
from bdpvi.events import PosteriorDraws
from bdpvi.fit import Fit
from bdpvi.ledger import Charge
from bdpvi.models import Model, predictive_means
from bdpvi.types import Budget, BudgetExceededError, Spent


@dataclass(frozen=True, eq=False)
class Release:
    """What may be shared.

    Attributes:
        samples: posterior samples over the flat vector of unconstrained latents, (k, d).
        latents: the same samples as the model's latent variables, each (k, ...).
        temperature: τ of the Gaussian they came from.
        spent: what all releases from the fit have cost together, this one included.
        model: the model, for predictions.
        feature_names: the columns that predictions expect, in order.
        preprocessing: the public constants that make those columns from raw ones.
    """

    samples: Tensor
    latents: Mapping[str, Tensor]
    temperature: float
    spent: Spent
    model: Model
    feature_names: tuple[str, ...]
    preprocessing: Mapping[str, object]

    def predict_mean(self, x: Tensor) -> Tensor:
        """Return each record's expected target, averaged over the samples, (N,)."""
        if x.ndim != 2 or x.shape[1] != len(self.feature_names):
            raise ValueError(
                f"x must have shape (records, {len(self.feature_names)}), got {tuple(x.shape)}"
            )
        _validate.finite("x", x)
        return predictive_means(self.model, self.latents, x.to(self.samples.dtype)).mean(0)

    def predict_proba(self, x: Tensor) -> Tensor:
        """Return the probabilities of 0 and 1, averaged over the samples, (N, 2)."""
        one = self.predict_mean(x)
        return torch.stack([1 - one, one], dim=1)

    def predict(self, x: Tensor) -> Tensor:
        """Return the likelier class, 0 or 1, (N,)."""
        return (self.predict_mean(x) > 0.5).to(torch.int64)


Accountant = Callable[[], BayesianAccountant]


def spent(
    fit: Fit,
    *,
    delta: float = 1e-5,
    planned: Charge | None = None,
    accountant: Accountant = BayesianAccountant,
) -> Spent:
    """Return what the releases from ``fit`` have cost, with ``planned`` on top. Charges nothing."""
    return account(fit, planned, accountant).spent(delta)


def account(
    fit: Fit, planned: Charge | None = None, accountant: Accountant = BayesianAccountant
) -> BayesianAccountant:
    """Return an accountant with all releases from ``fit`` charged, and ``planned`` on top."""
    ledger = accountant()
    if fit.training is not None:
        ledger.step(fit.training.panel.tally())
    for charge in (*fit.ledger.charges(), *([planned] if planned else [])):
        ledger.step(PosteriorDraws(fit.panels, charge.draws, charge.temperature))
    return ledger


def release(
    fit: Fit,
    draws: int = 1,
    *,
    temperature: float = 1.0,
    delta: float = 1e-5,
    budget: Budget | None = None,
    accountant: Accountant = BayesianAccountant,
    generator: torch.Generator | None = None,
) -> Release:
    """Charge ``draws`` posterior samples at ``temperature``, then draw them from N(μ, τS).

    Args:
        fit: where to draw from.
        draws: number of samples k.
        temperature: τ; higher costs less and predicts worse. S is the guide's covariance, or what
            its ridge or its noise scale puts in the place.
        delta: δ at which the cost is reported; ``budget`` brings its own.
        budget: refuse to go beyond this, counting all earlier releases from ``fit``.
        accountant: makes the accountant: ``partial(BayesianAccountant, conversion="chernoff")``.
        generator: for experiments that must repeat. By default the operating system's secure
            randomness is used, as it must be for samples that leave the house.

    Raises:
        BudgetExceededError: if the budget does not suffice; nothing is charged or drawn.
        ValueError: if no finite ε can be given; nothing is charged or drawn.
    """
    charge = Charge(draws, temperature)
    if budget is not None:
        delta = budget.delta
    with fit.ledger.locked():
        total = spent(fit, delta=delta, planned=charge, accountant=accountant)
        if budget is not None and total.epsilon > budget.epsilon:
            raise BudgetExceededError(
                f"draws={draws} at temperature={temperature} would bring the total to {total}, "
                f"over the budget of Bayesian-DP ε = {budget.epsilon:g} at δ = {delta:g}"
            )
        fit.ledger.charge(charge)
    samples = secure.sample(fit.released, draws, temperature, generator)
    return Release(
        samples=samples,
        latents=_unpack(fit, samples),
        temperature=temperature,
        spent=total,
        model=fit.model,
        feature_names=fit.feature_names,
        preprocessing=fit.preprocessing,
    )


def rehearse(
    fit: Fit, draws: int = 1, *, temperature: float = 1.0, generator: torch.Generator | None = None
) -> dict[str, Tensor]:
    """Return samples as a release would hold them, without charging: for the owner's eyes only."""
    return _unpack(fit, secure.sample(fit.released, draws, temperature, generator))


def calibrate(
    fit: Fit,
    draws: int = 1,
    *,
    epsilon: float,
    delta: float = 1e-5,
    least: float = 1.0,
    accountant: Accountant = BayesianAccountant,
) -> float:
    """Return the smallest temperature at which ``draws`` more samples keep ε within ``epsilon``.

    Temperature lowers what the means of neighbours give away and leaves what their covariances give
    away (the floor), so not every ε can be reached.

    Args:
        fit: where the samples will be drawn from; what was released before counts.
        draws: number of samples.
        epsilon: target, met from below within 0.1 %.
        delta: δ of the target.
        least: lowest temperature to consider; 1 is the posterior itself.
        accountant: as for :func:`release`.

    Raises:
        ValueError: if no temperature reaches ``epsilon``; the message gives the floor.
    """
    _validate.positive("epsilon", epsilon)
    _validate.positive("least", least)

    def planned(log_temperature: float) -> Charge:
        return Charge(draws, math.exp(log_temperature))

    def suffices(log_temperature: float) -> bool:
        total = account(fit, planned(log_temperature), accountant)
        return total.get_delta(epsilon, near=delta) <= delta

    low = math.log(least)
    if suffices(low):
        return least
    high = math.log(_HOTTEST)
    if not suffices(high):
        floor = spent(fit, delta=delta, planned=planned(high), accountant=accountant)
        raise ValueError(
            f"epsilon={epsilon:g} cannot be reached: with {draws} draws the covariances alone cost "
            f"{floor}. Fewer draws, a lower clip or a stronger prior lower that floor"
        )
    while high - low > 1e-4:  # ε goes with the root of the temperature, or slower
        middle = (low + high) / 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return math.exp(high)


_HOTTEST = 1e12
"""A temperature at which no mean gives anything away."""


def _unpack(fit: Fit, samples: Tensor) -> dict[str, Tensor]:
    """Return the model's latent variables, each (k, ...)."""
    return torch.vmap(fit.guide.unpack)(samples)
