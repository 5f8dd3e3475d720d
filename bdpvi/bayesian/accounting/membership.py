r"""How well anybody tells whether a record is in the table: the three statements of a certificate.

An attacker knows all other records, the settings and the record x, and sees what was released. P_x
and Q_x are its laws with and without x, δ_x(ε) = sup_S P_x(S) − e^ε Q_x(S) of the two. On average
over x from the population:

- at even odds the best guess is right with probability (1 + E δ_x(0))/2 (Neyman and Pearson: the
  best test of P_x against Q_x adds their total variation distance δ_x(0));
- tests that wrongly accuse a share α of those who are not in the table find at most
  min_ε e^ε α + E δ_x(ε) of those who are, even if their thresholds differ by record: each has
  TPR_x ≤ e^ε α_x + δ_x(ε), and the mean of α_x is α. The law with x is the data's where x is
  removed, and the neighbour's where it is added: the order of the two matters here;
- of no conceivable record is a guess right more often than (1 + R(0))/2, R the range of δ_x.

The means are bounded by :func:`~bdpvi.bayesian.accounting.betting.betting` on [0, R(ε)], at fixed
ε, as for a certified ε.
"""

from __future__ import annotations

from collections.abc import Sequence

from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.answer import estimate
from bdpvi.bayesian.accounting.betting import betting
from bdpvi.privacy.event import WITH
from bdpvi.privacy.membership import Membership, accuracy, true_positive_rates
from bdpvi.privacy.rounding import rounding_delta

_EPSILONS = (0.0, 0.01, 0.03, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Every ε at which a mean is bounded."""
_GAMMA = 1e-9


def membership_of(accounts: Sequence[Account]) -> Membership:
    """Return how well anybody tells whether a record is in the table.

    Args:
        accounts: charges of the same table, each with its own records, with a proven range.

    Raises:
        ValueError: if nothing bounds the cost of any conceivable record.

    >>> import torch
    >>> from bdpvi.bayesian.accounting.draws import GuideDraws
    >>> from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
    >>> from bdpvi.bayesian.accounting.panel import Panel
    >>> b2 = torch.full((5000, 1), 1e-4, dtype=torch.float64)
    >>> panel = Panel("add", torch.arange(5000), GaussianPairs(torch.ones_like(b2), b2), 1e-2)
    >>> told = membership_of([Account([GuideDraws((panel,))])])
    >>> round(told.accuracy, 4), round(told.anyone, 4)
    (0.5021, 0.5199)
    """
    for account in accounts:
        account.need_panel()
        if not account.bets or account.path:
            raise ValueError(
                "membership needs a bound on the cost of any conceivable record, as draws from "
                "guides.Laplace of a bounded regression have, and the conversion 'hockey-stick'"
            )
    means, most, tests = dict.fromkeys(_EPSILONS, 0.0), 0.0, 0
    for account in accounts:
        for name in account.directions:
            if name.startswith("remove") != name.endswith(WITH):
                continue  # the law without x comes first
            deltas = account.deltas(name, 1e-5)
            assert deltas.bound is not None
            most = max(most, deltas.bound(0.0) + rounding_delta(account.rounding, 0.0))
            for epsilon in _EPSILONS:
                one = estimate(deltas, epsilon, betting, _GAMMA)
                mean = float(one.log_bound.exp()) + rounding_delta(account.rounding, epsilon)
                means[epsilon], tests = max(means[epsilon], mean), tests + 1
    own = any(name.startswith("remove") for account in accounts for name in account.directions)
    average, anyone = (accuracy([(0.0, one)]) for one in (means[0.0], most))
    rates = true_positive_rates(list(means.items()))
    return Membership(average, anyone, rates, tests * _GAMMA, own)
