"""BDP-VI with training accounted for: a draw from the guide is published after every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from bdpvi._ground import progress, validate
from bdpvi._ground.host import on_host
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.draws import PosteriorDraws
from bdpvi.bayesian.accounting.gaussian_pairs import summarise
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.bayesian.guarantees import BAYESIAN
from bdpvi.bayesian.inference.svi import Problem, default_optimiser, run_svi
from bdpvi.bayesian.neighbours.rounding import Reach, rounding_error
from bdpvi.bayesian.neighbours.route import Remove
from bdpvi.bayesian.neighbours.rows import train_rows
from bdpvi.bench.methods.method import MODEL_SPACE
from bdpvi.bench.methods.outcome import Outcome
from bdpvi.bench.methods.temperature import HOTTEST, bayesian, coldest
from bdpvi.datasets.dataset import Dataset
from bdpvi.guides import MeanField
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.noise import secure
from bdpvi.noise.batches import BatchPlan
from bdpvi.privacy.conversions import Orders
from bdpvi.privacy.cost import Cost
from bdpvi.privacy.event import Event

ORDERS = Orders(torch.logspace(-1, 3, 97, dtype=torch.float64))
"""λ from 0.1 to 1,000, at which the costs of all steps are summed."""


@dataclass(frozen=True, kw_only=True)
class TrainingRelease:
    """SVI of a mean-field guide; after each step one draw, at a temperature, is published.

    Args:
        model: bounds a record's influence by weights or a clip.
        accounting: how ε is computed; its conversion must use orders.
        steps: number T of optimiser steps and of published draws.
        rate: Poisson sampling rate q of the batches.
        learning_rate: Adam's learning rate at the first step; it decays to a hundredth.
        tail: fraction of the T published draws, the last ones, used to predict; ε is for all T.
        records: largest number of records left out in turn; None means all.
        plan: seed of the batches and of the base noise, ξ. All outcomes share it.
    """

    model: BayesianLogisticRegression = field(default_factory=BayesianLogisticRegression)
    accounting: Accounting = field(
        default_factory=lambda: Accounting(conversion="cks", failure_probability=1e-15)
    )
    steps: int = 100
    rate: float = 0.1
    learning_rate: float = 0.1
    tail: float = 0.5
    records: int | None = 500
    plan: int = 0

    name: ClassVar[str] = "bdp-vi-training"
    label: ClassVar[str] = "BDP-VI, training accounted (experiment)"
    guarantee: ClassVar[str] = BAYESIAN
    note: ClassVar[str] = (
        "One draw is published after every step and all are paid for. Batches and base noise (ξ) "
        "follow from one seed and count as known; the seeds of the comparison are those of the "
        "draws. An experiment: the temperature is chosen from the training records, on a coarse "
        "public grid, and nothing is charged for publishing it."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        **MODEL_SPACE,
        "model.clip": (0.1, 0.25, 0.5, 1.0),
        "steps": (30, 100),
        "learning_rate": (0.05, 0.1, 0.3),
        "tail": (0.25, 0.5),
    }

    def __post_init__(self) -> None:
        validate.positive("learning_rate", self.learning_rate)
        validate.rate("tail", self.tail)
        self._plan()

    def _plan(self) -> BatchPlan:
        return BatchPlan(steps=self.steps, rate=self.rate, seed=self.plan)

    def prepare(self, train: Dataset, delta: float) -> PreparedTraining:
        """Train the guide and its neighbours along one plan, and sum the costs of all steps."""
        guide = MeanField(self.model)
        data = train.to(train.x.device)
        problem = Problem(
            self.model,
            guide,
            data,
            self._plan(),
            default_optimiser(self.steps, self.learning_rate),
        )
        path: list[Distribution] = []

        def posterior(now: dict[str, Tensor]) -> Distribution:
            return guide.posterior({name: value.cpu() for name, value in now.items()})

        run_svi(problem, progress.silent, lambda _, now: path.append(posterior(now)))
        records = None if self.records is None else min(self.records, len(data))
        rows = Remove(records).rows(data, problem.model)
        costs = TemperedCosts()

        @on_host
        def charge(step: int, parameters: dict[str, Tensor]) -> None:
            pairs = summarise(path[step], posterior(parameters))
            panel = Panel(rows.kind, rows.records.ids.cpu(), pairs)
            costs.step(panel, rounding_error(guide, path[step], Reach.of(pairs)))

        train_rows(problem, rows, observe=charge)

        def account(temperature: float) -> Account:
            return Account([costs.at(temperature)], self.accounting)

        @cache
        def price(temperature: float) -> Cost:
            return account(temperature).cost(delta)

        return PreparedTraining(guide, path, max(1, round(self.tail * self.steps)), price, account)


@dataclass(frozen=True, eq=False)
class SummedDraws(Event):
    """Many draws, with costs summed record by record at fixed orders.

    Attributes:
        ids: the records, (m,).
        known_at: λ, (K,), the only orders at which the cost is known.
        totals: for each direction the sum of the costs, (K, m).
        rounding: rounding error of all draws together.
    """

    ids: Tensor
    known_at: Orders
    totals: Mapping[str, Tensor]
    rounding: float = 0.0

    from_data: bool = True

    @property
    def orders(self) -> Orders:
        """The only orders at which the cost is known."""
        return self.known_at

    @property
    def records(self) -> Mapping[str, Tensor]:
        """The records, for every direction with costs."""
        return dict.fromkeys(self.totals, self.ids)

    def cost(self, direction: str, order: Tensor) -> Tensor:
        """Return each record's cost over all draws."""
        return self.totals[direction][self.known_at.index(order)]


class TemperedCosts:
    """Each record's cost of one draw after every step, at one temperature τ for all steps.

    In the Rényi divergence of two Gaussians with covariances multiplied by τ, the term of the means
    is divided by τ, and the term of the covariances does not change (Gil, Alajaji and Linder 2013,
    Table 2). So the sums at τ = 1 and at τ = ∞ determine the sum at every τ.
    """

    def __init__(self) -> None:
        self._ids = torch.zeros(0, dtype=torch.int64)
        self._totals: dict[float, dict[str, Tensor]] = {1.0: {}, HOTTEST: {}}
        self._rounding = 0.0

    def step(self, panel: Panel, rounding: float = 0.0) -> None:
        """Add one draw from the panel's guide; ``rounding`` is its total variation at τ = 1."""
        self._ids, self._rounding = panel.ids, self._rounding + rounding
        for tau, totals in self._totals.items():
            event = PosteriorDraws((panel,), temperature=tau)
            for name in event.records:
                totals[name] = totals.get(name, 0.0) + event.cost(name, ORDERS.values)

    def at(self, temperature: float) -> SummedDraws:
        """Return all draws as one event."""
        both, covariances = self._totals.values()
        totals = {}
        for name, floor in covariances.items():
            means = both[name] - floor
            totals[name] = torch.where(floor.isfinite(), floor + means / temperature, floor)
        # Lattice and noise grow with √τ, the lattice in octaves; the means' term does not.
        rounding = 2 * max(1.0, temperature**-0.5) * self._rounding
        return SummedDraws(self._ids, ORDERS, totals, rounding)


@dataclass(frozen=True, eq=False)
class PreparedTraining:
    """A path of guides to draw from.

    Args:
        guide: the trained guide.
        path: the posterior after each of T steps.
        kept: number of last draws used to predict.
        price: maps a temperature to the cost of all T draws there.
        account: maps a temperature to the account of all T draws there.
    """

    guide: MeanField
    path: Sequence[Distribution]
    kept: int
    price: Callable[[float], Cost]
    account: Callable[[float], Account]

    def calibrate(self, epsilon: float) -> float:
        """Return the first temperature of the public grid that costs ``epsilon``."""
        return coldest(lambda tau: bayesian(self.price(tau)), epsilon)

    def outcomes(self, settings: Sequence[float], seeds: Sequence[int]) -> list[Outcome]:
        """Return the last published draws for each temperature and seed, and the cost of all."""
        pairs = zip(settings, seeds, strict=True)
        return [Outcome(self._draws(tau, seed), self.price(tau)) for tau, seed in pairs]

    def _draws(self, temperature: float, seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        lattice = self.guide.lattice(temperature)
        published = [secure.sample(q, 1, temperature, generator, lattice) for q in self.path]
        return torch.vmap(self.guide.unpack)(torch.cat(published[-self.kept :]))
