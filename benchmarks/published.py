"""Published costs of mechanisms, for comparison with bdpvi's own costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from bdpvi._ground import validate
from bdpvi.privacy.cost import ADD_OR_REMOVE
from bdpvi.privacy.events import SampledGaussian

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
        """Return ε; see :class:`~bdpvi.privacy.sampled_steps.WorstCaseAccountant`."""
        SampledGaussian(noise_multiplier=noise_multiplier, rate=rate, steps=steps)  # checks them
        step = PoissonSampledDpEvent(rate, GaussianDpEvent(noise_multiplier))
        accountant = RdpAccountant(self.orders).compose(step, steps)
        return float(accountant.get_epsilon(validate.probability("delta", delta)))
