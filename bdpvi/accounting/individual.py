"""A worst-case guarantee from what each record itself has cost: a filter that drops records.

For tables small enough that every step uses every record and knows every clipped norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi.accounting.worst_case import GaussianAccountant, calibrate, gaussian_guarantee
from bdpvi.types import Budget, WorstCase


@dataclass(frozen=True)
class IndividualFilter:
    """Drops a record from training before its own cost passes the budget.

    Step t releases Σ_{i active} ḡ_{i,t} + N(0, z²C²I), with ḡ clipped to C, and record i is active
    until V_i = Σ_{s≤t} ‖ḡ_{i,s}‖²/(z²C²), with this step, would be more than V. The number of steps
    need not be bounded.

    *Theorem* (Feldman and Zrnic 2021, Theorem 4.5, at every Rényi order; for Gaussian DP Smith and
    Thakurta 2022): all that is released, however long, is √V-Gaussian differentially private to add
    or remove one record, for every record. *Proof*: let i be removed. Whether another record is
    active follows from its own gradients on the published path, so given the path so far the sums
    with and without i differ by ḡ_{i,t} or nothing, whose size is known before the noise is drawn.
    Let a last release, N(±, 1) at the distance √(V - V_i), fill the budget up; leaving it out is
    post-processing. The log-likelihood ratio is then a stochastic integral against Brownian motion
    whose quadratic variation is V on every path, hence exactly N(V/2, V) with i and N(-V/2, V)
    without: the ratio of two Gaussians √V apart.

    It holds only if the *fact* of being dropped stays inside: who is active, how many are, and any
    divisor that follows from it are secret. Divide by a public number. A record that is replaced
    costs twice: :func:`bdpvi.accounting.worst_case.replace_one`.

    Attributes:
        noise_multiplier: z.
        budget: V; :meth:`of` finds it from an ε.

    >>> rule = IndividualFilter(noise_multiplier=10.0, budget=0.025)
    >>> own = torch.zeros(3)
    >>> for _ in range(4):
    ...     active, own = rule.step(own, torch.tensor([0.1, 0.5, 1.0]))
    >>> active.tolist(), own
    ([True, True, False], tensor([0.0004, 0.0100, 0.0250], dtype=torch.float64))
    >>> print(rule.worst_case(delta=1e-5))
    worst-case DP: ε = 0.5613 at δ = 1e-05 (Gaussian DP, to add or remove one record)
    """

    noise_multiplier: float
    budget: float

    def __post_init__(self) -> None:
        validate.positive("noise_multiplier", self.noise_multiplier)
        validate.positive("budget", self.budget)

    @classmethod
    def of(cls, budget: Budget, noise_multiplier: float) -> IndividualFilter:
        """Return the filter that spends ε on every record, up to 0.5 % less.

        Args:
            budget: ε and δ.
            noise_multiplier: z.

        >>> rule = IndividualFilter.of(Budget(1.0, 1e-5), noise_multiplier=10.0)
        >>> 0.995 <= rule.worst_case(1e-5).epsilon <= 1.0
        True
        """
        one = calibrate(
            GaussianAccountant(), epsilon=budget.epsilon, delta=budget.delta, rate=1.0, steps=1
        )
        return cls(noise_multiplier, one**-2)

    def settings(self) -> dict[str, Any]:
        """Return what a resumed run has to agree with."""
        return asdict(self)

    def step(self, own: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
        """Return who may take part in a step, and every record's cost after it.

        To be called before the step's noise is drawn. A record that was left out stays out: its
        cost counts as V from then on.

        Args:
            own: V_i so far, (N,); zeros before the first step. Secret.
            norms: ‖ḡ_{i,t}‖ in units of the clip, (N,), in [0, 1].

        Returns:
            Booleans (N,), the records whose gradients enter the sum; and V_i, (N,). Both secret.

        Raises:
            ValueError: if shapes differ, a norm is not in [0, 1], or V_i is not in [0, V].
        """
        if norms.shape != own.shape:
            raise ValueError(f"norms has shape {tuple(norms.shape)}, own has {tuple(own.shape)}")
        norms, own = norms.double(), own.double()
        validate.every("norms", norms, (norms >= 0) & (norms <= 1), "lie in [0, 1]")
        validate.every("own", own, (own >= 0) & (own <= self.budget), "lie in [0, budget]")
        after = own + (norms / self.noise_multiplier).square()
        active = after <= self.budget
        return active, torch.where(active, after, self.budget)

    def worst_case(self, delta: float) -> WorstCase:
        """Return the guarantee for every conceivable record, whatever the number of steps.

        Args:
            delta: δ in (0, 1).
        """
        found = gaussian_guarantee(self.budget, validate.probability("delta", delta))
        assert found is not None  # nothing was rounded
        return found


class IndividualCosts:
    """What every record of a table has cost so far: all that a filter has to remember. Secret.

    Args:
        rule: the filter.
        records: N.

    Attributes:
        own: V_i, (N,), float64.
        steps: number of steps taken.

    >>> costs = IndividualCosts(IndividualFilter(noise_multiplier=1.0, budget=0.5), records=2)
    >>> active, own = costs.rule.step(costs.own, torch.tensor([0.5, 1.0]))
    >>> costs.add(own)
    >>> active.tolist(), costs.own.tolist(), costs.steps
    ([True, False], [0.25, 0.5], 1)
    """

    def __init__(self, rule: IndividualFilter, records: int) -> None:
        self.rule = rule
        self.own = torch.zeros(validate.positive_int("records", records), dtype=torch.float64)
        self.steps = 0

    def add(self, own: Tensor) -> None:
        """Count one step, after which V_i is ``own``, (N,). To be called before noise is drawn.

        Raises:
            ValueError: if the shape is another, or a record's cost has fallen.
        """
        if own.shape != self.own.shape:
            raise ValueError(f"own has shape {tuple(own.shape)}, not {tuple(self.own.shape)}")
        validate.every("own", own, own >= self.own, "not fall")
        self.own, self.steps = own, self.steps + 1

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` takes. Secret."""
        return {"own": self.own.clone(), "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from where ``state`` was taken.

        Raises:
            ValueError: if it has another number of records, or a cost that the budget does not
                allow. Nothing is then changed.
        """
        _, own = self.rule.step(state["own"], torch.zeros_like(self.own))
        self.own, self.steps = own, int(state["steps"])
