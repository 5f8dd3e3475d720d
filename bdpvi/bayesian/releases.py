"""Releases of samples: charge first, then draw."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bdpvi._ground import log, validate
from bdpvi._ground.host import on_host
from bdpvi._ground.types import Budget, BudgetExceededError
from bdpvi.bayesian import guarantees, pricing, promised
from bdpvi.bayesian.accounting.accountant import Accounting
from bdpvi.bayesian.fit import Fit
from bdpvi.bayesian.guarantees import BayesianDP, Guarantee
from bdpvi.noise import secure
from bdpvi.noise.keys import Key
from bdpvi.privacy.book import Charge
from bdpvi.privacy.cost import Assumption, Cost, Kind
from bdpvi.releases import basis, receipts
from bdpvi.releases.refitted import Refitted
from bdpvi.releases.released import Release
from bdpvi.releases.transaction import Before, Plan, Transaction

ADVICE = (
    "Fit again with the clip and noise scale of bdpvi.recommended(1.0), the defaults of `bdpvi "
    "fit`: they bound the cost of every record. Models other than logistic regression need a "
    "higher temperature"
)
"""Remedy for an ε whose estimate is not reliable."""


def release(
    fit: Fit | Refitted,
    draws: int | Charge | None = None,
    *,
    temperature: float | None = None,
    epsilon: float | None = None,
    guarantee: Guarantee | None = None,
    delta: float = 1e-5,
    accounting: Accounting | None = None,
    generator: torch.Generator | None = None,
) -> Release:
    """Charge ``draws`` posterior samples, then draw them from N(μ, τS) and round them.

    For rows that are :class:`~bdpvi.tables.Prepared` it fits once for each draw instead: for an
    ``epsilon``, under a worst-case guarantee, without a temperature.

    Args:
        fit: the fit to draw from.
        draws: number of samples k, by default 1 or the route's; or the result of
            :func:`calibrate`, which includes the temperature.
        temperature: τ; higher costs less and predicts worse. A number counts as public: do not
            choose it by looking at the records' costs. After a temperature was computed from the
            data, every number counts as computed from them. S is the guide's covariance, or its
            replacement by a ridge or a noise scale. 1 if neither this nor ``epsilon`` is given.
        epsilon: the target ε: a limit on everything spent on the table, this release included.
            :func:`calibrate` finds the temperature; for a Bayesian guarantee it is 1 or planned
            from a declared N. A given temperature is kept. A release beyond ε is refused, and so is
            a Bayesian one that is not certified.
        guarantee: by default the first of these that the fit can give:
            :class:`~bdpvi.bayesian.guarantees.WorstCaseDP` at the optimum of a model with bounded
            scores, with a public noise scale; :class:`~bdpvi.bayesian.guarantees.BayesianDP` where
            the cost of any conceivable record has a range, as with :class:`bdpvi.guides.Laplace`;
            :class:`~bdpvi.bayesian.guarantees.TypicalRecord` for any other model and guide. After
            a release without a worst case it must be given. Draws from ``guides.Laplace`` also have
            a worst case, unless the records decide whether there is a release: by its temperature,
            or by a Bayesian ε that is checked against ``epsilon`` or a budget.
        delta: δ of the reported cost.
        accounting: how a Bayesian ε is computed; by default as in the fit.
        generator: for repeatable experiments. Whoever guesses its seed knows the noise, so the
            result is not a release, says so, and cannot be saved as one. The default is the
            operating system's secure randomness.

    Raises:
        BudgetExceededError: if ε or the ledger's budget does not suffice; nothing is charged or
            drawn.
        ValueError: if no ε is finite, ``epsilon`` cannot be reached, the fit cannot give the
            guarantee, or ``generator`` has a state that was used for this fit before; nothing is
            charged or drawn.

    Warns:
        UserWarning: if δ is 1/N or more for a Bayesian guarantee, which then permits that one
            record is fully exposed.
        NotCertifiedWarning: if there is neither a worst-case ε nor a certified Bayesian one.

    A certified release publishes no number computed from the records: it states the target ε, and
    without ``epsilon`` none; the owner finds ε in ``release.cost``.
    """
    return carried_out(
        fit,
        Asked(
            draws=draws,
            temperature=temperature,
            epsilon=epsilon,
            guarantee=guarantee,
            delta=delta,
            accounting=accounting,
            generator=generator,
        ),
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
        fixed = fixed or guarantee.name == guarantees.BAYESIAN
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


@on_host
def carried_out(fit: Fit | Refitted, asked: Asked) -> Release:
    """Return the result of :func:`release`, possibly as a step of a work."""
    if not isinstance(fit, Fit):
        _check_solved(asked)
        assert asked.epsilon is not None
        assert not isinstance(asked.draws, Charge)
        with log.step("release"):
            return fit.release(
                asked.draws,
                epsilon=asked.epsilon,
                delta=asked.delta,
                generator=asked.generator,
                work=asked.work,
            )
    with log.step("release"):
        receipts.check(fit.kept.folder, fit.ledger)
        work = asked.work or work_of(fit, Key.fresh())
        with fit.ledger.locked():
            work.end()  # the reservation is for the draws
            guarantee = asked.guarantee or guarantees.by_default(fit)
            draws = Draws(fit, asked, guarantee, f"release {work.secret.work}")
            plan, key, entry = work.charge(draws)
        released = drawn(draws, plan, key)
        receipts.keep(fit.kept.folder, fit.ledger, entry, plan.settings[1])
    return released


def drawn(draws: Draws, plan: Plan[tuple[Charge, Cost]], key: Key) -> Release:
    """Return the release of charged draws."""
    fit, asked, (charge, total) = draws.fit, draws.asked, plan.settings
    samples = draws.draw(plan, key)
    bound = draws.guarantee.price(total).assuming(*plan.assumptions)
    aimed = asked.epsilon
    if bound.kind is Kind.WORST_CASE and asked.limit(draws.guarantee):
        aimed = None
    noted = basis.published(fit.preprocessing, fit.ledger.entries())
    return Release(
        samples=samples,
        latents=_unpack(fit, samples),
        receipt=promised.receipt(fit, charge, bound, aimed, asked.generator is not None, noted),
        model=fit.model,
        feature_names=fit.feature_names,
        preprocessing=noted,
        secret=total,
    )


def work_of(fit: Fit | Refitted, secret: Key, facts: str | None = None) -> Transaction:
    """Return the transaction of one release from a fit.

    Args:
        fit: the fit.
        secret: secret of this release only.
        facts: what the secret was made for and is stored with; None if it is not stored.
    """
    name, kept, what = fit.kept.name, facts is not None, "release from a fit"
    if not isinstance(fit, Fit):
        name, what = f"{name}-{secret.work}", "release"
    return Transaction(fit.ledger, secret, facts or "", name, kept=kept, what=what)


@dataclass(frozen=True, eq=False)
class Draws:
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
        read = charge.from_data or asked.epsilon is not None or fit.ledger.budget is not None
        read = read and guarantee.name != guarantees.WORST_CASE
        total = _cost(fit, asked.delta, planned, asked.accounting, guarantee)
        price = guarantee.price(total)  # refuses draws without one
        if read:  # records decide whether there is a release, which no public number bounds
            total = replace(total, worst_case=None)
        if asked.generator is None:
            promised.warn(total, price)
        if not made:
            if asked.epsilon is not None:
                promised.check(price, asked.epsilon)
            for limit in filter(None, (asked.limit(guarantee), fit.ledger.budget)):
                known = total if limit.delta == asked.delta else None
                _check(limit, guarantee, fit, charge, asked.accounting, known)
            if asked.generator is not None:
                fit.kept.use_once(asked.generator)
        return Plan(
            kind="draws",
            what=f"draws={charge.draws} at temperature={charge.temperature:.6g}",
            events=None if read else pricing.priced(fit, charge),
            settings=(charge, total),
            charge=charge,
            within=True,
            losses=pricing.losses_of(fit, charge),
            assumptions=(
                *price.assumptions,
                *[Assumption.RELEASE_AFTER_CERTIFICATE] * read,
            ),
        )

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


@on_host
def cost(
    fit: Fit | Refitted,
    *,
    delta: float = 1e-5,
    planned: Charge | None = None,
    accounting: Accounting | None = None,
) -> Cost:
    """Return the cost of everything spent on the table, with ``planned``. Charges nothing.

    The Bayesian ε follows each record through all fits (:mod:`bdpvi.bayesian.accounting.table`),
    whose losses are stored with the ledger. If only a worst case is known, ``why`` says why. The
    typical-record ε is included if it is the fit's usual guarantee.

    Args:
        fit: the fit; before any release every ε is 0.
        delta: δ.
        planned: a further release.
        accounting: as for :func:`release`.

    Raises:
        ValueError: if there is neither a worst case nor a Bayesian ε; it says why.
    """
    validate.probability("delta", delta)
    if not isinstance(fit, Fit):
        if planned is not None:
            raise ValueError(f"planned={planned}: {SOLVED}")
        with log.step("accounting"):
            return fit.of_records(delta)
    return _cost(fit, delta, None if planned is None else fit.ledger.as_it_is(planned), accounting)


@log.step("accounting")
def _cost(
    fit: Fit,
    delta: float,
    planned: Charge | None,
    accounting: Accounting | None,
    guarantee: Guarantee | None = None,
) -> Cost:
    """Return :func:`cost`, with the requested guarantee."""
    kind = None if guarantee is None else Kind(guarantee.name)
    mean = Kind.BAYESIAN if pricing.usual_kind(fit) is not Kind.WORST_CASE else Kind.WORST_CASE
    pricing.check_delta(fit, delta, kind or mean)
    found = pricing.total(fit, delta, planned, accounting, kind)
    bayesian = found.bayesian
    if bayesian is None or bayesian.evidence is None:
        return found
    exposure = pricing.table(fit, planned, accounting).exposure(delta)
    if not bayesian.reliable:
        bayesian = replace(bayesian, reason=f"{bayesian.reason}. {ADVICE}")
    return replace(found, bayesian=bayesian, exposure=exposure)


@on_host
def preview(
    fit: Fit | Refitted,
    draws: int = 1,
    *,
    temperature: float = 1.0,
    epsilon: float | None = None,
    delta: float = 1e-5,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Return samples of a simulated release, without charging: for the owner only.

    Args:
        fit, draws: as for :func:`release`.
        temperature: τ of draws from a guide.
        epsilon, delta: ε and δ of solved draws, which have no temperature.
        generator: for repeatable experiments.
    """
    if not isinstance(fit, Fit):
        _check_solved(Asked(temperature=None if temperature == 1 else temperature, epsilon=epsilon))
        assert epsilon is not None
        key = Key.fresh() if generator is None else fit.kept.use_once(generator)
        return fit.preview(draws, epsilon=epsilon, delta=delta, key=key)
    lattice = fit.guide.lattice(temperature)
    return _unpack(fit, secure.sample(fit.released, draws, temperature, generator, lattice))


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
    return guarantee.calibrated(
        fit, draws, epsilon=epsilon, delta=delta, least=least, accounting=accounting
    )


SOLVED = (
    "Every release is solved again for its ε, and has no temperature: bdpvi.release(fit, "
    "epsilon=…). bdpvi.recommended(ε, guide=MeanField) takes a guide, which has one"
)


def _check_solved(asked: Asked) -> None:
    """Refuse arguments that a solved release does not have."""
    draws, guarantee = asked.draws, asked.guarantee
    if isinstance(draws, Charge) or asked.temperature is not None or asked.epsilon is None:
        tau = f"temperature={asked.temperature!r}"
        given = f"draws={draws}" if isinstance(draws, Charge) else tau
        raise ValueError(f"{'epsilon=None' if asked.epsilon is None else given}: {SOLVED}")
    if guarantee is not None and guarantee.name != guarantees.WORST_CASE:
        raise ValueError(
            f"guarantee={guarantee.name}: the noise of this release covers every conceivable "
            "record; bdpvi.recommended(ε, guide=MeanField) can have a Bayesian guarantee"
        )


def _asked(draws: int | Charge | None, temperature: float | None) -> Charge:
    """Return the requested draws."""
    if not isinstance(draws, Charge):
        return Charge(1 if draws is None else draws, 1.0 if temperature is None else temperature)
    if temperature is not None:
        raise ValueError(f"{draws} and temperature={temperature!r} were both given; give one")
    return draws


_CHEAPER = {
    guarantees.WORST_CASE: "",
    guarantees.BAYESIAN: ". Fewer draws, a higher temperature that is public, more records, fewer "
    "columns or a stronger prior cost less; so does objective perturbation at small ε",
    guarantees.TYPICAL: ". Fewer draws or a higher temperature cost less",
}
"""Remedies for an ε that is too large."""


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
    total = known or pricing.total(fit, limit.delta, charge, accounting, Kind(guarantee.name))
    price = guarantee.price(total)
    what = f"draws={charge.draws} at temperature={charge.temperature:.6g}"
    if price.epsilon > limit.epsilon:
        raise BudgetExceededError(
            f"{what} would bring the total to {total}, over the budget of {guarantee.name} ε = "
            f"{limit.epsilon:g} at δ = {limit.delta:g}; {ledger.said()}{_CHEAPER[guarantee.name]}"
        )


def _unpack(fit: Fit, samples: Tensor) -> dict[str, Tensor]:
    """Return the model's latent variables, each (k, ...)."""
    return torch.vmap(fit.guide.unpack)(samples)
