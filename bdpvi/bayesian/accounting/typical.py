"""A typical-record ε: a bound on most records' own ε, whatever the ε of the others."""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import cache

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.host import on_host
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.answer import COARSER, sampling_assumptions, why_none
from bdpvi.bayesian.accounting.losses import Deltas
from bdpvi.bayesian.accounting.panel import relation_of
from bdpvi.bayesian.accounting.quantiles import certified_rank
from bdpvi.privacy.conversions import EPSILONS
from bdpvi.privacy.cost import Bound, Kind
from bdpvi.privacy.rounding import after_rounding, rounding_delta

SHARES = (0.99, 0.95, 0.9)
"""Shares of the population. A typical-record ε covers the first that the panel's size allows."""
DOUBT = 0.05
"""γ of a typical-record ε."""


@on_host
def typical(account: Account, delta: float) -> Bound:
    """Return a bound on most records' own ε for all charges.

    An order statistic of the records' own ε (Wilks 1941), the larger of both directions. No bound
    on a record's cost is needed, and records beyond the share are not covered. Each record's δ
    includes the price of rounding.

    Args:
        account: draws from Gaussian guides, or runs of noisy sums, with a panel.
        delta: δ of each record's own guarantee.

    Raises:
        ValueError: if the panel is too small, costs belong to a training path, or no ε of the grid
            is large enough.

    >>> from bdpvi.bayesian.accounting.draws import GuideDraws
    >>> from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
    >>> from bdpvi.bayesian.accounting.panel import Panel
    >>> b2 = torch.linspace(1e-3, 1e-2, 400, dtype=torch.float64)[:, None]
    >>> panel = Panel("add", torch.arange(400), GaussianPairs(torch.ones_like(b2), b2))
    >>> print(typical(Account([GuideDraws((panel,))]), 1e-5))  # doctest: +ELLIPSIS
    typical-record DP: at least 99 % of the population have at most ε = 0.3... confidence 95 % ...
    """
    validate.probability("delta", delta)
    account.need_panel()
    if account.path:
        raise ValueError("typical: costs on a training path give no guarantee for a record")
    least = rounding_delta(account.rounding, 0.0)
    if least >= delta:
        raise ValueError(
            f"delta={delta:g} does not cover the rounding of the draws: {least:.2g}. {COARSER}"
        )
    kinds: dict[str, list[Deltas]] = {}
    for name in account.directions:
        kinds.setdefault(name.split()[0], []).append(account.deltas(name, delta))
    counts = {kind: _counts(found) for kind, found in kinds.items()}
    sizes = {kind: int(one.sum()) for kind, one in counts.items()}
    share, each = share_of(min(sizes.values()), len(kinds))
    ranks = {kind: certified_rank(m, DOUBT / len(kinds), each) for kind, m in sizes.items()}

    @cache
    def worse(kind: str, epsilon: float) -> Tensor:
        """Return the larger δ of a kind's directions, (m,)."""
        return torch.stack([one.at(epsilon) for one in kinds[kind]]).amax(0)

    def enough(epsilon: float, rest: float) -> bool:
        """Return whether enough records of every kind have a δ of at most ``rest``."""
        return all(int(counts[k][worse(k, epsilon) <= rest].sum()) >= ranks[k] for k in kinds)

    def solve(rest: float) -> float:
        grid = EPSILONS.tolist()
        index = bisect_left(grid, True, key=lambda epsilon: enough(epsilon, rest))
        return float(grid[index]) if index < len(grid) else math.inf

    epsilon = after_rounding(solve, delta, account.rounding)
    if not math.isfinite(epsilon):
        if math.isfinite(alone := solve(delta)):
            raise ValueError(f"typical: {why_none(delta, alone, account.rounding)}")
        raise ValueError(
            f"typical: {100 * share:g} % of the records have no finite ε, up to "
            f"{float(EPSILONS[-1]):g}: their influence on the posterior is too large. Fewer draws "
            "or a higher temperature cost less"
        )
    return Bound(
        kind=Kind.TYPICAL,
        epsilon=epsilon,
        delta=delta,
        by="order statistics",
        relation=relation_of(kinds),
        unit=f"one {account.unit}",
        assumptions=(*sampling_assumptions(account.directions), *account.assumptions),
        rounding=rounding_delta(account.rounding, epsilon),
        share=share,
        confidence=1 - DOUBT,
    )


def share_of(sample_size: int, relations: int = 1) -> tuple[float, float]:
    """Return the share of the population that a typical-record ε covers, and that per relation.

    It depends only on the number of records. γ and the rest of the population are divided among the
    relations, as each may have different costly records.

    Args:
        sample_size: m, of the smallest panel.
        relations: number of panels, for added and for removed records.

    Raises:
        ValueError: if m records are too few for any of :data:`SHARES`.

    >>> share_of(299)[0], share_of(298)[0], share_of(29)[0]
    (0.99, 0.95, 0.9)
    """
    gamma, each = DOUBT / relations, 0.0
    for share in SHARES:
        each = 1 - (1 - share) / relations
        if each**sample_size <= gamma:
            return share, each
    least = math.ceil(math.log(gamma) / math.log(each))
    raise ValueError(
        f"typical: a statement about {100 * SHARES[-1]:g} % of the population needs {least} "
        f"reference records, and there {'is' if sample_size == 1 else 'are'} {sample_size}"
    )


def _counts(found: list[Deltas]) -> Tensor:
    """Return how many records each cost stands for, (m,)."""
    known = found[0].counts
    return torch.ones(len(found[0].at(1.0)), dtype=torch.int64) if known is None else known
