"""Logistic regression with group effects of unknown scale: what drawing the scale costs.

The scale s of the group effects lies on a public grid. Given s the posterior is log-concave with
the ridge λ for fixed effects and 4/s² for groups (their columns are 2). One draw is (k, w): k with
probability q_k ∝ exp E_k, the Laplace evidence E_k = −F_k(m_k) − ½ ln det H_k + ½ ln det P_k, then
w from N(m_k, H_k⁻¹): δ(ε) = Σ q_k δ_k(ε − r_k), r_k = ln(q_k/q′_k).

A record changes F_k(m_k) by ωℓ(z·m_k), less at most γ = ct − t/h + c/h at the new mode (removed:
1 − a times that of c/(1 − a)); ln det H_k by at most T = ‖Σ ωℓ‴‖z‖²z‖t + (ht)² exp(2ht), and by
O = ln(1 + a exp(u)) or −ln(1 − a exp(u)) of its own. So E_j − E_k rises by at most

    ρ_jk = C max_z |z·(m_j − m_k)|/‖z‖ + γ_j + ½(T_j + T_k + max(O_j, O_k)),

and ln Σ_j q_j exp(−ρ_kj) ≤ r_k ≤ ln Σ_j q_j exp(ρ_jk). Refits reach 0.62 of ρ: every record's
neighbours are refits, and records at corners and along eigenvectors are added and removed too. The
library leaves it out: mixtures need other guides, files, rounding and inversion, and ρ gives no
worst case.

python benchmarks/mixed_scales.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from printed import command
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import one_hot, softplus

import bdpvi
from bdpvi.bayesian.accounting.betting import betting
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.mode.objective import distance
from bdpvi.datasets.dataset import Dataset
from bdpvi.privacy.conceivable import Influence
from bdpvi.privacy.entry import Charge
from bdpvi.privacy.inversion import inversions

GRID = (0.5, 0.7, 1.0, 1.4)
TABLES = ((3000, 15, 0.7), (3000, 40, 0.7), (3000, 40, 1.5))
"""N, groups, true scale."""
FEATURES, SLOPES = 3, (1.0, 0.0, 0.0)
GAMMA, TESTS, DELTA = 1e-9, 26, 1e-5
WAYS = ("remove D‖D′", "remove D′‖D")
TRIES = ((64, 0.0), (1024, 0.0015))


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of the design times 2y − 1, (N, n), their weights, (N,), and the number of groups."""

    rows: Tensor
    weights: Tensor
    groups: int

    @classmethod
    def of(cls, x: Tensor, group: Tensor, y: Tensor, groups: int) -> Table:
        """Return the table of these records."""
        z = torch.cat([x, x.new_full((len(x), 1), 2.0), 2 * one_hot(group, groups)], 1)
        return cls((2 * y - 1)[:, None] * z, (C / z.norm(dim=1)).clamp(max=1), groups)

    def with_rows(self, more: Table) -> Table:
        """Return the table with more rows."""
        rows, weights = (self.rows, more.rows), (self.weights, more.weights)
        return Table(torch.cat(rows), torch.cat(weights), self.groups)


C = math.sqrt(FEATURES + 5) / 2
B = math.sqrt(4 * (FEATURES + 2))
RIDGE = 4 * C * B


def simulated(n: int, groups: int, scale: float, seed: int = 0) -> tuple[Tensor, ...]:
    """Return features, groups, labels and the effects of groups."""
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(n, FEATURES, generator=made).clamp(-2, 2)
    group = torch.randint(0, groups, (n,), generator=made)
    effects = scale * torch.randn(groups, generator=made) - 0.3
    logit = x @ torch.tensor(SLOPES) + effects[group]
    return x, group, (torch.rand(n, generator=made) < logit.sigmoid()).double(), effects


class Bounds(NamedTuple):
    """What any conceivable record moves at one scale: see :meth:`Mode.bounds`."""

    influence: Influence
    drop: float
    turn: float
    own: float


class Neighbours(NamedTuple):
    """Modes (m, n), Hessians (m, n, n) and evidences (m,) with a record more or less."""

    modes: Tensor
    hessians: Tensor
    evidence: Tensor


@dataclass(eq=False)
class Mode:
    """The posterior at one scale."""

    table: Table
    scale: float

    def __post_init__(self) -> None:
        fixed, groups = FEATURES + 1, self.table.groups
        self.ridge = torch.tensor([RIDGE] * fixed + [4 / self.scale**2] * groups)
        found = self._solve(torch.zeros(1, fixed + groups), None, torch.zeros(1))
        self.point, hessian, self.evidence = (one[0] for one in found)
        self.root = torch.linalg.inv(torch.linalg.cholesky(hessian)).T

    def _solve(self, start: Tensor, own: Tensor | None, weight: Tensor) -> Neighbours:
        """Return the modes with records (m, n) of these weights added, by Newton steps."""
        rows, weights = self.table.rows, self.table.weights
        n, at = start.shape[1], torch.triu_indices(start.shape[1], start.shape[1])
        products, w = rows[:, at[0]] * rows[:, at[1]], start
        own = torch.zeros(len(start), n) if own is None else own
        for _ in range(50):
            p, own_p = (-rows @ w.T).sigmoid(), (-own * w).sum(1).sigmoid()
            curved = (products.T @ (weights[:, None] * p * (1 - p))).T
            bend = torch.zeros(len(w), n, n)
            bend[:, at[0], at[1]] = bend[:, at[1], at[0]] = curved
            bend += self.ridge.diag() + torch.einsum(
                "m,mi,mj->mij", weight * own_p * (1 - own_p), own, own
            )
            pull = -(rows.T @ (weights[:, None] * p)).T + self.ridge * w
            step = torch.linalg.solve(bend, pull - (weight * own_p)[:, None] * own)
            if float(step.abs().max()) < 1e-12:
                break
            w = w - step
        lost = (weights[:, None] * softplus(-rows @ w.T)).sum(0) + (self.ridge * w * w).sum(1) / 2
        lost = lost + weight * softplus(-(own * w).sum(1))
        evidence = (self.ridge.log().sum() - torch.logdet(bend)) / 2 - lost
        return Neighbours(w, bend, evidence)

    @lru_cache(maxsize=1)  # noqa: B019
    def neighbours(self, records: Table, sign: float) -> Neighbours:
        """Return the refits with each record added (``sign`` 1) or removed (−1)."""
        some = zip(records.rows.split(300), records.weights.split(300), strict=True)
        parts = [
            self._solve(self.point.expand(len(rows), -1), rows, sign * weights)
            for rows, weights in some
        ]
        return Neighbours(*(torch.cat(one) for one in zip(*parts, strict=True)))

    def pairs(self, found: Neighbours) -> GaussianPairs:
        """Return this Gaussian against each neighbour's."""
        size, axes = torch.linalg.eigh(self.root.T @ found.hessians @ self.root)
        away = torch.linalg.solve(self.root, (found.modes - self.point).T).T
        return GaussianPairs(size, size * (axes.mT @ away[:, :, None])[:, :, 0].square())

    def widest(self) -> float:
        """Return Λ with zᵀH⁻¹z ≤ Λ‖z‖² for every row with one group, which lies in a box."""
        most, free = 0.0, FEATURES
        for group in range(self.table.groups):
            place = torch.zeros(len(self.point), free + 1)  # z = place @ (x, √8), as long
            place[:free, :free] = torch.eye(free)
            place[free, free] = place[free + 1 + group, free] = math.sqrt(0.5)
            inside = place.T @ self.root @ self.root.T @ place
            top = float(torch.linalg.eigvalsh(inside)[-1])

            def largest(mu: Any, inside: Tensor = inside, top: float = top) -> float:
                sizes = torch.tensor(mu).abs()
                added = torch.cat([-sizes, sizes.sum()[None] / 2]).diag()
                return float(torch.linalg.eigvalsh(inside / top + added)[-1])

            if top > most:
                start: Any = [0.01] * free
                least = minimize(largest, start, method="Nelder-Mead").fun
                most = max(most, top * min(1.0, float(least)))
        return most

    @lru_cache  # noqa: B019
    def bounds(self, *, added: bool) -> Bounds:
        """Return how far any record moves mode, precision and evidence."""
        rows, weights = self.table.rows, self.table.weights
        wide, white = self.widest(), rows @ self.root
        pull, share, h = C * math.sqrt(wide), C * B * wide / 4, float(white.norm(dim=1).max())
        left = 1.0 if added else 1 - share
        t = distance(h, pull / left)
        p = (-rows @ self.point).sigmoid()
        third = weights * p * (1 - p) * (2 * p - 1)
        flat = torch.stack([(white * (third * one)[:, None]).T @ white for one in white.T])
        change = float(torch.linalg.matrix_norm(flat.flatten(1), 2)) * t
        change += (h * t) ** 2 * math.exp(h * t) / 2
        spread = min(h * t, -math.log1p(-change) if change < 1 else math.inf)
        own = share * math.exp(spread)
        turn = float((white.T @ (third * white.square().sum(1))).norm()) * t
        return Bounds(
            Influence(
                added=added,
                columns=len(self.point),
                shift=t,
                spread=spread,
                share=share if added else own,
            ),
            drop=left * (pull / left * t - t / h + pull / left / h),
            turn=turn + (h * t) ** 2 * math.exp(2 * h * t),
            own=math.log1p(own) if added else -math.log1p(-own),
        )


def furthest(one: Mode, other: Mode) -> float:
    """Return the largest |z·v|/‖z‖ of any row, v the difference of the modes."""
    v, fixed = one.point - other.point, FEATURES
    of_groups = (v[fixed] + v[fixed + 1 :]).square() / 2
    return float((v[:fixed].square().sum() + of_groups).max().sqrt())


class Ratios(NamedTuple):
    """Bounds on ln(q_k/q′_k): it lies from −low to high, (K,); and ρ of the evidences, (K, K)."""

    high: Tensor
    low: Tensor
    rho: Tensor

    @classmethod
    def of(cls, modes: list[Mode], bounds: list[Bounds], q: Tensor) -> Ratios:
        """Return them by ρ_jk ≥ (E′_j − E_j) − (E′_k − E_k)."""
        rho = torch.zeros(len(modes), len(modes))
        for j, (one, at_j) in enumerate(zip(modes, bounds, strict=True)):
            for k, (other, at_k) in enumerate(zip(modes, bounds, strict=True)):
                if j != k:
                    rho[j, k] = C * furthest(one, other) + at_j.drop
                    rho[j, k] += (at_j.turn + at_k.turn + max(at_j.own, at_k.own)) / 2
        high = (q[:, None] * rho.exp()).sum(0).log()
        return cls(high, -(q * (-rho).exp()).sum(1).log(), rho)


def adversarial(modes: list[Mode], count: int = 300) -> Table:
    """Return records at corners of the box and along eigenvectors, with either label."""
    made, groups = torch.Generator().manual_seed(1), modes[0].table.groups
    x = torch.randint(-1, 2, (count, FEATURES), generator=made) * 2.0
    group = torch.randint(0, groups, (count,), generator=made)
    for mode in modes:
        axes = torch.linalg.eigh(mode.root @ mode.root.T)[1].T[:, :FEATURES]
        axes = 2 * axes / axes.abs().amax(1, keepdim=True).clamp(min=1e-12)
        x = torch.cat([x, axes, -axes])
        group = torch.cat([group, torch.arange(2 * len(axes)) % groups])
    return Table.of(x, group, (torch.arange(len(x)) % 2).double(), groups)


class Compared(NamedTuple):
    """Largest ratios of refits to bounds, and how often one is above 1."""

    shift: float
    evidence: float
    ratio: float
    above: int
    records: int

    @classmethod
    def of(cls, modes: list[Mode], records: Table, q: Tensor, *, added: bool) -> Compared:
        """Return them for records that are added, or of the modes' table removed."""
        bounds = [mode.bounds(added=added) for mode in modes]
        limits, sign = Ratios.of(modes, bounds, q), 1.0 if added else -1.0
        moved = [mode.neighbours(records, sign) for mode in modes]
        away = [
            torch.linalg.solve(mode.root, (one.modes - mode.point).T).norm(dim=0)
            / bound.influence.shift
            for mode, one, bound in zip(modes, moved, bounds, strict=True)
        ]
        change = torch.stack([b.evidence - a.evidence for a, b in zip(modes, moved, strict=True)])
        gap = (change[:, None] - change[None]) / (limits.rho + torch.eye(len(q)))[:, :, None]
        ratio = log_ratios(q, moved)
        of_q = torch.maximum(ratio / limits.high[:, None], -ratio / limits.low[:, None])
        every = (torch.stack(away), gap, of_q)
        above = sum(int((one > 1).sum()) for one in every)
        shift, evidence, of_ratio = (float(one.max()) for one in every)
        return cls(shift, evidence, of_ratio, above, len(records.rows))

    def __str__(self) -> str:
        return (
            f"shift {self.shift:.3f}, evidences {self.evidence:.3f}, ln q/q′ {self.ratio:.3f} of "
            f"the bound; above it {self.above} ({self.records} records)"
        )


def log_ratios(q: Tensor, moved: list[Neighbours]) -> Tensor:
    """Return ln(q_k/q′_k), (K, m)."""
    evidence = torch.stack([one.evidence for one in moved])
    return q.log()[:, None] - evidence.log_softmax(0)


def delta(pairs: GaussianPairs, epsilon: float, less: Tensor) -> Tensor:
    """Return δ(ε − r) of every pair, (m,), on a contour made for ε."""
    result = torch.ones(len(pairs))
    every = torch.arange(len(pairs))
    of_rows = lambda rows: pairs.select(rows).log_mgf_for_inversion()  # noqa: E731
    for rows, found in inversions(of_rows, every, epsilon, TRIES, 1e-9):
        at: Any = epsilon - less[rows]  # one for each row
        result[rows] = torch.minimum(result[rows], found.bound(at)[0])
    if len(far := (result == 1).nonzero()[:, 0]):  # its own contour is another
        result[far] = pairs.select(far).hockey_stick(epsilon - float(less[far].max()))
    return result


def bounded_mean(values: Tensor, largest: float) -> float:
    largest = min(largest, 1.0)
    logs = values.clamp(min=1e-300, max=largest).log()
    return float(betting(logs, GAMMA, math.log(largest), -math.inf).log_bound.exp())


def solve(mean: Callable[[float], float], low: float = 0.05, high: float = 8.0) -> float:
    """Return the least ε, to 1 %, at which a mean of δ is small enough."""
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        enough = mean(middle) <= DELTA - TESTS * GAMMA
        low, high = (low, middle) if enough else (middle, high)
    return high


@dataclass
class Priced:
    """All scales of one table, with every record removed."""

    modes: list[Mode]

    def __post_init__(self) -> None:
        self.q = torch.stack([mode.evidence for mode in self.modes]).softmax(0)
        moved = [mode.neighbours(self.modes[0].table, -1.0) for mode in self.modes]
        self.ratio = log_ratios(self.q, moved)
        some = [mode.pairs(one) for mode, one in zip(self.modes, moved, strict=True)]
        self.pairs = {WAYS[0]: some, WAYS[1]: [one.reverse() for one in some]}
        self.bounds = [mode.bounds(added=False) for mode in self.modes]
        self.limits = Ratios.of(self.modes, self.bounds, self.q)

    def fixed(self, k: int) -> float:
        """Return ε of a draw at one scale, chosen beforehand."""
        none, influence = torch.zeros(len(self.ratio[0])), self.bounds[k].influence
        return solve(
            lambda e: max(
                bounded_mean(delta(self.pairs[way][k], e, none), influence.delta(e, way))
                for way in WAYS
            )
        )

    def drawn(self, *, free: bool = False) -> float:
        """Return ε of (k, draw); with ``free`` as if q did not depend on any record."""
        return solve(lambda e: max(self._mean(e, way, 1.0 - free) for way in WAYS))

    def _mean(self, epsilon: float, way: str, count: float) -> float:
        """Return the bound on the mean of Σ q_k δ_k(ε − r_k), r_k = ln(q_k/q′_k).

        If the neighbour comes first it is Σ q′_k δ_k(ε + r_k).
        """
        first = way == WAYS[0]
        ratio = count * (self.ratio if first else -self.ratio)
        limits = count * (self.limits.high if first else self.limits.low)
        total, largest = torch.zeros(len(self.ratio[0])), 0.0
        for k, q in enumerate(self.q.tolist()):
            r, top = ratio[k], float(limits[k])
            scale, most = (torch.ones_like(r), 1.0) if first else (r.exp(), math.exp(top))
            seen = q > 1e-9 and epsilon > top
            total += q * scale * (delta(self.pairs[way][k], epsilon, r) if seen else 1.0)
            influence = self.bounds[k].influence
            largest += q * most * (influence.delta(epsilon - top, way) if seen else 1.0)
        return bounded_mean(total, largest)


def excess(modes: list[Mode], truth: tuple[Tensor, ...]) -> list[float]:
    """Return the expected log loss of one draw above the truth's, in 1e-4, per scale."""
    made = torch.Generator().manual_seed(2)
    effects = truth[3]
    x = torch.randn(20_000, FEATURES, generator=made).clamp(-2, 2)
    group = torch.randint(0, len(effects), (len(x),), generator=made)
    fresh = Table.of(x, group, torch.ones(len(x)), len(effects)).rows
    logit = x @ torch.tensor(SLOPES) + effects[group]

    def loss(a: Tensor) -> Tensor:
        p = logit.sigmoid()[:, None]
        return (p * softplus(-a) + (1 - p) * softplus(a)).mean()

    least, result = loss(logit[:, None]), []
    for mode in modes:
        noise = torch.randn(100, len(mode.point), generator=made)
        draws = mode.point + noise @ mode.root.T
        result.append(1e4 * float(loss(fresh @ draws.T) - least))
    return result


def today(truth: tuple[Tensor, ...]) -> str:
    """Return ε of the library's own model with the groups as a category of columns 0 or 2."""
    x, group, y, effects = truth
    groups = tuple(range(FEATURES, FEATURES + len(effects)))
    model = bdpvi.BayesianLogisticRegression(one_hot=(groups,))
    data = Dataset(torch.cat([x, 2.0 * one_hot(group, len(effects))], 1), y)
    fit = bdpvi.fit(model, bdpvi.guides.Laplace(model), data, progress=False)
    cost = bdpvi.cost(fit, planned=Charge(1, 1.0))
    found = cost.bayesian.epsilon if cost.bayesian else math.nan
    worst = cost.worst_case.epsilon if cost.worst_case else math.inf
    return f"ε = {found:.3f} (worst case {worst:.2f})"


def line(words: str, numbers: list[float], form: str, *more: str) -> str:
    """Return a row of a table."""
    return f"| {' | '.join([words, *(format(one, form) for one in numbers), *more])} |"


def report(n: int, groups: int, scale: float) -> None:
    """Print the prices of one table, and the bounds against refits."""
    truth = simulated(n, groups, scale)
    x, group, y, _ = truth
    table = Table.of(x, group, y, groups)
    modes = [Mode(table, one) for one in GRID]
    priced, losses = Priced(modes), excess(modes, truth)
    q = priced.q
    print(f"\nN = {n}, {groups} groups, true scale {scale:g}")
    print(line("", [], "", *(f"s = {one:g}" for one in GRID), "s drawn", "if q were public"))
    print("| --- " * (len(GRID) + 3) + "|")
    print(line("q", q.tolist(), ".4f", "", ""))
    every = [priced.fixed(k) for k in range(len(GRID))]
    print(line("ε of one draw", [*every, priced.drawn(), priced.drawn(free=True)], ".3f"))
    mean = float(q @ torch.tensor(losses))
    print(line("its log loss above the truth's, 1e-4", [*losses, mean], ".0f", ""))
    print(line("ln q/q′ at most", priced.limits.high.tolist(), ".3f", "", ""))
    apart = max(every) + float(torch.stack(priced.limits[:2]).max())
    print(f"s chosen by q and charged apart: ε = {apart:.3f}")
    hard = adversarial(modes)
    print("all records removed:", Compared.of(modes, table, q, added=False))
    print("adversarial, added:", Compared.of(modes, hard, q, added=True))
    worse = [Mode(table.with_rows(hard), one) for one in GRID]
    of_worse = torch.stack([one.evidence for one in worse]).softmax(0)
    print("adversarial, removed:", Compared.of(worse, hard, of_worse, added=False))
    equal = 2 / math.sqrt(RIDGE)
    same = Priced([Mode(table, equal)]).fixed(0)
    print(f"s = {equal:.3f}, one ridge for all columns: ε = {same:.3f}", end="; ")
    print(f"bdpvi.fit: {today(truth)}", flush=True)


def main() -> None:
    torch.set_default_dtype(torch.float64)
    print(command())
    for one in TABLES:
        report(*one)


if __name__ == "__main__":
    main()
