"""Guarantees from costs that follow the training path: an odometer, and a filter with a budget.

The sensitivities that a record had on the path which training took are random: being in the data
bends the path. Their mean cost bounds nothing, but it does after Hölder's inequality has paid for
the dependence. With λ and p > 1 fixed, p* = p/(p-1) and c_i(·) what the path so far cost record i,

    S_i = c_i(p(λ+1) - 1)/p        Φ = log E_x′ exp(p* S(x′)).

*Claim*: E e^{λL - Φ/p*} ≤ 1 over x′ ~ μ and the path w, L being the privacy loss in either
direction. *Proof*, w drawn with x′, ℓ = log p₁/p₀ = L, α = λ+1: E_{p₁} e^{λℓ} = E_{p₀} e^{αℓ}.
Under p₀, M = exp(pαℓ - Σ_t (pα-1) D_{pα,t}) is a non-negative martingale of mean 1, a
supermartingale where costs are rounded up, and e^{αℓ} = M^{1/p} e^S. x′ and w are independent under
p₀, so Hölder's inequality over both gives E e^{αℓ - Φ/p*} ≤ (E M)^{1/p} (E e^{p*S - Φ})^{1/p*} ≤ 1.
For w drawn without x′, L = -ℓ, the same holds with S = c_i(pλ)/p. Costs are directed in general;
the cost of a Gaussian mechanism on a Poisson sample is the larger of both directions, and the first
S covers both.

*Odometer*: by Markov's inequality L ≤ (Φ/p* + log 1/β)/λ with probability 1 - β. *Filter*: if
training stops before Φ/p* would pass b, E e^{λL} ≤ e^b over all paths, and CKS applies with the
cost b. A step's sensitivities are known before its noise is drawn, so the check comes first.

p → 1 is the worst case over records. Many records at the clip leave nothing to gain; the worth of a
filter is rigour, and runs in which the clip is seldom reached.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi.accounting import conversions
from bdpvi.accounting.betting import betting
from bdpvi.accounting.estimators import Estimate, Estimator
from bdpvi.accounting.events import SampledGaussianSteps
from bdpvi.accounting.record_costs import event_cost, subsampled_gaussian_cost
from bdpvi.accounting.reliability import reliable, why
from bdpvi.accounting.sampled_steps import runs_guarantee
from bdpvi.accounting.settling import guarantee_for, tolerated_rate
from bdpvi.accounting.worst_case import Run
from bdpvi.types import BudgetExceededError, Diagnostics, Relation, Scope, Spent


@dataclass(frozen=True, kw_only=True)
class Filter:
    """What a filter is fixed at before training: nothing here may be chosen by looking at records.

    The panel is held out: independent draws from μ that training does not see. That training
    stopped, and when, is computed from the panel: it is as secret as the panel.

    Args:
        order: λ, a whole number.
        exponent: p > 1, near 1: p = 1.02 loses 2 % against the worst case where all records cost
            the same.
        budget: b, of E e^{λL} ≤ e^b.
        steps: T, the largest number of steps. Each is a check, so δ pays for T estimates.
        failure_probability: γ of each estimate.
        estimator: bounds the mean of exp(p* S); None for betting, which holds for any distribution
            and leaves at most log(m/log(2/γ))/p* to gain on the worst case.

    >>> from bdpvi.accounting.levels import LEVELS, LevelCounts
    >>> counts = LevelCounts(LEVELS, m=500)
    >>> for _ in range(20):
    ...     counts.add(torch.full((500,), 0.3))
    >>> run = counts.event(torch.arange(500), noise_multiplier=4.0, rate=0.05)
    >>> rule = Filter(order=20, exponent=1.05, budget=1.0, steps=1000)
    >>> f"{rule.check(run):.3f}"
    '0.615'
    """

    order: int
    exponent: float
    budget: float
    steps: int
    failure_probability: float = 1e-10
    estimator: Estimator | None = None

    def __post_init__(self) -> None:
        validate.positive_int("order", self.order)
        if not 1 < self.exponent < math.inf:
            raise ValueError(f"exponent must be finite and above 1, got {self.exponent!r}")
        validate.positive("budget", self.budget)
        validate.positive_int("steps", self.steps)
        validate.probability("failure_probability", self.failure_probability)

    def settings(self) -> dict[str, Any]:
        """Return what a resumed run has to agree with, as plain values."""
        name = getattr(self.estimator or betting, "__name__", repr(self.estimator))
        return asdict(self) | {"estimator": name}

    def estimate(self, run: SampledGaussianSteps) -> Estimate:
        """Return the bound on Φ; by betting its range is what the clip permits.

        Args:
            run: the steps so far, with the one that is about to be taken.

        Raises:
            ValueError: unless records are added or removed, or there are more steps than T.
        """
        if run.relation is not Relation.ADD_OR_REMOVE:
            raise ValueError(
                f"run has relation={run.relation.value!r}: the proof needs a path that was drawn "
                "without x′, so a filter takes 'add or remove' alone"
            )
        if run.steps > self.steps:
            raise ValueError(f"run has {run.steps} steps, more than steps={self.steps}")
        direction = next(iter(run.records))
        weight = 1 / (self.exponent - 1)  # p*/p
        own = weight * self._between(event_cost(run, direction, self._orders))
        if self.estimator is not None:
            return self.estimator(own, self.failure_probability)
        one = subsampled_gaussian_cost(1.0, run.noise_multiplier, run.rate, self._orders)
        largest = weight * self._between(run.steps * one[:, None])
        return betting(own, self.failure_probability, largest, -math.inf)

    def cost(self, run: SampledGaussianSteps) -> float:
        """Return the bound on Φ/p*; see :meth:`estimate`."""
        return float(self.estimate(run).log_bound) * (1 - 1 / self.exponent)

    def check(self, run: SampledGaussianSteps) -> float:
        """Return :meth:`cost` if it is within the budget. To be called before noise is drawn.

        Raises:
            BudgetExceededError: if it is not. The last step must not be taken, nor any other.
        """
        cost = self.cost(run)
        if cost > self.budget:
            raise BudgetExceededError(
                f"step {run.steps} would bring the cost at order {self.order} to {cost:.4g}, over "
                f"budget={self.budget:g}. Draw nothing, stop here, and do not publish the number "
                "of steps: it was found from the panel"
            )
        return cost

    def loss(self, run: SampledGaussianSteps, beta: float) -> float:
        """Return what the privacy loss of a random record stays below: an odometer.

        With probability 1 - β - γ over the record, the path and the panel, at one stopping time
        that follows the path; for all of T times at once take β/T. It is ex post: an ε of the path
        that ran, and not (ε, δ)-Bayesian DP.

        Args:
            run: the steps so far.
            beta: β in (0, 1).
        """
        return (self.cost(run) - math.log(validate.probability("beta", beta))) / self.order

    def spent(self, run: SampledGaussianSteps, delta: float) -> Spent:
        """Return the guarantee of the filter, for all paths: a constant of its settings.

        The cost is the budget, or what T steps cost at the most if that is less; ε is at most the
        worst-case one of T steps.

        Args:
            run: the steps taken; their noise, rate and unit. Its costs do not enter.
            delta: δ, of which T·γ pays for the checks.

        Raises:
            ValueError: if δ does not pay for the checks.
            BudgetExceededError: if the run is over the budget: it was not checked before each step.
        """
        self.check(run)
        beta = conversions.split_delta(delta, self.failure_probability, self.steps)
        noise, rate = run.noise_multiplier, run.rate
        largest = self.steps * float(subsampled_gaussian_cost(1.0, noise, rate, self.order))
        epsilon = float(conversions.epsilon(min(self.budget, largest), self.order, beta))
        relation = f"{run.relation.value} one {run.unit}"
        worst = runs_guarantee((Run(noise, rate, self.steps),), delta, relation)
        found = self.estimate(run)
        gamma = self.failure_probability
        tolerated = tolerated_rate(delta, gamma, self.steps)
        return Spent(
            epsilon=min(epsilon, worst.epsilon if worst else math.inf),
            delta=delta,
            guarantee=guarantee_for(["add-or-remove"]),
            order=float(self.order),
            direction=next(iter(run.records)),
            composition="filter",
            conversion="cks",
            estimator=self.settings()["estimator"],
            failure_probability=gamma,
            estimates=self.steps,
            sample_size=found.sample_size,
            diagnostics=Diagnostics(
                float(found.top_share),
                float(found.effective_size),
                float(found.pareto_k),
                float(found.skewness),
            ),
            reliable=bool(reliable(found, gamma, tolerated)),
            reason=why(found, gamma, tolerated),
            worst_case=worst,
            scope=Scope.FILTER,
            relation=run.relation,
            unit=run.unit,
        )

    @property
    def _at(self) -> float:
        """The order p(λ+1) - 1 of the costs in S."""
        return self.exponent * (self.order + 1) - 1

    @property
    def _orders(self) -> Tensor:
        """The whole orders on either side of it, (2,)."""
        return math.floor(self._at) + torch.arange(2, dtype=torch.float64)

    def _between(self, cost: Tensor) -> Tensor:
        """Return the cost (m,) at a real order from (2, m): c is convex, so the chord is above."""
        return torch.lerp(cost[0], cost[1], self._at - math.floor(self._at))
