"""Objective perturbation of logistic regression: minima of an objective with a random slope.

:mod:`bdpvi.privacy.perturbed_objective` has the mechanism, its price and the proof,
:mod:`bdpvi.regression.objective_plan` the settings. This module is the search. The proof needs the
exact minimum w for a real-valued slope b; the search finds w̃ with ‖F(w̃) + b‖ ≤ τ. τ has two
halves:

- one half bounds the computed gradient at w̃, with the slope b̂ that was drawn;
- the other bounds the error of that gradient: rounding of at most
  u(256 + log₂N + B + (d + 2)‖z‖‖w̃‖/4 + 8) Σω‖z‖, with u = 2⁻⁵³, as sums are over groups of 256
  records added in pairs, then over the parts of a block and over blocks, in at most B additions
  each (:func:`bdpvi.datasets.records.depth`); logits have d + 1 terms; and ‖b − b̂‖ ≤ √(d + 1) g,
  as b̂ is a real normal b rounded to a lattice of g = 2⁻³³σ
  (:func:`bdpvi.noise.secure.gaussian_sum`).

Both halves are checked for the w̃ that is released.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from bdpvi._ground.types import BELOW, Largest
from bdpvi.datasets.records import Held, Records, depth, sum_of_results
from bdpvi.noise.keys import Key
from bdpvi.noise.secure import gaussian_sum, sum_step
from bdpvi.regression.objective_plan import CONSTANT, LAST, ObjectivePlan
from bdpvi.releases.exact_sums import BLOCK, exact_sum

_ROWS = 2**14
_STEPS = 200
_SHORTEST = 2.0**-40
_THIN, _ROUGH = 8, 1e-4
"""A search over many blocks begins with every eighth, up to a gradient of this share of Σω‖z‖."""
_UNIT = 2.0**-53


def perturbed_minima(plan: ObjectivePlan, x: Tensor, y: Tensor, key: Key | None = None) -> Tensor:
    """Return the weights of every draw, (draws, d + 1), the intercept last if there is one.

    They are for features from which :func:`taken` is taken.

    Args:
        plan: the settings.
        x: features, (N, d).
        y: targets, 0 or 1, (N,).
        key: secret; a fresh one by default.

    Raises:
        ValueError: if a shape or a value of y is wrong.
        FloatingPointError: if rounding keeps a search from its tolerance, as may happen where the
            settings are for far fewer rows.

    >>> from bdpvi.regression.objective_plan import Facts, plan
    >>> x = torch.linspace(-1, 1, 1000, dtype=torch.float64)[:, None]
    >>> settings = plan(Facts(columns=1, rows=1000), epsilon=1.0)
    >>> perturbed_minima(settings, x, (x[:, 0] > 0).double(), Key.of_seed(0)).shape
    torch.Size([1, 2])
    """
    return minima_of(SummedObjective.of(plan, x, y), plan, key or Key.fresh())


def minima_of(objective: SummedObjective, plan: ObjectivePlan, key: Key) -> Tensor:
    """Do :func:`perturbed_minima` for the objective of a table in memory or in blocks."""
    found = []
    for draw in range(plan.actual_event.draws):
        own = key.child("draw", draw)
        nothing = torch.zeros(plan.facts.weights, dtype=torch.float64)
        w = objective.minimum(gaussian_sum(nothing, plan.sigma, own.child("slope")))
        found.append(gaussian_sum(w, LAST, own.child("last")))
    minima = torch.stack(found)
    if plan.facts.intercept:
        minima[:, -1] *= CONSTANT
    return minima


def taken(plan: ObjectivePlan) -> Tensor:
    """Return what is taken from every feature, (d,): 1/L of the L listed levels of a category.

    Of a single level half is taken, as most records may have it or none.
    """
    found = torch.zeros(plan.facts.columns, dtype=torch.float64)
    for places in plan.levels:
        found[list(places)] = 1 / max(2, len(places))
    return found


@dataclass(frozen=True, eq=False)
class Signed:
    """Some records as the objective sees them.

    Attributes:
        signed: ± z, (N, d + 1), with the sign of the class.
        weights: ω, (N,).
        longest: the largest ‖z‖.
        sizes: Σ ω‖z‖.
    """

    signed: Tensor
    weights: Tensor
    longest: float
    sizes: float

    @classmethod
    def of(cls, plan: ObjectivePlan, x: Tensor, y: Tensor, counts: Tensor | None = None) -> Signed:
        """Return the records; arguments and errors as for :func:`perturbed_minima`.

        Each may count from 0 to 1 times, (N,).
        """
        if x.ndim != 2 or x.shape[1] != plan.facts.columns or y.shape != x.shape[:1]:
            raise ValueError(
                f"x and y must have shapes (N, {plan.facts.columns}) and (N,), got "
                f"{tuple(x.shape)} and {tuple(y.shape)}"
            )
        y = y.detach().cpu().double()
        if not bool(((y == 0) | (y == 1)).all()):
            raise ValueError(f"y must be 0 or 1, got {torch.unique(y)[:5].tolist()}")
        signed = torch.full((len(x), plan.facts.weights), CONSTANT, dtype=torch.float64)
        features = signed[:, : x.shape[1]]
        torch.clamp(x.detach().cpu(), -plan.limit, plan.limit, out=features)
        features -= taken(plan)
        norms = torch.linalg.vector_norm(signed, dim=1)
        signed *= (2 * y - 1).unsqueeze(1)
        weights = BELOW * (plan.clip / norms).minimum(plan.bend * (plan.clip / norms) ** 2)
        weights.clamp_(max=1.0)
        of_zero, of_one = plan.class_weights  # at most 1, so that every bound holds
        weights *= torch.where(y == 1, of_one, of_zero)
        weights *= 1.0 if counts is None else counts.detach().cpu().double()
        longest = float(norms.max()) if len(norms) else 0.0
        return cls(signed, weights, longest, float((weights * norms).sum()))


def _sizes(part: Signed) -> tuple[int, int, Largest, float]:
    """Return what bounds the rounding of sums: N, the number of parts, and the sizes of records."""
    return len(part.weights), 1, Largest(part.longest), part.sizes


def _pull(part: Signed, w: Tensor, k: float) -> Tensor:
    """Return the records' part of the gradient."""
    return exact_sum(-(part.weights * torch.sigmoid(-(part.signed @ w)).clamp(max=k)), part.signed)


def _bend(part: Signed, w: Tensor, k: float) -> Tensor:
    """Return the records' part of the second derivative."""
    total = w.new_zeros(len(w), len(w))
    for z, weights in zip(part.signed.split(_ROWS), part.weights.split(_ROWS), strict=True):
        p = torch.sigmoid(-(z @ w))
        bend = torch.where(p < k, weights * p * (1 - p), 0.0)
        total += (z * bend.unsqueeze(1)).T @ z
    return total


def _both(part: Signed, w: Tensor, k: float) -> tuple[Tensor, Tensor]:
    return _pull(part, w, k), _bend(part, w, k)


def _repeated(part: Signed, times: int) -> Signed:
    return replace(part, weights=times * part.weights)


class SummedObjective:
    """Σ ω l + λ‖w − w₀‖²/2 + κ‖Aw‖²/2 for one table, in float64 on the CPU.

    The intercept's column is :data:`~bdpvi.regression.objective_plan.CONSTANT`, so the last weight
    is the intercept divided by it.

    Args:
        plan: the settings.
        parts: the records, in memory or in blocks.
    """

    def __init__(self, plan: ObjectivePlan, parts: Records[Signed]) -> None:
        each = [*parts.each(_sizes)]
        self.records, _, self.longest, self.sizes = reduce(sum_of_results, each)
        self.additions = depth(len(each)) + depth(max(one[1] for one in each))
        self.parts, self.k = parts, plan.actual_event.residual
        self.ridge, self.tolerance = plan.ridge, plan.tolerance
        self.coarse = math.sqrt(plan.facts.weights) * sum_step(plan.sigma)
        self.centre = torch.zeros(plan.facts.weights, dtype=torch.float64)
        self.centre[-1] = plan.facts.centre / CONSTANT
        self.held, self.apart = (
            plan.extra_ridge,
            self.centre.new_zeros(len(plan.seldom), len(self.centre)),
        )
        for row, (place, levels) in zip(self.apart, plan.seldom, strict=True):
            for level in levels:
                row[level] = -1 / len(levels)
            row[place] = 1.0
        self._factor: Tensor | None = None

    @classmethod
    def of(cls, plan: ObjectivePlan, x: Tensor, y: Tensor) -> SummedObjective:
        """Return the objective of records in memory, as for :func:`perturbed_minima`."""
        return cls(plan, Held(Signed.of(plan, x, y)))

    def gradient(self, w: Tensor) -> Tensor:
        """Return the gradient at w, (d,)."""
        return self.parts.sum(_pull, w, self.k) + self._of_prior(w)

    def curvature(self, w: Tensor) -> Tensor:
        """Return the second derivative at w, (d, d)."""
        return self._whole_curvature(self.parts.sum(_bend, w, self.k))

    def _derivatives(self, w: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the gradient, and of blocks the second derivative, which needs no other pass."""
        if self.parts.in_memory:
            return self.gradient(w), None
        pull, bend = self.parts.sum(_both, w, self.k)
        return pull + self._of_prior(w), self._whole_curvature(bend)

    def _of_prior(self, w: Tensor) -> Tensor:
        return self.ridge * (w - self.centre) + self.held * (self.apart.T @ (self.apart @ w))

    def _whole_curvature(self, bend: Tensor) -> Tensor:
        bent = self.ridge * torch.eye(len(bend)).double()
        return bend + bent + self.held * (self.apart.T @ self.apart)

    def rounding(self, w: Tensor) -> float:
        """Return the bound on the error of :meth:`gradient` and of a slope; see the module."""
        d = len(w)
        size = float(torch.linalg.vector_norm(w))
        sums = BLOCK + math.log2(self.records + 1) + self.additions
        sums += (d + 2) * self.longest * size / 4 + 8
        ridge = 4 * self.ridge * (size + float(self.centre.abs().max()))
        held = self.held * float(self.apart.square().sum()) * (2 * d + len(self.apart) + 8) * size
        return self.coarse + _UNIT * (sums * self.sizes + ridge + held)

    def _start(self, slope: Tensor) -> Tensor:
        """Return where the search begins: of many blocks, near the minimum over a few of them."""
        if self.parts.blocks < 2 * _THIN:
            return self.centre.clone()
        few = copy(self)
        few.parts = self.parts.thinned(_THIN).map(_repeated, _THIN)
        few.tolerance = _ROUGH * self.sizes
        return few.minimum(slope)

    def minimum(self, slope: Tensor) -> Tensor:
        """Return w̃ with a gradient of at most τ, all rounding included.

        Newton's method. In memory it reuses an earlier step's second derivative as long as steps
        reduce the gradient to a tenth; of blocks, each pass adds up both derivatives. A step is
        halved until the derivative along it has not changed its sign, so that by convexity the
        objective falls by at least half as much as it can, or until the gradient has halved.

        Raises:
            FloatingPointError: if progress stops before the tolerance.
        """
        w, share = self._start(slope), 1.0
        pull, bend = self._derivatives(w)
        gradient = pull + slope
        size = float(torch.linalg.vector_norm(gradient))
        for _ in range(_STEPS):
            if size <= self.tolerance / 2 and self.rounding(w) <= self.tolerance / 2:
                return w
            if bend is not None or self._factor is None or share > 0.1:
                bend = self.curvature(w) if bend is None else bend
                self._factor = torch.linalg.cholesky(bend)
            step = -torch.cholesky_solve(gradient.unsqueeze(1), self._factor).squeeze(1)
            length = 1.0
            while length >= _SHORTEST:
                pull, bend = self._derivatives(w + length * step)
                new = pull + slope
                now = float(torch.linalg.vector_norm(new))
                if now <= size / 2 or float(new @ step) <= 0:
                    break
                length /= 2
            else:
                break
            w, gradient, share, size = w + length * step, new, now / size, now
        raise FloatingPointError(
            f"the optimiser ended with a gradient of {size:.3g} ± {self.rounding(w):.3g}, more "
            f"than {self.tolerance:.3g}: nothing is released"
        )
