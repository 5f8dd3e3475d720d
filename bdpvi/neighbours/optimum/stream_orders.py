"""The orders that a pass over a table looks at, and the search among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi.accounting.conversions import REAL_ORDERS, Orders, minimise_epsilon, split_delta
from bdpvi.accounting.estimators import Estimate, log_student_t_bound
from bdpvi.accounting.events import WITH, WITHOUT
from bdpvi.accounting.settling import Solution, solve_by_order
from bdpvi.accounting.streaming_moments import Folded

DIRECTIONS = (f"remove {WITH}", f"remove {WITHOUT}")
_COARSE, _MIDDLE, _NEAR, _FAR = 64, 8, 24, 128
"""The search looks at every 64th order, then at every 8th near the best, then at each."""


@dataclass(frozen=True, eq=False)
class StreamAccounting:
    """How draws from a streamed fit are accounted for.

    Attributes:
        delta: δ.
        failure_probability: γ of each estimate, which is by Student's t.
        orders: λ that ε is minimised over; all of them count as estimates.
        conversion: "cks" or "chernoff".
        large_delta: take a δ of 1/N or more, see :func:`bdpvi.release`.
    """

    delta: float = 1e-5
    failure_probability: float = 1e-15
    orders: Orders = REAL_ORDERS
    conversion: str = "cks"
    large_delta: bool = False

    def __post_init__(self) -> None:
        if self.conversion not in ("cks", "chernoff"):
            raise ValueError(f"conversion must be 'cks' or 'chernoff', got {self.conversion!r}")
        validate.probability("delta", self.delta)
        validate.probability("failure_probability", self.failure_probability)

    @property
    def beta(self) -> float:
        """What is left of δ for one estimate."""
        choices = len(DIRECTIONS) * len(self.orders)
        return split_delta(self.delta, self.failure_probability, choices)


class NotKnownError(Exception):
    """The search asked for orders that were not looked at."""

    def __init__(self, index: Tensor) -> None:
        super().__init__()
        self.index = index


@dataclass(frozen=True, eq=False)
class Known:
    """The cost at the orders that were looked at: for each direction their positions, and bounds.

    Attributes:
        orders: all that an answer could have.
        looked: positions, ascending.
        estimates: there.
    """

    orders: Orders
    looked: Sequence[Tensor]
    estimates: Sequence[Estimate]

    def solve(self, direction: str, beta: float, enough: float, *, rule: str) -> Solution:
        """Return the smallest ε of one direction."""
        place = DIRECTIONS.index(direction)

        def cost(order: Tensor) -> Estimate:
            asked, looked = self.orders.index(order), self.looked[place]
            at = torch.searchsorted(looked, asked).clamp(max=len(looked) - 1)
            if not torch.equal(looked[at], asked):
                raise NotKnownError(torch.arange(int(asked.min()), int(asked.max()) + 1))
            return self.estimates[place].at(at)

        return solve_by_order(cost, beta, self.orders, rule)


def expected_orders(
    folds: Sequence[Folded], accounting: StreamAccounting, records: int
) -> list[Tensor]:
    """Return the positions of the orders that the search is expected to look at, by direction.

    They follow from a few records' costs at all orders. Which ones they are changes no result: if
    the search asks for others there is another pass.
    """
    orders, looked = accounting.orders, []
    last = len(orders) - 1
    for fold in folds:
        expected = replace(fold.moments(), size=records)
        bound = log_student_t_bound(expected, accounting.failure_probability)
        best = minimise_epsilon(
            lambda order: bound[orders.index(order)],  # noqa: B023
            accounting.beta,
            orders,
            accounting.conversion,
        ).order
        (at,) = orders.index(torch.tensor([best], dtype=torch.float64)).tolist()
        eighth = at // _MIDDLE * _MIDDLE
        index = {*range(0, last, _COARSE), last, *range(at - _NEAR, at + _NEAR + 1)}
        index |= set(range(eighth - _FAR, eighth + _FAR + 1, _MIDDLE))
        looked.append(torch.tensor(sorted(i for i in index if 0 <= i <= last)))
    return looked
