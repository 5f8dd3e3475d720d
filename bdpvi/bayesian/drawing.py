"""Draws from a guide, as a mechanism that is charged before it draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bdpvi._ground import log, validate
from bdpvi._ground.types import Budget, BudgetExceededError
from bdpvi.bayesian import guarantees, pricing, promised
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.bayesian.fit import Fit
from bdpvi.bayesian.guarantees import Guarantee
from bdpvi.noise import secure
from bdpvi.noise.keys import Key
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.cost import Bound, Cost, Kind
from bdpvi.privacy.entry import Charge
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases import basis
from bdpvi.releases.account import with_history
from bdpvi.releases.released import Release
from bdpvi.releases.transaction import Before, Plan, Transaction

ADVICE = (
    "Fit again with a clip and a noise scale: they bound the cost of every record. Models other "
    "than logistic regression need a higher temperature"
)
"""Remedy for an ε whose estimate is not reliable."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The arguments of :func:`bdpvi.release`.

    Args:
        draws, temperature, epsilon, guarantee, delta, accounting, generator: as there.
        work: the transaction of which the release is the last step. A repeated call makes the same
            draws and charges nothing. By default a new one, from a secret that is not stored.
    """

    draws: int | None = None
    temperature: float | None = None
    epsilon: float | None = None
    guarantee: Guarantee | None = None
    delta: float = 1e-5
    accounting: Accounting | None = None
    generator: torch.Generator | None = None
    work: Transaction | None = None

    def __post_init__(self) -> None:
        validate.probability("delta", self.delta)
        if self.epsilon is not None:
            validate.epsilon(self.epsilon)

    def charge(self, fit: Fit, guarantee: Guarantee) -> Charge:
        """Return the draws and their temperature."""
        draws, tau = 1 if self.draws is None else self.draws, self.temperature
        if tau is None and self.epsilon is not None:
            tau = guarantee.temperature(fit, draws, self.epsilon, self.delta)
        return Charge(draws, 1.0 if tau is None else tau)


@dataclass(frozen=True, eq=False)
class DrawSamples:
    """Posterior samples from a guide that stays secret.

    Attributes:
        fit: the fit.
        asked: number and price of the draws.
        guarantee: their guarantee.
        step: the name of this release of the fit.
    """

    fit: Fit
    asked: Asked
    guarantee: Guarantee
    step: str

    def plan(self, before: Before) -> Plan[tuple[Charge, Cost]]:
        """Return the draws with their temperature, and the total cost with them.

        Raises:
            BudgetExceededError: if ε or the ledger's budget does not suffice.
            ValueError: as :func:`release`.
        """
        fit, asked, guarantee = self.fit, self.asked, self.guarantee
        made = before.made and before.made.charge
        if asked.epsilon is not None:
            guarantees.check_unit(fit, guarantee.name)
        charge = made or asked.charge(fit, guarantee)
        planned = None if made else charge
        read = asked.epsilon is not None or fit.ledger.budget is not None
        read = read and guarantee.name != guarantees.WORST_CASE
        with fit.ledger.attempt(read and not made):
            total, price = self._priced(charge, planned, read)
        if asked.generator is None:
            promised.warn(total, price)
        if not made and asked.generator is not None:
            fit.kept.use_once(asked.generator)
        return Plan(
            kind="draws",
            what=f"draws={charge.draws} at temperature={charge.temperature:.6g}",
            events=None if read else pricing.worst_case_events(fit, charge),
            settings=(charge, total),
            charge=charge,
            within=True,
            keep=pricing.losses_of(fit, charge).keep,
            assumptions=(
                *price.assumptions,
                *[Assumption.RELEASE_AFTER_CERTIFICATE] * read,
            ),
        )

    def _priced(self, charge: Charge, planned: Charge | None, read: bool) -> tuple[Cost, Bound]:
        """Return the total cost and what a limit is for; refuse planned draws beyond it."""
        fit, asked, guarantee = self.fit, self.asked, self.guarantee
        total = cost_with(fit, asked.delta, planned, asked.accounting, guarantee)
        price = guarantee.price(total)  # refuses draws without one
        if read:  # records decide whether there is a release, which no public number bounds
            total = replace(total, worst_case=None)
        if planned is None:
            return total, price
        if asked.epsilon is not None:
            promised.check(price, asked.epsilon)
            _check_target(asked.epsilon, guarantee, fit, charge, price)
        if limit := fit.ledger.budget:
            known = total if limit.delta == asked.delta else None
            _check(limit, guarantee, fit, charge, asked.accounting, known)
        return total, price

    def draw(self, plan: Plan[tuple[Charge, Cost]], key: Key) -> Tensor:
        """Return the samples, (k, d), on the lattice."""
        charge, _ = plan.settings
        lattice = self.fit.guide.lattice(charge.temperature)
        return secure.sample(
            self.fit.released,
            charge.draws,
            charge.temperature,
            self.asked.generator,
            lattice,
            key,
        )


def release_draws(
    draws: DrawSamples,
    plan: Plan[tuple[Charge, Cost]],
    key: Key,
    ledger: Ledger | None = None,
) -> Release:
    """Return the release of draws, which were charged to ``ledger``, by default that of the fit."""
    fit, asked, (charge, total) = draws.fit, draws.asked, plan.settings
    samples = draws.draw(plan, key)
    bound, ledger = draws.guarantee.price(total), ledger or fit.ledger
    if asked.epsilon is None and bound.kind is Kind.WORST_CASE and ledger.process is not None:
        whole = ledger.altogether(asked.delta)
        bound = whole.assuming(*bound.assumptions) if whole else bound
    bound = bound.assuming(*plan.assumptions, *ledger.assumptions)
    aimed = asked.epsilon
    if bound.kind is Kind.WORST_CASE and asked.temperature is not None:
        aimed = None
    noted = basis.published(fit.preprocessing, fit.ledger.entries())
    return Release(
        samples=samples,
        latents=unpack(fit, samples),
        receipt=with_history(
            promised.receipt(fit, charge, bound, aimed, asked.generator is not None, noted),
            ledger,
        ),
        model=fit.model,
        feature_names=fit.feature_names,
        preprocessing=noted,
        secret=total,
    )


@log.step("accounting")
def cost_with(
    fit: Fit,
    delta: float,
    planned: Charge | None,
    accounting: Accounting | None,
    guarantee: Guarantee | None = None,
    shares: Sequence[float] = (),
) -> Cost:
    """Return :func:`cost`, with the requested guarantee or shares of groups."""
    shares = shares or (() if guarantee is None else guarantee.shares)
    kind = None if guarantee is None else Kind(guarantee.name)
    mean = Kind.BAYESIAN if pricing.usual_kind(fit) is not Kind.WORST_CASE else Kind.WORST_CASE
    pricing.check_delta(fit, delta, kind or mean)
    result = pricing.total(fit, delta, planned, accounting, kind, shares)
    bayesian = result.bayesian
    if bayesian is None or bayesian.evidence is None:
        return result
    exposure = pricing.table(fit, planned, accounting).exposure(delta)
    if not bayesian.reliable:
        bayesian = replace(bayesian, reason=f"{bayesian.reason}. {ADVICE}")
    return replace(result, bayesian=bayesian, exposure=exposure)


_CHEAPER = {
    guarantees.WORST_CASE: "",
    guarantees.BAYESIAN: ". Fewer draws, a higher temperature that is public (but the part of the "
    "covariances, the same at any), more records, fewer columns or a stronger prior cost less; so "
    "does objective perturbation at small ε",
    guarantees.GROUP: ". Larger groups, fewer draws, a higher temperature that is public, more "
    "records, fewer columns or a stronger prior cost less",
    guarantees.TYPICAL: ". Fewer draws or a higher temperature cost less",
}
"""Remedies for an ε that is too large."""


def _check_target(
    epsilon: float, guarantee: Guarantee, fit: Fit, charge: Charge, price: Bound
) -> None:
    """Raise unless the total, ``charge`` included, is within the target ε."""
    if price.epsilon > epsilon:
        certificate = guarantee.name in (guarantees.BAYESIAN, guarantees.GROUP)
        raise BudgetExceededError(
            f"epsilon={epsilon:g} is missed by the "
            f"{'certificate' if certificate else 'price'} of draws={charge.draws} at "
            f"temperature={charge.temperature:.6g}, which comes to {price}; "
            f"{fit.ledger.history()}. Nothing was charged{_CHEAPER[guarantee.name]}"
        )


def _check(
    limit: Budget,
    guarantee: Guarantee,
    fit: Fit,
    charge: Charge,
    accounting: Accounting | None,
    known: Cost | None,
) -> None:
    """Raise unless the total, ``charge`` included, is within the limit.

    Its cost at the limit's δ is ``known``, or computed now.
    """
    ledger = fit.ledger
    of = (limit.delta, charge, accounting, Kind(guarantee.name), guarantee.shares)
    total = known or pricing.total(fit, *of)
    price = guarantee.price(total)
    what = f"draws={charge.draws} at temperature={charge.temperature:.6g}"
    if price.epsilon > limit.epsilon:
        raise BudgetExceededError(
            f"{what} would bring the total to {total}, over the budget of {guarantee.name} ε = "
            f"{limit.epsilon:g} at δ = {limit.delta:g}; {ledger.history()}"
            f"{_CHEAPER[guarantee.name]}"
        )


def unpack(fit: Fit, samples: Tensor) -> dict[str, Tensor]:
    """Return the model's latent variables, each (k, ...)."""
    return torch.vmap(fit.guide.unpack)(samples)
