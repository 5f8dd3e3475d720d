"""One ε from the panels of many clients, by sums: the public grid, and both ends of the way."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from bdpvi._runtime import validate
from bdpvi.accounting.accountant import Account, cost_of
from bdpvi.accounting.cost import Assumption, Bound, Cost, Kind
from bdpvi.accounting.events import SampledGaussian
from bdpvi.accounting.losses import OfRuns
from bdpvi.accounting.secure_sums import Grids, SecureSums


@dataclass(frozen=True, kw_only=True)
class EpsilonReport:
    """How all clients' panels give one ε, by sums; fixed and public before the first record.

    A value is a panel record's own δ(ε), at each ε of a grid and in both directions, over that of
    the worst case.

    Attributes:
        epsilons: the ε that the answer may take, increasing.
        delta: δ.
        failure_probability: γ of each bound; δ pays for all of them.
        edges: for certified quantiles of records' own ε, increasing; none by default.

    Raises:
        ValueError: if an argument is out of range, or the bounds leave nothing of δ.
    """

    epsilons: tuple[float, ...]
    delta: float
    failure_probability: float = 1e-10
    edges: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        validate.probability("delta", self.delta)
        validate.probability("failure_probability", self.failure_probability)
        for one in self.epsilons:
            validate.positive("epsilons", one)
        if list(self.epsilons) != sorted(set(self.epsilons)) or not self.epsilons:
            raise ValueError(f"epsilons must increase, got {self.epsilons!r}")
        if not self._rest > 0:
            raise ValueError(
                f"failure_probability={self.failure_probability:g} times "
                f"{2 * len(self.epsilons)} bounds leaves nothing of delta={self.delta:g}"
            )

    @property
    def grids(self) -> Grids:
        """What is summed."""
        return Grids(2 * len(self.epsilons), self.edges)

    @property
    def _rest(self) -> float:
        return self.delta - 2 * len(self.epsilons) * self.failure_probability

    def sums(self, event: SampledGaussian) -> SecureSums:
        """Return one client's sums, from the rounds as its own panel has them.

        Args:
            event: of its panel, with the settings and the number of steps of every other client's.
        """
        runs = OfRuns(((event, 1),))
        values = []
        for direction in event.records:
            own = runs.deltas(direction, self.delta)
            assert own.bound is not None
            for epsilon in self.epsilons:
                ceiling = own.bound(epsilon)
                values.append(
                    (own.at(epsilon) / ceiling if ceiling else own.at(epsilon)).clamp(max=1)
                )
        quantiles = None
        if self.edges:
            quantiles = Account([event]).per_record(self.delta)
        return SecureSums.of(self.grids, torch.stack(values), quantiles)

    def epsilon(self, total: SecureSums, event: SampledGaussian) -> float:
        """Return the smallest ε of the grid that the bounds allow, +inf if none does.

        On a training path it is a diagnostic, and no guarantee about the algorithm: :meth:`cost`.

        Args:
            total: of all clients.
            event: the rounds with any panel, as of
                :meth:`bdpvi.accounting.rounds.RoundEvent.view` without counts.

        Raises:
            ValueError: if the sums are of another report's grids.
        """
        if total.grids != self.grids:
            raise ValueError(
                f"total has sums of {total.grids.columns} columns on other grids than this "
                "report's; all clients make theirs by one report"
            )
        runs = OfRuns(((event, 1),))
        bounds = total.betting(self.failure_probability).view(2, -1)
        allowed = torch.ones(len(self.epsilons), dtype=torch.bool)
        for direction, means in zip(event.records, bounds, strict=True):
            bound = runs.deltas(direction, self.delta).bound
            assert bound is not None
            ceilings = torch.tensor([bound(one) for one in self.epsilons], dtype=torch.float64)
            allowed &= means * ceilings <= self._rest
        found = allowed.nonzero()
        return self.epsilons[int(found[0])] if len(found) else math.inf

    def cost(self, total: SecureSums, event: SampledGaussian) -> Cost:
        """Return the worst-case ε of ``event`` with the ε of the clients' panels beside it.

        ``path`` is at most the worst case. It speaks of a record of the mixture of the clients'
        populations in which each weighs as many records as it has in its panel.

        Args:
            total, event: as for :meth:`epsilon`.
        """
        found = cost_of([event], self.delta).worst_case
        epsilon = self.epsilon(total, event)
        path = Bound(
            kind=Kind.PATH,
            epsilon=min(epsilon, found.epsilon if found else math.inf),
            delta=self.delta,
            by=f"betting, sums over all clients' panels of {total.records} records",
            relation=event.relation.value,
            unit=f"one {event.unit}",
            assumptions=(Assumption.PANEL_REPRESENTS_POPULATION,),
        )
        return Cost(worst_case=found, path=path)
