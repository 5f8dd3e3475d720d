"""Published prices of mechanisms that bdpvi prices too, which its own are measured against."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy.special import log_ndtr

from bdpvi._runtime import validate
from bdpvi.accounting.events import SampledGaussian
from bdpvi.accounting.gaussian import equal_covariance
from bdpvi.types import ADD_OR_REMOVE

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
        """Return ε; see :class:`~bdpvi.accounting.worst_case.WorstCaseAccountant`."""
        SampledGaussian(noise_multiplier=noise_multiplier, rate=rate, steps=steps)  # checks them
        step = PoissonSampledDpEvent(rate, GaussianDpEvent(noise_multiplier))
        accountant = RdpAccountant(self.orders).compose(step, steps)
        return float(accountant.get_epsilon(validate.probability("delta", delta)))


def published_delta(epsilon: float, ratio: float, distance: float) -> float:
    """Return the published bound on δ(ε), which does not ask f′ for one sign.

    Redberg, Koskela and Wang (2023), the bound for generalised linear models, for an exact minimum:
    2H(ε − c) with H the Gaussian's δ at distance μ and c = −log(1 − β/λ), where
    ê = ε − c − μ²/2 ≥ 0, and 1 − e^ê + 2e^ê H(μ²/2) elsewhere. It is the δ of the loss
    c + μ²/2 + |X|, X ~ N(0, μ²).

    Args:
        epsilon: ε, at least 0.
        ratio: β/λ, below 1.
        distance: μ = L/σ, positive.
    """
    validate.non_negative("epsilon", epsilon)
    half = validate.positive("distance", distance) ** 2 / 2
    beyond = epsilon - _published_stretch(ratio) - half
    at = 2 * _gaussian(max(beyond, 0.0) + half, distance)
    return at if beyond >= 0 else -math.expm1(beyond) + math.exp(beyond) * at


def published_renyi(order: float, ratio: float, distance: float) -> float:
    """Return the published bound on the Rényi divergence of order α > 1, for an exact minimum.

    c + μ²/2 + log E e^{(α−1)|X|}/(α − 1) with c and X as for :func:`published_delta`; the mean is
    2 e^{(α−1)²μ²/2} Φ((α − 1)μ).
    """
    a = validate.positive("order - 1", order - 1)
    mu = validate.positive("distance", distance)
    moment = math.log(2) + (a * mu) ** 2 / 2 + float(log_ndtr(a * mu))
    return _published_stretch(ratio) + mu**2 / 2 + moment / a


def _gaussian(epsilon: float, distance: float) -> float:
    """Return the δ of a Gaussian mechanism."""
    return float(equal_covariance(torch.tensor([distance**2], dtype=torch.float64), epsilon))


def _published_stretch(ratio: float) -> float:
    if not 0 <= ratio < 1:
        raise ValueError(f"ratio must lie in [0, 1), got {ratio!r}: the ridge must exceed β")
    return -math.log1p(-ratio)
