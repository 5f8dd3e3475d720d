"""Releases of samples: charge first, then draw."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bdpvi._ground import log, validate
from bdpvi._ground.host import on_host
from bdpvi.bayesian import guarantees
from bdpvi.bayesian.accounting.every_group import shares_of
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.bayesian.drawing import Asked, DrawSamples, cost_with, release_draws, unpack
from bdpvi.bayesian.fit import Fit
from bdpvi.bayesian.gated_samples import GatedSamples
from bdpvi.bayesian.guarantees import Guarantee, WorstCaseDP
from bdpvi.bayesian.pricing import worst_case_events
from bdpvi.noise import secure
from bdpvi.noise.keys import Key
from bdpvi.privacy.cost import Cost
from bdpvi.privacy.entry import Charge
from bdpvi.releases import receipts
from bdpvi.releases.account import OTHERS
from bdpvi.releases.released import Release
from bdpvi.releases.transaction import Transaction


def release(
    fit: Fit,
    draws: int | None = None,
    *,
    temperature: float | None = None,
    epsilon: float | None = None,
    guarantee: Guarantee | None = None,
    delta: float = 1e-5,
    accounting: Accounting | None = None,
    generator: torch.Generator | None = None,
) -> Release:
    """Charge ``draws`` posterior samples, then draw them from N(μ, τS) and round them.

    Args:
        fit: the fit to draw from.
        draws: number of samples k, by default 1.
        temperature: τ; higher costs less and predicts worse. It is public: do not choose it by
            looking at the records' costs. S is the guide's covariance, or its replacement by a
            ridge or a noise scale. 1 if neither this nor ``epsilon`` is given.
        epsilon: the target ε: a limit on everything spent on the table, this release included.
            For a worst case the temperature follows from it: the smallest that keeps ε within it,
            from public numbers. For a Bayesian guarantee it is 1 or planned from a declared N, for
            typical records 1. A given temperature is kept. A release beyond ε is refused, and so is
            a Bayesian one that is not certified.
        guarantee: by default the first of these that the fit can give:
            :class:`~bdpvi.bayesian.guarantees.WorstCaseDP` at the optimum of a model with bounded
            scores, with a public noise scale; :class:`~bdpvi.bayesian.guarantees.BayesianDP` where
            the cost of any conceivable record has a range, as with :class:`bdpvi.guides.Laplace`;
            :class:`~bdpvi.bayesian.guarantees.TypicalRecord` for any other model and guide. After
            a release without a worst case it must be given. Draws from ``guides.Laplace`` also have
            a worst case, unless the records decide whether there is a release, by a Bayesian ε that
            is checked against ``epsilon`` or a budget.
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
    return perform_release(
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


@on_host
def perform_release(fit: Fit, asked: Asked) -> Release:
    """Return the result of :func:`release`, possibly as a step of a work."""
    with log.step("release"):
        receipts.check(fit.kept.folder, fit.ledger)
        work = asked.work or work_of(fit, Key.fresh())
        with fit.ledger.locked():
            work.end()  # the reservation is for the draws
            guarantee = asked.guarantee or guarantees.by_default(fit)
            gated = isinstance(guarantee, WorstCaseDP) and guarantee.epsilon is not None
            samples = GatedSamples if gated else DrawSamples
            draws = samples(fit, asked, guarantee, f"release {work.secret.work}")
            plan, key, entry = work.charge(draws)
        receipts.keep(fit.kept.folder, fit.ledger, entry, plan.settings[1])  # of a refusal too
        return release_draws(draws, plan, key)


def work_of(fit: Fit, secret: Key, facts: str | None = None) -> Transaction:
    """Return the transaction of one release from a fit.

    Args:
        fit: the fit.
        secret: secret of this release only.
        facts: what the secret was made for and is stored with; None if it is not stored.
    """
    kept, what = facts is not None, "release from a fit"
    return Transaction(fit.ledger, secret, facts or "", fit.kept.name, kept=kept, what=what)


@on_host
def cost(
    fit: Fit,
    *,
    delta: float = 1e-5,
    planned: Charge | None = None,
    accounting: Accounting | None = None,
    for_groups_of: float | Sequence[float] | None = None,
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
        for_groups_of: share ρ of the population, such as 0.1, or several. A Bayesian ε is a mean
            over everybody and says nothing of minorities; ``groups`` then has an ε for *every*
            group of at least that share, chosen from the data too, with a confidence that it
            states (:mod:`bdpvi.bayesian.accounting.every_group`). All shares hold at once; small
            ones need many records.

    Raises:
        ValueError: if there is neither a worst case nor a Bayesian ε; it says why. Or if the
            reference records are too few for a share: it has the smallest that they support.
    """
    validate.probability("delta", delta)
    shares = shares_of(for_groups_of)
    result = cost_with(fit, delta, planned, accounting, shares=shares)
    whole = fit.ledger.altogether(delta, () if planned is None else worst_case_events(fit, planned))
    if shares or whole is None or result.worst_case is None or not fit.ledger.others:
        return result
    worst = whole.assuming(*result.worst_case.assumptions)
    return Cost(worst_case=worst, why=OTHERS)


@on_host
def preview(
    fit: Fit,
    draws: int = 1,
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Return samples of a simulated release, without charging: for the owner only.

    Args:
        fit, draws: as for :func:`release`.
        temperature: τ of the draws.
        generator: for repeatable experiments.
    """
    lattice = fit.guide.lattice(temperature)
    return unpack(fit, secure.sample(fit.released, draws, temperature, generator, lattice))
