"""Release samples: charge first, then draw."""

from __future__ import annotations

import hashlib
import math
import warnings
from dataclasses import replace
from decimal import ROUND_CEILING, Context

import torch
from torch import Tensor

from bdpvi._fit import Fit
from bdpvi._runtime import log, secure, store, validate
from bdpvi._runtime.keys import Key
from bdpvi.accounting.answer import no_panel, nothing_spent
from bdpvi.accounting.bought import with_bought
from bdpvi.accounting.ledger import Charge
from bdpvi.releasing import guarantees
from bdpvi.releasing.guarantees import Accountant, FoundFromData, Guarantee, Receipt, account
from bdpvi.releasing.released import Release
from bdpvi.types import ADD_OR_REMOVE, Budget, BudgetExceededError, Spent, WorstCase

ADVICE = (
    "Fit again with clip and noise scale of bdpvi.recommended(1.0), which `bdpvi fit` has without "
    "--clip and --noise-scale: they bound the cost of every record. Models other than a logistic "
    "regression need a higher temperature"
)
"""What to do about an ε that is not reliable."""


def release(
    fit: Fit,
    draws: int = 1,
    *,
    temperature: float | None = None,
    epsilon: float | None = None,
    guarantee: Guarantee | None = None,
    delta: float = 1e-5,
    budget: Budget | None = None,
    accountant: Accountant | None = None,
    generator: torch.Generator | None = None,
    large_delta: bool = False,
    purpose: str = "",
) -> Release:
    """Charge ``draws`` posterior samples, then draw them from N(μ, τS) and round them.

    Args:
        fit: where to draw from.
        draws: number of samples k.
        temperature: τ; higher costs less and predicts worse. A number counts as public: it must not
            be chosen by looking at what the records cost. S is the guide's covariance, or what its
            ridge or its noise scale puts instead of it. 1 if neither this nor ``epsilon`` is given.
        epsilon: instead of a temperature: the ε that all releases from ``fit`` may reach together,
            this one included; the temperature is found by :func:`calibrate`.
        guarantee: :class:`~bdpvi.releasing.guarantees.WorstCaseDP` or
            :class:`~bdpvi.releasing.guarantees.BayesianDP`. By default the first where the fit can
            give it: at the optimum of a clipped model, with a public noise scale and all earlier
            temperatures public.
        delta: δ at which the cost is reported; ``budget`` brings its own.
        budget: refuse to go beyond this, counting all earlier releases from ``fit``. A budget that
            is stored with the fit holds besides.
        accountant: makes the accountant, ``Accounting(conversion="chernoff")``; by default the
            fit's own.
        generator: for experiments that must repeat. Who guesses its seed knows the noise, so the
            result is no release, says so, and cannot be saved as one. By default the operating
            system's secure randomness is used.
        large_delta: take a δ of 1/N or more without a warning. A Bayesian guarantee then leaves
            room for one record to be exposed altogether.
        purpose: hexadecimal digest of what the draws are for. Asked for again, they are made again
            from the key that their charge was written down with, and nothing is charged.

    Raises:
        BudgetExceededError: if a budget does not suffice; nothing is charged or drawn.
        ValueError: if no finite ε can be given, or ``epsilon`` not be reached, or the fit cannot
            give the guarantee, or ``generator`` is in a state that was used for this fit before;
            nothing is charged or drawn.
    """
    if temperature is not None and epsilon is not None:
        raise ValueError(
            f"temperature={temperature!r} and epsilon={epsilon!r} were both given; give one, and "
            "budget= to be refused beyond an ε"
        )
    if budget is not None:
        delta = budget.delta
    with log.step("release"), fit.ledger.locked():
        guarantee = guarantee or guarantees.usual(fit)
        guarantees.check_delta(fit, delta, guarantee, large_delta)
        before = _charged(fit, purpose)
        if before is None and epsilon is not None:
            temperature = calibrate(
                fit,
                draws,
                epsilon=epsilon,
                delta=delta,
                guarantee=guarantee,
                accountant=accountant,
                large_delta=large_delta,
            )
        tau = 1.0 if temperature is None else temperature
        found, key = isinstance(tau, FoundFromData), Key.fresh()
        kept = key.secret.hex() if purpose else ""
        charge = before or Charge(draws, float(tau), found, purpose, kept)
        total = spent(
            fit,
            delta=delta,
            planned=None if before else charge,
            accountant=accountant,
            large_delta=large_delta,
        )
        price = guarantee.price(total)
        if before is None:
            for limit in filter(None, (budget, fit.ledger.budget)):
                _check(limit, guarantee, fit, charge, accountant)
            if generator is not None:
                _use_once(fit, generator)
            fit.ledger.charge(charge)
        number = 1 + fit.ledger.charges().index(charge)
    experiment = fit.experiment or generator is not None
    lattice = fit.guide.lattice(charge.temperature)
    if charge.key:
        key = Key(bytes.fromhex(charge.key))
    samples = secure.sample(fit.released, draws, charge.temperature, generator, lattice, key)
    released = Release(
        samples=samples,
        latents=_unpack(fit, samples),
        receipt=_receipt(fit, charge, guarantee, price, total, epsilon, experiment),
        model=fit.model,
        feature_names=fit.feature_names,
        preprocessing=fit.preprocessing,
        secret=total,
    )
    _keep_receipt(fit, number, total)
    return released


@log.step("accounting")
def spent(
    fit: Fit,
    *,
    delta: float = 1e-5,
    planned: Charge | None = None,
    accountant: Accountant | None = None,
    large_delta: bool = False,
) -> Spent:
    """Return what the releases from ``fit`` have cost, with ``planned`` on top. Charges nothing.

    Args:
        fit: which was released from, or not yet: then ε is 0.
        delta: δ.
        planned: a further release.
        accountant, large_delta: as for :func:`release`.
    """
    validate.probability("delta", delta)
    guarantees.check_delta(fit, delta, guarantees.usual(fit), large_delta)
    if planned is None and not fit.ledger.charges():
        kinds = [panel.kind for panel in fit.panels]
        nothing = nothing_spent(delta, kinds, sum(panel.records for panel in fit.panels))
        if not (bought := fit.ledger.bought()):
            return nothing
        assert nothing.worst_case is not None
        return no_panel(delta, with_bought(nothing.worst_case, bought, delta))
    total = account(fit, planned, accountant)
    found = total.spent(delta)
    found = replace(found, worst_case=guarantees.conditional(fit, found.worst_case))
    if found.sample_size:
        found = replace(found, exposure=total.exposure(delta))
    if found.reliable:
        return found
    return replace(found, reason=f"{found.reason}. {ADVICE}")


def preview(
    fit: Fit, draws: int = 1, *, temperature: float = 1.0, generator: torch.Generator | None = None
) -> dict[str, Tensor]:
    """Return samples as a release would hold them, without charging: for the owner's eyes only."""
    lattice = fit.guide.lattice(temperature)
    return _unpack(fit, secure.sample(fit.released, draws, temperature, generator, lattice))


@log.step("calibration")
def calibrate(
    fit: Fit,
    draws: int = 1,
    *,
    epsilon: float,
    delta: float = 1e-5,
    guarantee: Guarantee | None = None,
    least: float = 1e-9,
    accountant: Accountant | None = None,
    large_delta: bool = False,
) -> float:
    """Return the smallest temperature at which ``draws`` more samples keep ε within ``epsilon``.

    Temperature lowers what the means of neighbours give away and leaves what their covariances give
    away (the floor), so not every ε can be reached.

    Args:
        fit: where the samples will be drawn from; what was released before counts.
        draws: number of samples.
        epsilon: target, met from below: within 0.1 % by worst-case DP, within 4.5 % by Bayesian DP,
            whose temperature was found from the records and is therefore taken from a coarse grid.
        delta: δ of the target.
        guarantee: as for :func:`release`.
        least: lowest temperature to consider. Below 1, the posterior itself, samples lie closer to
            the mean than the posterior's own, and cost more.
        accountant, large_delta: as for :func:`release`.

    Returns:
        The temperature; a :class:`~bdpvi.releasing.guarantees.FoundFromData` if it was found from
        the records, which :func:`release` then takes account of.

    Raises:
        ValueError: if no temperature reaches ``epsilon``; the message says what keeps it away. Or
            if the fit cannot give the guarantee.
    """
    validate.positive("epsilon", epsilon)
    validate.probability("delta", delta)
    validate.positive("least", least)
    guarantee = guarantee or guarantees.usual(fit)
    guarantees.check_delta(fit, delta, guarantee, large_delta)
    return guarantee.temperature(
        fit, draws, epsilon=epsilon, delta=delta, least=least, accountant=accountant
    )


def _charged(fit: Fit, purpose: str) -> Charge | None:
    """Return the charge that was made for this purpose before, if there was one."""
    made = (one for one in fit.ledger.charges() if purpose and one.purpose == purpose)
    return next(made, None)


def _check(
    limit: Budget, guarantee: Guarantee, fit: Fit, charge: Charge, accountant: Accountant | None
) -> None:
    """Raise unless everything together, ``charge`` included, is within the limit."""
    total = guarantees.total(fit, limit.delta, charge, accountant)
    price = guarantee.price(total)
    if price.epsilon > limit.epsilon:
        raise BudgetExceededError(
            f"draws={charge.draws} at temperature={charge.temperature:.6g} would bring the total "
            f"to {total}, over the budget of {guarantee.name} ε = {limit.epsilon:g} at "
            f"δ = {limit.delta:g}; {len(fit.ledger.charges())} releases were made before"
        )


def _keep_receipt(fit: Fit, number: int, total: Spent) -> None:
    """Write the secret receipt of release ``number`` to the fit's folder, if it has one."""
    if fit.ledger.path is None:
        return
    file = fit.ledger.path.with_name(f"release-{number}.json")
    try:
        store.write(file, store.json_text(total.to_dict(), indent=1).encode())
    except OSError as error:  # what is charged and drawn must not be lost
        warnings.warn(
            f"the release is charged and valid, but its secret receipt {file} could not be "
            f"written: {error}",
            stacklevel=3,
        )


def _use_once(fit: Fit, generator: torch.Generator) -> None:
    """Refuse a generator in a state that it was used in: the noise of two samples would cancel."""
    state = hashlib.sha256(generator.get_state().numpy().tobytes()).hexdigest()
    if state in fit.generators:
        raise ValueError(
            "generator is in a state that samples of this fit were drawn from before: the noise of "
            "both is the same, and their difference shows the mean"
        )
    fit.generators.add(state)


def _receipt(
    fit: Fit,
    charge: Charge,
    guarantee: Guarantee,
    price: Spent | WorstCase,
    total: Spent,
    aimed: float | None,
    experiment: bool,
) -> Receipt:
    public = isinstance(price, WorstCase)
    source = guarantees.AIMED if aimed is not None else guarantees.PUBLIC
    epsilon = price.epsilon if aimed is None else aimed
    if aimed is None and not public:
        source, epsilon = guarantees.COMPUTED, _two_digits(price.epsilon)
    kinds = sorted(panel.kind for panel in fit.panels)
    lattice, noise_scale = fit.guide.lattice(charge.temperature), fit.guide.noise_scale
    return Receipt(
        guarantee=guarantee.name,
        meaning=guarantees.meaning(total, guarantee, fit.preprocessing),
        relation=ADD_OR_REMOVE if public else f"{' or '.join(kinds)} one record",
        epsilon=epsilon,
        delta=price.delta,
        source=source,
        reliable=None if public else total.reliable,
        draws=charge.draws,
        temperature=charge.temperature,
        noise_scale=None if noise_scale is None else noise_scale * math.sqrt(charge.temperature),
        step=lattice.step,
        given=guarantees.given(fit),
        experiment=experiment,
    )


def _two_digits(value: float) -> float:
    """Return the number rounded up to two digits.

    >>> _two_digits(0.12345), _two_digits(0.2), _two_digits(1234.0), _two_digits(0.0)
    (0.13, 0.2, 1300.0, 0.0)
    >>> _two_digits(0.2000000000001)
    0.21
    """
    # In decimal, as binary products round: never down, and 0.2 stays 0.2.
    return float(Context(prec=2, rounding=ROUND_CEILING).create_decimal(repr(value)))


def _unpack(fit: Fit, samples: Tensor) -> dict[str, Tensor]:
    """Return the model's latent variables, each (k, ...)."""
    return torch.vmap(fit.guide.unpack)(samples)
