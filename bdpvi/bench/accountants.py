"""Accountants of published results, of which none is the tightest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from bdpvi._runtime import validate
from bdpvi.accounting.conversions import Orders, minimise_epsilon
from bdpvi.accounting.record_costs import subsampled_gaussian_cost
from bdpvi.accounting.worst_case import check_steps, sampled_event
from bdpvi.types import ADD_OR_REMOVE


@dataclass(frozen=True)
class MomentsAccountant:
    """The moments accountant: log-moments at whole orders λ = 1 … ``largest_order``, Chernoff.

    Source: Abadi et al., "Deep Learning with Differential Privacy" (2016), Theorem 2, with the
    moments of :func:`~bdpvi.accounting.record_costs.subsampled_gaussian_cost`. However strong the
    noise, ε stays above log(1/δ)/``largest_order``: 0.116 at δ = 1e-5 and the customary 99.

    >>> round(MomentsAccountant().epsilon(4.0, rate=0.01, steps=2000, delta=1e-3), 4)
    0.4331
    """

    largest_order: int = 99
    name: ClassVar[str] = "moments accountant"
    relation: ClassVar[str] = ADD_OR_REMOVE

    def __post_init__(self) -> None:
        validate.positive_int("largest_order", self.largest_order)

    def epsilon(self, noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
        """Return ε; see :class:`WorstCaseAccountant`."""
        check_steps(noise_multiplier, rate, steps, delta)
        return minimise_epsilon(
            lambda order: steps * subsampled_gaussian_cost(1.0, noise_multiplier, rate, order),
            delta,
            Orders(torch.arange(1, self.largest_order + 1)),
            rule="chernoff",
        ).value


RENYI_ORDERS = (
    *(1 + k / 10 for k in range(1, 100)),
    *range(11, 64),
    *(int(64 * 2 ** (k / 2)) for k in range(13)),
)
"""α from 1.1 to 4,096. An ε of 0.01 at δ = 1e-5 needs α of about 2,000."""


@dataclass(frozen=True)
class RenyiAccountant:
    """Rényi differential privacy by dp_accounting, converted as Canonne, Kamath and Steinke (2020).

    Args:
        orders: the α that ε is minimised over.

    >>> round(RenyiAccountant().epsilon(4.0, rate=0.01, steps=2000, delta=1e-3), 3)
    0.277
    """

    orders: tuple[float, ...] = RENYI_ORDERS
    name: ClassVar[str] = "Rényi DP"
    relation: ClassVar[str] = ADD_OR_REMOVE

    def epsilon(self, noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
        """Return ε; see :class:`WorstCaseAccountant`."""
        check_steps(noise_multiplier, rate, steps, delta)
        from dp_accounting.rdp import RdpAccountant

        accountant = RdpAccountant(self.orders).compose(
            sampled_event(noise_multiplier, rate), steps
        )
        return float(accountant.get_epsilon(delta))
