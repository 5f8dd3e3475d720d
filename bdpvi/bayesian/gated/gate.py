r"""Draws with a worst case of their own table: released only if the curvature is large enough.

**Setting.** F(w) = Σ ωᵢ ℓ(zᵢᵀw; yᵢ) + ½λ₀‖w − w₀‖² is the negative log posterior of logistic
regression, m its mode, H = F″(m). Every conceivable row has ‖z‖ ≤ B and ω‖z‖ ≤ C, and λ₀ = 4CB.
Let M(D) = λ_min(H)/(CB), at least 4. Draws N(m, τH⁻¹) cost little where M is large, but M may not
be published, nor may ε depend on it. So the draws are released with a public chance p(⌊M⌋), and
otherwise nothing but the word "refused".

**M moves by at most 1.** Let D′ = D ∪ {x}, r = |ℓ′| ≤ 1 at m′; for logistic regression ℓ″ =
r(1 − r). With A = H⁻¹ let h² = B²/λ_min(H) and q² = C²/λ_min(H), so qh = 1/M, and H ⪰ cG implies
M(H) ≥ cM(G). *Fall.* Let Δ = m′ − m and t = ‖Δ‖_H. As |zᵢᵀΔ| ≤ ht, F″ ⪰ e^{−sht}H at m + sΔ, and
t(1 − e^{−ht})/h ≤ ⟨F_D′(m′), Δ⟩ ≤ rqt, since F_D′(m′) = −ωℓ′z. So e^{−ht} ≥ 1 − rqh = 1 − r/M, and
H′ ⪰ F_D″(m′) ⪰ e^{−ht}H: M′ ≥ M − r. *Rise.* From m′: G = F_D″(m′) = H′ − ωℓ″zzᵀ, and
ω‖z‖²_{H′⁻¹} ≤ q′h′ = 1/M′, so M(G) ≥ M′ − r(1 − r). The first argument from m′ to m with G: M ≥
M(G) − r. So M′ ≤ M + r(2 − r) ≤ M + 1. ∎

**Price of the draws.** At M(D) ≥ M every record, added or removed, moves the Gaussian of D by at
most what :func:`.influence.of_any_record` says for h, q and a = ω‖z‖²ℓ″ ≤ 1/4M, in units of D. Its
log-moments give δ(ε; M) for D first and D′ second, which falls in M. Nothing need hold at D′.

**Gate.** With cells j = ⌊M⌋ and chances p_j, the whole release has, for a pair in cells j and j′,

    δ ≤ p_j δ(ε − ln(p_j/p_j′); j) + [(1 − p_j) − e^ε(1 − p_j′)]₊,     |j − j′| ≤ 1:

on "released" the laws are p_jP and p_j′Q, and "refused" is a pair of masses. D is any table, and
δ(·; j) is for both kinds, so both orders are covered. :func:`chances` makes the largest p_j that
keep this below the δ(ε) of a Gaussian mechanism of distance μ plus a fixed δ₀, at every ε ≥ 0.
p₄, the first, is as large as it may be, then each next: the right side is convex in the next p and
holds where both are equal, and a larger p_j never tightens a limit on p_{j+1} (derivatives: at most
P(A) ≤ 1 of the draws, −1 of the refusal). The release is then charged as that Gaussian mechanism
and δ₀, which compose with anything (:mod:`bdpvi.privacy.dominating`, *Steps on Poisson samples*).

*In float64* the computed M is within 1e-3 of M where M ≤ 10⁴, and :data:`SURE` times it moves by at
most 1. A mode within 10⁻⁶ standard deviations moves M by 2·10⁻⁶ (BM/C)^½ < 4·10⁻⁴. Eigenvalues of H
have 5·10⁻⁸ of themselves left for rounding; with 10⁷ records they need a fifth of it (measured).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from bdpvi.bayesian.mode.influence import ROOM, of_any_record
from bdpvi.privacy import conversions
from bdpvi.privacy.conceivable import Influence
from bdpvi.privacy.event import WITH
from bdpvi.privacy.gaussian import equal_covariance
from bdpvi.privacy.loss_bounds import Array

LEAST = 4
"""M of a table without records: the ridge alone."""
SURE = 1 - 2e-3
MOST = 10_000
"""The largest M that counts."""
_ORDERS = torch.logspace(-1, 4.5, 111, dtype=torch.float64, device="cpu")
_POINTS = 160
"""Values of ε at which the gate is held against its price: 0.5 % of ε more than with many."""
_SLOPE = 13.0
"""Chances begin this many 1/μ before the cell from which on draws alone are within the price."""
_HALVINGS = 21


@dataclass(frozen=True)
class Shape:
    """The draws of a gate; public.

    Attributes:
        columns: n, the number of weights.
        ratio: C/B.
        draws: k.
        temperature: τ.
    """

    columns: int
    ratio: float
    draws: int = 1
    temperature: float = 1.0

    def influence(self, curvature: float, *, added: bool) -> Influence:
        """Return how far any record moves the posterior of a table with M ≥ ``curvature``.

        >>> round(Shape(6, 0.3).influence(100.0, added=True).shift, 4)
        0.0551
        """
        pull = math.sqrt(self.ratio / curvature)
        found = of_any_record(
            1 / (curvature * pull), pull, 0.25 / curvature, self.columns, added=added, room=ROOM
        )
        assert found is not None  # M is at least 4
        return found

    def log_deltas(self, curvature: float) -> Array:
        """Return ln δ(0; M) at each order λ, (K,): at ε it is less by λε."""
        weight = self.draws / self.temperature
        moments = [
            self.influence(curvature, added=added).log_moment(_ORDERS, WITH, self.draws, weight)
            for added in (True, False)
        ]
        largest = torch.maximum(*moments).nan_to_num(posinf=1e300)
        return np.asarray(conversions.log_delta(largest, _ORDERS, 0.0))


@dataclass(frozen=True)
class Gate:
    """The chances of a release by cell.

    Attributes:
        first: the first cell with a chance; below it nothing is released.
        chances: p of the cells from there on; from the last on it is 1.
    """

    first: int
    chances: tuple[float, ...]

    def chance(self, curvature: float) -> float:
        """Return p(⌊M⌋); M is at least 4, whatever rounding says.

        >>> Gate(7, (0.25, 1.0)).chance(7.9), Gate(7, (0.25, 1.0)).chance(6.9)
        (0.25, 0.0)
        """
        cell = max(int(min(curvature, MOST)), LEAST) - self.first
        return 0.0 if cell < 0 else self.chances[min(cell, len(self.chances) - 1)]

    def sure(self, chance: float) -> int:
        """Return the least cell with at least this chance.

        >>> Gate(7, (0.25, 0.5, 1.0)).sure(0.4)
        8
        """
        return self.first + bisect_left(self.chances, chance)


def curvature(root: Tensor, norm: float, longest: float) -> float:
    """Return M, less by what rounding may add.

    Args:
        root: L with L Lᵀ = H⁻¹, (n, n).
        norm, longest: C and B.

    >>> round(curvature(torch.eye(2).double() / 10, 1.0, 2.0), 3)
    49.9
    """
    widest = float(torch.linalg.matrix_norm(root, 2)) ** 2
    return SURE / (widest * norm * longest)


@lru_cache(maxsize=64)
def chances(shape: Shape, distance: float, spare: float) -> Gate:
    """Return the largest chances whose release costs at most a Gaussian mechanism and δ₀.

    Args:
        shape: the draws.
        distance: μ of the Gaussian mechanism.
        spare: δ₀.

    Returns:
        The chances; none if no M up to :data:`MOST` lets these draws out.

    >>> gate = chances(Shape(6, 0.3), 0.2, 3e-6)
    >>> gate.chance(30.0) < 0.5 < gate.chance(70.0)
    True
    """
    price = _Price(shape, distance, spare)
    cells = range(LEAST, MOST + 1)
    alone = LEAST + bisect_left(cells, True, key=lambda cell: price.alone(price.of(cell)) == 1)
    if alone > MOST:
        return Gate(alone, (1.0,))
    first = max(LEAST, alone - math.ceil(_SLOPE / distance))
    here, last, made = price.of(first), 0.0, list[float]()
    while last < 1 and first + len(made) <= MOST:
        cell, before = first + len(made), here
        here = price.of(cell)
        most = price.alone(here)
        if cell > LEAST:  # else no table is below
            most = _largest(partial(price.rises, before, here, last), last, most)
        last = most
        made.append(last)
    return Gate(first, tuple(made))


class _Price:
    """What a gate is held against, and the draws' cost by cell."""

    def __init__(self, shape: Shape, distance: float, spare: float) -> None:
        self.shape, variance = shape, torch.tensor(distance**2, dtype=torch.float64)
        end = distance**2 / 2 + 6 * distance
        self.epsilon = np.linspace(0.0, end, _POINTS)
        target = equal_covariance(variance, torch.from_numpy(self.epsilon)) + spare
        # δ falls in ε, so what holds at a point against the next one holds between them too.
        self.most = np.append(target.numpy()[1:], spare)
        self.lines = -np.outer(self.epsilon, _ORDERS.numpy())

    def of(self, cell: int) -> Array:
        """Return the draws' ln δ(0) by order."""
        return self.shape.log_deltas(cell)

    def alone(self, draws: Array) -> float:
        """Return the largest chance at which pairs in one cell stay below the price."""
        logs = np.minimum((draws + self.lines).min(1), 0.0)
        return math.exp(min(float((np.log(self.most) - logs).min()), 0.0))

    def rises(self, before: Array, here: Array, last: float, p: float) -> bool:
        """Return whether pairs of a cell and the one below stay below the price."""
        return self.keeps(here, p, last) and self.keeps(before, last, p)

    def keeps(self, draws: Array, p: float, other: float) -> bool:
        """Return whether a pair with these chances stays below the price, at every ε."""
        refused = np.maximum((1 - p) - np.exp(self.epsilon) * (1 - other), 0.0)
        if p == 0 or other == 0:
            return bool((p + refused <= self.most).all())
        logs = (draws + _ORDERS.numpy() * math.log(p / other) + self.lines).min(1)
        return bool((p * np.exp(np.minimum(logs, 0.0)) + refused <= self.most).all())


def _largest(fits: Callable[[float], bool], low: float, high: float) -> float:
    """Return the largest p between two that fits, as the first does, less by at most 1e-6 of it."""
    if fits(high):
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2 if low > 0.01 else math.sqrt(max(low, 1e-12) * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
