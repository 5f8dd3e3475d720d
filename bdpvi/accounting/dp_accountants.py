"""Worst-case accountants over the same events as the Bayesian one; most of them dp_accounting's."""

from __future__ import annotations

from abc import ABC, abstractmethod

import dp_accounting
import torch
from dp_accounting import PrivacyAccountant
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from bdpvi import _validate
from bdpvi.accounting.conversions import Orders, minimise_epsilon
from bdpvi.accounting.events import Event, SampledGaussian
from bdpvi.accounting.record_costs import subsampled_gaussian_cost
from bdpvi.types import WorstCase


class DpAccountant(ABC):
    """Composes events into a worst-case (ε, δ), or into none as soon as one event has none."""

    name: str

    def __init__(self) -> None:
        self._empty, self._unbounded = True, False

    def step(self, event: Event, *, count: int = 1) -> None:
        """Charge ``event`` ``count`` times."""
        _validate.positive_int("count", count)
        self._empty = False
        if event.worst_case is None:
            self._unbounded = True
        else:
            self._compose(event.worst_case, count)

    def get_epsilon(self, delta: float) -> float | None:
        """Return ε at ``delta``, None where there is no worst-case guarantee.

        Raises:
            ValueError: if δ is out of range or nothing was charged.
        """
        _validate.probability("delta", delta)
        if self._empty:
            raise ValueError("nothing has been charged yet, so there is no ε to report")
        return None if self._unbounded else self._epsilon(delta)

    def spent(self, delta: float) -> WorstCase | None:
        """Return the guarantee, None where there is none."""
        epsilon = self.get_epsilon(delta)
        return None if epsilon is None else WorstCase(epsilon, delta, self.name)

    @abstractmethod
    def _compose(self, mechanism: SampledGaussian, count: int) -> None: ...

    @abstractmethod
    def _epsilon(self, delta: float) -> float: ...


class DpAccounting(DpAccountant):
    """Any accountant of dp_accounting.

    Args:
        accountant: a fresh one, such as ``PLDAccountant()``.
        name: what reports call it.

    >>> from bdpvi.accounting.events import SubsampledGaussian
    >>> step = SubsampledGaussian(torch.arange(3), torch.ones(3), noise=4.0, rate=0.01, clip=1.0)
    >>> accountant = DpAccounting.pld()
    >>> accountant.step(step, count=2000)
    >>> print(round(accountant.get_epsilon(delta=1e-3), 3))
    0.232
    """

    def __init__(self, accountant: PrivacyAccountant, name: str) -> None:
        super().__init__()
        self.accountant, self.name = accountant, name

    @classmethod
    def rdp(cls) -> DpAccounting:
        """Return an accountant by Rényi DP."""
        return cls(RdpAccountant(), "Rényi DP")

    @classmethod
    def pld(cls) -> DpAccounting:
        """Return an accountant by privacy loss distributions."""
        return cls(PLDAccountant(), "privacy loss distributions")

    def _compose(self, mechanism: SampledGaussian, count: int) -> None:
        gaussian = dp_accounting.GaussianDpEvent(mechanism.noise_multiplier)
        sampled = dp_accounting.PoissonSampledDpEvent(mechanism.rate, gaussian)
        self.accountant.compose(sampled, count)

    def _epsilon(self, delta: float) -> float:
        return float(self.accountant.get_epsilon(delta))


class Moments(DpAccountant):
    """The moments accountant: whole orders λ = 1 … 99 and the Chernoff conversion.

    Source: Abadi et al. 2016, Theorem 2, as run by Jälkö, Dikmen & Honkela 2017.
    """

    name = "moments accountant"
    orders = Orders(torch.arange(1, 100))

    def __init__(self) -> None:
        super().__init__()
        self._total = torch.zeros(len(self.orders), dtype=torch.float64)

    def _compose(self, mechanism: SampledGaussian, count: int) -> None:
        one = subsampled_gaussian_cost(
            1.0, mechanism.noise_multiplier, mechanism.rate, self.orders.values
        )
        self._total = self._total + count * one

    def _epsilon(self, delta: float) -> float:
        return minimise_epsilon(
            lambda order: self._total[self.orders.index(order)], delta, self.orders, "chernoff"
        ).value
