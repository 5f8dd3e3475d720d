"""The ε of every group: a bound on the mean of δ over each group of at least a share ρ.

A Bayesian ε is for a mean over the population, and a minority may cost much more. A group of share
ρ is any population ν of records with dν/dμ ≤ 1/ρ, μ the population that the reference records
represent: whoever is in it, and even if it was chosen from the data. For every level q

    E_ν δ_x′(ε) ≤ q + E_ν (δ_x′(ε) − q)₊ ≤ q + E_μ (δ_x′(ε) − q)₊/ρ,

and the least over q is the mean of the largest δ of a part ρ (Rockafellar and Uryasev,
"Optimization of conditional value-at-risk", Journal of Risk 2, 2000, Theorem 1). Betting bounds
each E_μ (δ − q)₊, whose range is (R − q)₊ with R the largest δ of any conceivable record, at five
levels that are fractions of the target mean β (:data:`LEVELS`), fixed beforehand.

*How often this fails.* A test at one ε is wrong only if for some q the bound on E (δ − q)₊ is below
the mean: five chances, each of probability γ/5. The mean of the worst group decreases in ε, as each
δ does, so a bisection errs only at an ε on its error-free path, as for the mean
(:mod:`bdpvi.bayesian.accounting.bisection`). K shares have K such paths, and each test K · 5
chances: γ/(5K) each, so that all shares asked together hold at once with the γ of one. Share 1 is
the mean, with the level 0 only.

*Several populations* of records, such as later cohorts. A group may spread over them, in unknown
parts. A level that serves all of them serves every mixture: q + Σ π_c E_c (δ − q)₊/ρ ≤ max_c.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial

import torch

from bdpvi._ground import validate
from bdpvi._ground.host import on_host
from bdpvi._ground.outputs import several, two_digits
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.answer import (
    AnswerTerms,
    Solution,
    estimate,
    implied,
    settle,
)
from bdpvi.bayesian.accounting.betting import betting
from bdpvi.bayesian.accounting.bisection import bisected, of_bound
from bdpvi.bayesian.accounting.estimators import MeanEstimate
from bdpvi.bayesian.accounting.losses import Deltas
from bdpvi.privacy.conversions import HOCKEY_STICK, TESTS
from bdpvi.privacy.cost import Bound, Cost, Kind

LEVELS = (0.0, 1 / 8, 1 / 4, 1 / 2, 3 / 4)
"""Levels q, as fractions of β. At share 1 only the first is used."""
_KEPT = 16
"""Values of ε whose δ of all records are kept for the next share."""


@on_host
def every_group(
    accounts: Sequence[Account], delta: float, shares: Sequence[float]
) -> tuple[Bound, ...]:
    """Return the ε of every group of at least each share, for all charges.

    Args:
        accounts: charges of the same table, each with its own records.
        delta: δ, a mean over the group.
        shares: ρ in (0, 1]; their bounds hold at once.

    Raises:
        ValueError: if no bound on a conceivable record's cost is known, there are fewer reference
            records than a share requires, or there is no ε at ``delta``.

    >>> from bdpvi.bayesian.accounting.draws import GuideDraws
    >>> from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
    >>> from bdpvi.bayesian.accounting.panel import Panel
    >>> b2 = torch.full((5000, 1), 1e-4, dtype=torch.float64)
    >>> b2[::20] = 4e-3
    >>> panel = Panel("add", torch.arange(5000), GaussianPairs(torch.ones_like(b2), b2), 1e-2)
    >>> account = Account([GuideDraws((panel,))])
    >>> [round(one.epsilon, 3) for one in every_group([account], 1e-4, [1.0, 0.1, 0.05])]
    [0.108, 0.179, 0.201]
    """
    validate.probability("delta", delta)
    for account in accounts:
        account.need_panel()
        if not account.bets or account.path:
            raise ValueError(
                f"for_groups_of={_text(shares)}: a bound for every group needs a bound on the cost "
                "of any conceivable record, as draws from guides.Laplace of a bounded regression "
                "have, and the conversion 'hockey-stick'"
            )
    gamma = max(account.gamma(delta) for account in accounts) / len(shares)
    records = min(account.reference_records for account in accounts)
    for share in shares:
        check_share(share, records, gamma)
    directions = tuple(dict.fromkeys(n for account in accounts for n in account.directions))
    rounding = max(account.rounding for account in accounts)

    @cache
    def parts(name: str, beta: float) -> list[Deltas]:
        return [
            _with_cache(account.deltas(name, beta))
            for account in accounts
            if name in account.directions
        ]

    def of_share(share: float) -> Bound:
        each = gamma / len(levels(share))

        @cache
        def solve_share(beta: float) -> tuple[float, dict[str, MeanEstimate]]:
            bounded = partial(group_bound, share=share, beta=beta, failure_probability=gamma)
            tests = {name: of_bound(parts(name, beta), beta, bounded) for name in directions}
            return bisected(tests, beta)

        def solve(direction: str, beta: float, _: float) -> Solution:
            return Solution(solve_share(beta)[0], None, solve_share(beta)[1][direction])

        estimates = round(TESTS * len(shares) * len(levels(share)))
        terms = AnswerTerms(accounts[0].orders, estimates, each, HOCKEY_STICK, betting.__name__)
        bound = settle(solve, directions, delta, terms, rounding)
        more = [known for account in accounts for known in account.assumptions]
        return replace(
            bound.assuming(*more),
            kind=Kind.GROUP,
            unit=f"one {accounts[0].unit}",
            share=share,
            confidence=1 - estimates * each,
        )

    return tuple(of_share(share) for share in shares)


def shares_of(for_groups_of: float | Sequence[float] | None) -> tuple[float, ...]:
    """Return the shares that were asked for, none by default.

    Raises:
        ValueError: if one is not in (0, 1], or none is given.
    """
    if for_groups_of is None:
        return ()
    given = [for_groups_of] if isinstance(for_groups_of, float | int) else for_groups_of
    if not given:
        raise ValueError(f"for_groups_of must have a share of the population, got {given!r}")
    return tuple(validate.rate("for_groups_of", one) for one in given)


def with_groups(cost: Cost, groups: Sequence[Bound]) -> Cost:
    """Return a cost with these bounds, or the worst case's ε where that is smaller."""
    worst = cost.worst_case
    if worst is not None:
        groups = [implied(group, worst, group.relation) for group in groups]
    return replace(cost, groups=tuple(groups))


def group_bound(
    parts: Sequence[Deltas],
    epsilon: float,
    *,
    share: float,
    beta: float,
    failure_probability: float,
) -> MeanEstimate:
    """Return the bound on the log of E_ν δ_x′(ε), for every group of at least a share at once.

    It is at most the largest δ of any conceivable record.

    Args:
        parts: δ_x′(ε) of the records of each population, with a bound over conceivable ones.
        epsilon: ε.
        share: ρ.
        beta: the target mean, of which the levels are fractions.
        failure_probability: γ of the bound.
    """
    gamma = failure_probability / len(levels(share))

    def log_bound(found: MeanEstimate) -> float:
        return float(found.log_bound)

    found = min(
        (
            max((_above(part, epsilon, q * beta, share, gamma) for part in parts), key=log_bound)
            for q in levels(share)
        ),
        key=log_bound,
    )
    largest = max(part.bound(epsilon) for part in parts if part.bound)
    top = math.log(max(largest, torch.finfo(torch.float64).tiny))
    return replace(found, log_bound=found.log_bound.clamp(max=top))


def _above(one: Deltas, epsilon: float, q: float, share: float, gamma: float) -> MeanEstimate:
    """Return the bound on log(q + E (δ − q)₊/ρ) of one population."""
    assert one.bound is not None
    delta, upper, counts = one.at(epsilon), max(one.bound(epsilon) - q, 0.0), one.counts
    if q:  # of most records nothing is above, and one value stands for all of these
        often = torch.ones_like(delta, dtype=torch.int64) if counts is None else counts
        over = delta > q
        delta = torch.cat([delta[over] - q, delta.new_zeros(1)])
        counts = torch.cat([often[over], often[~over].sum()[None]])
        delta, counts = delta[counts > 0], counts[counts > 0]
    above = replace(one, at=lambda _: delta, bound=lambda _: upper, counts=counts)
    found = estimate(above, epsilon, betting, gamma)
    excess = found.log_bound - math.log(share)
    level = torch.tensor(math.log(q) if q else -math.inf, dtype=torch.float64)
    return replace(found, log_bound=torch.logaddexp(level, excess))


def levels(share: float) -> tuple[float, ...]:
    """Return the levels q for a share, as fractions of β."""
    return LEVELS if share < 1 else LEVELS[:1]


def check_share(share: float, records: int, gamma: float) -> None:
    """Raise ValueError if the reference records are too few for a share."""
    least = least_share(records, gamma / len(LEVELS))
    if share < min(least, 1):
        what = "everybody on average is" if least >= 1 else f"shares from {two_digits(least):g} are"
        raise ValueError(
            f"for_groups_of={share:g}: only {what} supported by "
            f"{several(records, 'reference record')}. A "
            "smaller group may have none of them that is costly, although its members are"
        )


def least_share(records: int, gamma: float) -> float:
    """Return the least share whose bound can be smaller than the range R of any record.

    It is the bound, of range 1, on the mean of m values that are all 0: below this share the
    records might as well be unknown. It depends on m and γ only, about log(2/γ)/m.

    >>> round(least_share(10_000, 1e-10), 5)
    0.00237
    """
    if records < 2:
        return 1.0
    none, often = torch.tensor([-700.0], dtype=torch.float64), torch.tensor([records])
    return float(betting(none, gamma, 0.0, -math.inf, counts=often).log_bound.exp())


def _with_cache(one: Deltas) -> Deltas:
    keep = lru_cache(maxsize=_KEPT)
    bound = one.bound and keep(one.bound)
    return replace(one, at=keep(one.at), bound=bound, guide=one.guide and keep(one.guide))


def _text(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:g}" for share in shares)
