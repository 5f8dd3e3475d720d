"""The certificates of Gaussians at the ELBO's optimum, against refits by a slow search."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.linalg import hadamard
from scipy.stats import norm

import bdpvi
from bdpvi import BayesianLogisticRegression, Dataset, Training, datasets, guides
from bdpvi.bayesian import Add, Remove
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.mode.influence import of_any_record
from bdpvi.bayesian.mode.influence import of_any_table as of_any_mode
from bdpvi.bayesian.optimum.box import widest
from bdpvi.bayesian.optimum.elbo import Objective, Point, start
from bdpvi.bayesian.optimum.expansion import Expansion
from bdpvi.bayesian.optimum.influence import EXACT, RecordPath, of_any_table, of_optimum, residual
from bdpvi.bayesian.optimum.newton import climb
from bdpvi.bayesian.optimum.panels import pairs_with_errors
from bdpvi.bayesian.optimum.route import Optimum
from bdpvi.bayesian.optimum.weighted import Weighted
from bdpvi.bayesian.storage import load_fit, save_fit
from bdpvi.models.quadrature import derivatives
from bdpvi.privacy.entry import Charge
from bdpvi.privacy.event import WITH, WITHOUT

MODEL = BayesianLogisticRegression()
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
Gaussian = tuple[np.ndarray, np.ndarray]


def bounds(d: int) -> tuple[float, float, float]:
    """Return C, B and λ by hand."""
    norm, row = math.sqrt(d + 4) / 2, 2 * math.sqrt(d + 1)
    return norm, row, 4 * norm * row


def design(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    z = np.c_[x.clip(-2, 2), np.full(len(x), 2.0)]
    return z, np.minimum(1, bounds(x.shape[1])[0] / np.linalg.norm(z, axis=1))


def moments(z: np.ndarray, y: np.ndarray, at: Gaussian) -> tuple[np.ndarray, np.ndarray]:
    """Return E ℓ′ and E ℓ″ of every record by 80 nodes."""
    spread = np.sqrt(np.einsum("ij,jk,ik->i", z, np.linalg.inv(at[1]), z))
    p = 1 / (1 + np.exp(-(z @ at[0])[:, None] - spread[:, None] * NODES))
    return p @ WEIGHTS - y, (p * (1 - p)) @ WEIGHTS


def refit(
    z: np.ndarray,
    y: np.ndarray,
    w: np.ndarray,
    ridge: float,
    near: Gaussian | None = None,
    diagonal: bool = False,
) -> Gaussian:
    """Return the mean and the precision of the optimum, by steps that share nothing with bdpvi."""
    n = z.shape[1]
    mean, precision = near or (np.zeros(n), ridge * np.eye(n))
    best = math.inf
    for _ in range(500):
        r, v = moments(z, y, (mean, precision))
        new = (z.T * (w * v)) @ z + ridge * np.eye(n)
        step = np.linalg.solve(new, z.T @ (w * r) + ridge * mean)
        size = math.sqrt(step @ new @ step)
        kept = np.diag(np.diag(new)) if diagonal else new
        away = max(float(np.abs(kept - precision).max() / np.abs(new).max()), size)
        longest = math.sqrt(np.einsum("ij,jk,ik->i", z, np.linalg.inv(new), z).max())
        mean, precision = mean - step / max(1.0, size * longest), kept
        if away < 1e-13 or (away < 1e-10 and away >= best):
            return mean, precision
        best = min(best, away)
    raise AssertionError("no optimum was found")


def change(one: Gaussian, other: Gaussian) -> tuple[float, np.ndarray]:
    """Return the shift in units of the first, and the other's precisions in these units."""
    away = other[0] - one[0]
    root = np.linalg.inv(np.linalg.cholesky(one[1]))
    return math.sqrt(away @ one[1] @ away), np.linalg.eigvalsh(root @ other[1] @ root.T)


def optimum(data: Dataset, model: Any = MODEL, diagonal: bool = False) -> Point:
    n = data.x.shape[1] + 1
    objective = Objective(Weighted.of(model, data), model.precision(n), diagonal)
    return climb(start(objective), 1e-12, enough=lambda at: at.gradient_norm < 1e-10)[-1]


def table(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a small table: wide and narrow, correlated and not, rare labels and clear ones."""
    random = np.random.default_rng(seed)
    d, n = int(random.integers(1, 5)), int(random.choice([1, 3, 10, 40, 200]))
    x = random.normal(size=(n, d)) * random.choice([0.2, 1, 5])
    if random.random() < 0.3:
        x = x[:, :1] + 0.05 * x
    w = random.normal(size=d + 1) * random.choice([0.2, 1, 6])
    z, _ = design(x)
    return x, (random.random(n) < 1 / (1 + np.exp(-z @ w))).astype(float)


def hard_rows(x: np.ndarray, precision: np.ndarray, seed: int) -> list[np.ndarray]:
    """Return a corner of the box, and rows along the eigenvectors."""
    d, axes = x.shape[1], np.linalg.eigh(precision)[1]
    rows = [2 * np.sign(np.random.default_rng(seed).normal(size=d))]
    for axis in axes.T:
        along = axis[:-1] * np.sign(axis[-1] + 1e-12)
        rows.append((3 * along / max(np.abs(along).max(), 1e-9)).clip(-2, 2))
    return rows


def dataset(x: np.ndarray, y: np.ndarray) -> Dataset:
    return Dataset(torch.tensor(x).double(), torch.tensor(y).double())


def within(found: Any, shift: float, precisions: np.ndarray) -> float:
    """See that an influence covers a pair; return the largest part of it that is used."""
    low, high = math.exp(-found.spread), math.exp(found.spread)
    low, high = (low, high + found.share) if found.added else (low * (1 - found.share), high)
    assert shift <= found.shift
    assert low <= precisions.min() + 1e-11
    assert precisions.max() <= high + 1e-11
    return shift / float(found.shift)


def of_others(one: Gaussian, other: Gaussian, z: np.ndarray, y: float, added: bool) -> float:
    """Return the largest log-change of the precision of all terms but one record's own."""
    weight, rest = min(1, bounds(len(z) - 1)[0] / float(np.linalg.norm(z))), []
    for at, has in ((one, not added), (other, added)):
        _, v = moments(z[None], np.array([y]), at)
        rest.append(at[1] - has * weight * v[0] * np.outer(z, z))
    root = np.linalg.inv(np.linalg.cholesky(rest[0]))
    return float(np.abs(np.log(np.linalg.eigvalsh(root @ rest[1] @ root.T))).max())


def largest_part(seeds: Iterable[int]) -> tuple[float, float]:
    """Return the largest parts of bounds that refits of records added and removed use.

    Of the shift, and of the spread of this table.
    """
    closest, widest = 0.0, 0.0
    for seed in seeds:
        x, y = table(seed)
        d, (z, w) = x.shape[1], design(x)
        ridge = bounds(d)[2]
        whole, before = refit(z, y, w, ridge), optimum(dataset(x, y))
        for row in hard_rows(x, whole[1], seed):
            for label in (0.0, 1.0):
                more = np.r_[x, row[None]], np.r_[y, label]
                own_z, own_w = design(more[0])
                after = refit(own_z, more[1], own_w, ridge)
                for added, one, other, point in (
                    (True, whole, after, before),
                    (False, after, whole, optimum(dataset(*more))),
                ):
                    pair = change(one, other)
                    bends = Expansion(point).bends
                    here = of_optimum(MODEL, point, residual(point)[1], bends, added=added)
                    assert here is not None
                    closest = max(closest, within(here, *pair))
                    within(of_any_table(MODEL, d + 1, added=added), *pair)
                    others = of_others(one, other, own_z[-1], label, added)
                    assert others <= here.spread
                    widest = max(widest, others / here.spread)
    return closest, widest


@pytest.mark.parametrize("seeds", [(3, 12, 17), pytest.param(range(80), marks=pytest.mark.slow)])
def test_no_record_moves_an_optimum_further_than_any_is_said_to(seeds: Iterable[int]) -> None:
    found = largest_part(seeds)
    print("largest part of the bound on the shift and the spread: {:.4f}, {:.4f}".format(*found))
    assert 0.7 < found[0] <= 1
    assert 0.3 < found[1] <= 1


def largest_part_of_fields(seeds: Iterable[int]) -> float:
    """Return the same of mean-field Gaussians, of the shift alone."""
    closest = 0.0
    for seed in seeds:
        x, y = table(seed)
        ridge = bounds(x.shape[1])[2]
        whole, before = refit(*_of(x, y), ridge, None, True), optimum(dataset(x, y), diagonal=True)
        for row in hard_rows(x, before.curvature.numpy(), seed):
            for label in (0.0, 1.0):
                more = np.r_[x, row[None]], np.r_[y, label]
                after = refit(*_of(*more), ridge, None, True)
                for added, one, other, point in (
                    (True, whole, after, before),
                    (False, after, whole, optimum(dataset(*more), diagonal=True)),
                ):
                    here = of_optimum(MODEL, point, residual(point)[1], added=added)
                    assert here is not None
                    assert here.share == 0
                    closest = max(closest, within(here, *change(one, other)))
    return closest


@pytest.mark.parametrize("seeds", [(9, 13, 17), pytest.param(range(80), marks=pytest.mark.slow)])
def test_no_record_moves_a_field_further_than_any_is_said_to(seeds: Iterable[int]) -> None:
    found = largest_part_of_fields(seeds)
    print(f"largest part of the bound on the shift of mean fields: {found:.4f}")
    assert 0.4 < found <= 1


@cache
def corners(saturated: float, factor: float) -> tuple[Gaussian, Gaussian] | None:
    """Return optima without and with one more record at one of 8 orthogonal corners.

    Weights stand for many copies: they give a curvature of ``factor`` times the ridge and a rare
    label, of logit ``saturated``, to every corner.
    """
    norm, row, ridge = bounds(7)
    z = 2.0 * hadamard(8)
    z = z * np.sign(z[:, :1])
    z = z[:, ::-1]
    logit, spread = saturated, row / math.sqrt(factor * ridge)
    p = 1 / (1 + np.exp(-logit - spread * NODES))
    r, v = p @ WEIGHTS, (p * (1 - p)) @ WEIGHTS
    many = (factor - 1) * ridge / (row**2 * v)
    ones = r + ridge * logit / (row**2 * many)
    if ones < 0:  # no such table
        return None
    rows, y = np.r_[z, z], np.r_[np.zeros(8), np.ones(8)]
    w = np.r_[np.full(8, many * (1 - ones)), np.full(8, many * ones)]
    more = np.r_[rows, z[:1]], np.r_[y, 1.0], np.r_[w, norm / row]
    whole = refit(rows, y, w, ridge, (z.T @ np.full(8, logit) / row**2, factor * ridge * np.eye(8)))
    return whole, refit(*more, ridge, whole)


def test_the_mode_s_bound_does_not_hold_and_the_optimum_s_does() -> None:
    """Orthogonal corners whose label is rare: the curvature rises as the record comes."""
    norm, row, ridge = bounds(7)
    parts: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for p in (0.003, 0.0005):
        for factor in (2, 4, 6, 8, 12):
            pair = corners(math.log(p / (1 - p)), float(factor))
            if pair is None:
                continue
            for added, one, other in ((True, *pair), (False, *pair[::-1])):
                least = float(np.linalg.eigvalsh(one[1])[0])
                longest, pull = row / math.sqrt(least), norm / math.sqrt(least)
                share = norm * row / (4 * least)
                shift, _ = change(one, other)
                mode = of_any_record(longest, pull, share, 8, added=added)
                mine = RecordPath(norm, row, ridge, longest, 1 / least, added).end()[0]
                assert mode is not None
                assert shift <= mine
                parts[added].append((shift / mode.shift, shift / mine))
    for added, more in ((True, 1.008), (False, 1.012)):
        over, within = (max(one) for one in zip(*parts[added], strict=True))
        print(f"added={added}: {over:.4f} of the mode's bound, {within:.4f} of the optimum's")
        assert over > more
        assert within > 0.95


def test_the_lemma_is_attained() -> None:
    """Orthogonal rows of length h that hold all of the curvature, p = κ = 1, and r = 1: solved."""
    h, c = 0.6, 0.05
    # Of z along the first axis u₁ and X₁₁ alone move: uᵀu + 2(ωvh²)h uX + (2 + (ωvh²)h²)X².
    hessian = np.array([[1.0, h], [h, 2 + h**2]])
    u, _ = np.linalg.solve(hessian, [c, 0.0])
    course = RecordPath(
        norm=c / 0.1, row=h / 0.1, precision=18.0, longest=h, widest=0.01, added=True
    )
    assert course.rates(0.0)[1] == pytest.approx(u, rel=1e-12)
    assert u == pytest.approx((1 + h**2 / 2) * c, rel=1e-12)


@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("field", [None, (0.06, 0.4), (0.2, 0.04)])
@pytest.mark.parametrize(("longest", "factor"), [(9.0, 1.0), (9.0, 6.0), (0.1, 2.0), (0.2, 30.0)])
def test_the_upper_sum_solves_the_inequality(
    added: bool, longest: float, factor: float, field: tuple[float, float] | None
) -> None:
    """The theorem as on the page of the proof, by Runge and Kutta's method."""
    norm, row, ridge = bounds(6)
    least = factor * ridge
    h0, a = min(longest, row / math.sqrt(least)), norm * row / (4 * least)

    def speeds(_: float, state: np.ndarray) -> list[float]:
        rho = math.exp(state[0]) / (1 if added else 1 - a)
        h = min(math.sqrt(rho) * h0, row / math.sqrt(ridge))
        k = min(math.sqrt(rho / least) * row, row / math.sqrt(ridge))
        c = min(math.sqrt(rho / least), ridge**-0.5) * norm
        b = min(rho * a, norm * row / (4 * ridge))
        theta = (1 - b) * h**2 / (2 + h**2) + b * k**2 / (2 + k**2)
        e2, f = (1 - b) * h**2 + b * k**2, (1 - b) * h + b * k
        u, x = c / (1 - theta), c * (k + f) ** 2 / (4 * k * (2 - e2 / 2))
        fastest = row * norm / ridge * math.sqrt(1 + row**2 / ridge)
        moving = math.sqrt(rho) * u
        if field is not None:
            of_row = field[0] * norm + (math.exp(state[0]) - 1) * norm / math.sqrt(least * field[1])
            whole = of_row / (1 if added else 1 - a) + math.sqrt(rho / field[1]) * f * x
            moving = min(moving / math.sqrt(field[1]), whole)
        return [min(h * u + h**2 * x, fastest), moving, rho * x]

    truth = solve_ivp(speeds, (0, 1), [0.0] * 3, rtol=1e-10, atol=1e-12, max_step=0.01).y[:, -1]
    shift, s, turn = RecordPath(norm, row, ridge, h0, 1 / least, added, field).end()
    assert truth[1] <= shift <= 1.001 * truth[1]
    assert truth[0] <= s <= 1.005 * truth[0]
    assert truth[2] <= turn <= 1.002 * truth[2]


def test_the_bends_are_those_of_sums_over_records() -> None:
    """‖T₃‖ and ‖T₄‖ as matrices with n and n² rows, by 80 nodes."""
    x, y = table(17)
    point, (z, w) = optimum(dataset(x, y)), design(x)
    mean, root = point.mean.numpy(), point.root.numpy()
    white, n = z @ root, z.shape[1]
    logits = (z @ mean)[:, None] + np.linalg.norm(white, axis=1)[:, None] * NODES
    p = 1 / (1 + np.exp(-logits))
    third = w * ((p * (1 - p) * (1 - 2 * p)) @ WEIGHTS)
    fourth = w * ((p * (1 - p) * (1 - 6 * p * (1 - p))) @ WEIGHTS)
    square = np.einsum("ij,ik->ijk", white, white).reshape(-1, n * n)
    truth = [
        float(np.linalg.norm((rows.T * weights) @ square, 2))
        for rows, weights in ((white, third), (square, fourth))
    ]
    assert Expansion(point).bends == pytest.approx(truth, rel=1e-8)


def test_the_change_of_the_curvature_by_hand() -> None:
    for added in (True, False):
        course = RecordPath(1.2, 3.0, 9.0, 0.2, 0.02, added)
        own, a = 3.0 * math.sqrt(0.02), 1.2 * 3.0 * 0.02 / 4
        truth = 0.3 * 0.1 + 0.2 * 0.05 + (math.exp(0.04) - 1 - 0.04)
        if not added:
            truth = (truth + a * (own * 0.1 + own**2 * 0.05)) / (1 - a)
        assert course.change((0.1, 0.04, 0.05), (0.3, 0.2)) == pytest.approx(truth, rel=1e-9)
    point = optimum(logistic(200))
    plain, sharper = (
        of_optimum(MODEL, point, residual(point)[1], bends, added=True)
        for bends in (None, (0.0, 0.0))
    )
    assert plain is not None
    assert sharper is not None
    # What is left is of second order.
    assert sharper.spread == pytest.approx(math.expm1(plain.spread) - plain.spread, rel=2e-2)


def test_rates_of_any_table_are_capped() -> None:
    norm, row, ridge = bounds(3)
    course = RecordPath(norm, row, ridge, math.inf, math.inf, True)
    fastest = row * norm / ridge * math.sqrt(1 + row**2 / ridge)
    assert course.rates(9.0)[0] == pytest.approx(fastest, rel=1e-12)
    assert course.share == math.inf
    found = of_any_table(MODEL, 4, added=False)
    assert found is not None
    assert found.share == pytest.approx(norm * row / (4 * ridge), rel=1e-6)


@pytest.mark.parametrize("seed", [1, 4, 7, 11])
def test_a_fit_with_a_residual_is_near_its_optimum(seed: int) -> None:
    """ν in a random direction of the mean and the covariance."""
    x, y = table(seed)
    point, random = optimum(dataset(x, y)), np.random.default_rng(seed)
    n = len(point.mean)
    part = 0.0
    for _ in range(20):
        turned = torch.tensor(random.normal(size=(n, n)))
        away = 1e-5 * point.root @ torch.tensor(random.normal(size=n))
        inner = torch.eye(n).double() + 1e-5 * random.choice([0, 1]) * (turned + turned.T)
        factor = torch.linalg.inv(point.root)
        moved = point.objective.at(point.mean + away, factor.T @ inner @ factor)
        nu = residual(moved)[0]
        one = moved.mean.numpy(), moved.metric.numpy()
        shift, precisions = change(one, (point.mean.numpy(), point.metric.numpy()))
        part = max(part, shift / (10 * nu), float(np.abs(np.log(precisions)).max()) / (10 * nu))
    assert 0.02 < part <= 1


def test_a_bound_has_room_for_fits_and_their_rounding() -> None:
    found, course = of_any_table(MODEL, 4, added=True), RecordPath(*bounds(3), math.inf, 1.0, True)
    assert found is not None
    norm, row, ridge = bounds(3)
    shift, s, _ = RecordPath(norm, row, ridge, row / math.sqrt(ridge), 1 / ridge, True).end()
    assert course.norm == norm
    assert 2.9 * 10 * EXACT < found.shift - shift < 5 * 10 * EXACT
    assert 10 * 10 * EXACT < found.spread - s < 20 * 10 * EXACT
    point = optimum(logistic(60))
    block = point.objective.records
    assert isinstance(block, Weighted)
    length = (block.x @ point.root).norm(dim=1)
    sizes = float((block.weight * (length + length.square())).sum())
    nu, longest = residual(point)
    assert nu - point.gradient_norm == pytest.approx(1e-13 * sizes, rel=1e-3)
    assert longest == pytest.approx(float(length.max()), rel=1e-12)


@pytest.mark.parametrize("variance", [0.0004, 0.01, 0.3, 1.0])
def test_quadrature_and_rounding_are_within_their_room(variance: float) -> None:
    """E ℓ′ and E ℓ″ to a tenth of the error that is allowed, by mpmath."""
    means = [-25.0, -3.0, -0.25, 0.0, 1.5, 9.0]
    spread, n = math.sqrt(variance), len(means)
    wanted = torch.tensor([means, [variance] * n, [math.inf] * n], dtype=torch.float64)
    found = derivatives(wanted[0], wanted[1], wanted[2], 2)
    for i, mean in enumerate(means):

        def at(t: Any, power: int, mean: float = mean) -> Any:
            p = 1 / (1 + mpmath.exp(mean + spread * t))
            return p * (1 - p) ** power * mpmath.npdf(t)

        cuts = [-12, -6, -3, 0, 3, 6, 12]
        first, second = (mpmath.quad(lambda t, k=k: at(t, k), cuts) for k in (0, 1))
        assert abs(float(found[1, i]) / spread - float(first)) <= 1e-14
        assert abs(float(found[2, i]) / variance + float(second)) <= 1e-14


def logistic(rows: int, seed: int = 0, d: int = 3) -> Dataset:
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, d))
    return dataset(x, (random.random(rows) < 1 / (1 + np.exp(-x[:, 0] + 0.5))).astype(float))


def fitted(data: Dataset, model: Any = MODEL, **options: Any) -> bdpvi.Fit:
    return bdpvi.fit(model, guides.FullRank(model), data, progress=False, **options)


def pair(one: Gaussian, other: Gaussian) -> GaussianPairs:
    factor = np.linalg.cholesky(np.linalg.inv(one[1]))
    r, axes = np.linalg.eigh(factor.T @ other[1] @ factor)
    shift = axes.T @ np.linalg.solve(factor, other[0] - one[0])
    return GaussianPairs(torch.tensor(r)[None], torch.tensor(r * shift**2)[None])


@pytest.mark.parametrize("rows", [12, 70, 400])
def test_neighbours_are_those_of_refits_within_their_errors(rows: int) -> None:
    data, more = logistic(rows), logistic(5, 1)
    more = Dataset(3 * more.x, more.y, ids=torch.arange(5) + 1000)
    fit = fitted(data, neighbours=Optimum(Remove(), Add(more)))
    x, y = data.x.numpy(), data.y.numpy()
    ridge = bounds(3)[2]
    whole = refit(*_of(x, y), ridge)
    assert np.allclose(fit.parameters["loc"].numpy(), whole[0], atol=1e-10)
    for panel in fit.panels:
        assert panel.error is not None
        assert float(panel.error.max()) < 1e-6
        for i in range(5):
            if panel.kind == "remove":
                keep = np.arange(rows) != i
                other = refit(*_of(x[keep], y[keep]), ridge)
            else:
                some = np.r_[x, more.x[i : i + 1].numpy()], np.r_[y, more.y[i : i + 1].numpy()]
                other = refit(*_of(*some), ridge)
            truth, found = pair(whole, other), panel.pairs.select(slice(i, i + 1))
            assert torch.allclose(found.b2.sum(), truth.b2.sum(), rtol=2e-5)
            for epsilon in (0.05, 0.5):
                off = (1 + math.exp(epsilon)) * float(panel.error[i])
                for a, b in ((found, truth), (found.reverse(), truth.reverse())):
                    gap = float(a.hockey_stick(epsilon) - b.hockey_stick(epsilon))
                    assert abs(gap) <= off + 2e-3 * float(b.hockey_stick(epsilon)) + 1e-12


def _of(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    z, w = design(x)
    return z, y, w


def test_an_error_bounds_the_total_variation() -> None:
    """Of a mean that is off by all of the error, by the normal law."""
    data = logistic(40)
    point = optimum(data)
    expansion = Expansion(point, EXACT)
    assert isinstance(point.objective.records, Weighted)
    moves = Optimum().moves(expansion, point.objective.records, -1.0)
    moves.error[:] = 1e-4
    moves.error[0] = 2e-3
    _, off = pairs_with_errors(expansion, moves)
    size = math.sqrt(2) * moves.y.norm(dim=0)
    assert off[0] == 1
    assert torch.allclose(off[1:], 1.01e-4 / (2 * (1 - size[1:])), rtol=1e-9)
    assert float(off[1:].min()) >= 2 * norm.cdf(0.5e-4) - 1


@pytest.mark.parametrize("added", [True, False])
def test_the_numbers_of_a_field_by_hand(added: bool) -> None:
    x, y = table(13)
    point, (z, w) = optimum(dataset(x, y), diagonal=True), design(x)
    at = point.mean.numpy(), point.metric.diagonal().diag().numpy()
    norm, row, ridge = bounds(x.shape[1])
    a = (z.T * (w * moments(z, y, at)[1])) @ z + ridge * np.eye(z.shape[1])
    d, inverse = np.sqrt(np.diag(a)), np.linalg.inv(a)
    sizes = [np.einsum("ij,jk,ik->i", z, one, z).max() for one in (inverse, np.diag(d**-2))]
    least = float(np.linalg.eigvalsh(a / np.outer(d, d))[0])
    field = float(np.linalg.norm(d[:, None] * inverse, 2)), least
    found = of_optimum(MODEL, point, residual(point)[1], added=added)
    assert found is not None
    assert residual(point)[1] == pytest.approx(math.sqrt(max(sizes)), rel=1e-8)
    wide = max(widest(MODEL, torch.tensor(one)) for one in (inverse, np.diag(d**-2)))
    shift, s, _ = RecordPath(norm, row, ridge, math.sqrt(max(sizes)), wide, added, field).end()
    own = norm * row * wide / 4
    s = math.log(math.exp(s) + own) if added else s - math.log1p(-own)
    assert found.shift == pytest.approx(shift, rel=1e-4)
    assert found.spread == pytest.approx(s, rel=1e-4)
    assert found.share == 0


@pytest.mark.usefixtures("quick")
def test_a_field_is_certified_for_the_table_at_hand() -> None:
    data = logistic(400)
    with warnings.catch_warnings():
        warnings.simplefilter("error", bdpvi.NotCertifiedWarning)
        fit = bdpvi.fit(MODEL, guides.MeanField(MODEL), data, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # δ is more than 1/N
        cost = bdpvi.cost(fit, delta=1e-2, planned=Charge(1, 1.0))
    assert cost.bayesian is not None
    assert cost.bayesian.certified
    assert cost.worst_case is None
    with pytest.raises(ValueError, match=r"for all tables.*guides\.FullRank"):
        bdpvi.release(fit, guarantee=bdpvi.WorstCaseDP(), epsilon=1.0)
    with pytest.raises(ValueError, match="at least 3 are needed"):
        bdpvi.fit(MODEL, guides.MeanField(MODEL), data.select(torch.arange(2)), progress=False)


@pytest.mark.parametrize("rows", [12, 300])
def test_neighbours_of_a_field_are_those_of_refits(rows: int) -> None:
    data = logistic(rows)
    (panel,) = bdpvi.fit(MODEL, guides.MeanField(MODEL), data, progress=False).panels
    x, y, ridge = data.x.numpy(), data.y.numpy(), bounds(3)[2]
    whole = refit(*_of(x, y), ridge, None, True)
    assert panel.error is not None
    assert float(panel.error.max()) < 1e-6
    for i in range(4):
        keep = np.arange(rows) != i
        truth = pair(whole, refit(*_of(x[keep], y[keep]), ridge, None, True))
        found = panel.pairs.select(slice(i, i + 1))
        for epsilon in (0.05, 0.5):
            off = (1 + math.exp(epsilon)) * float(panel.error[i])
            for a, b in ((found, truth), (found.reverse(), truth.reverse())):
                gap = float(a.hockey_stick(epsilon) - b.hockey_stick(epsilon))
                assert abs(gap) <= off + 2e-3 * float(b.hockey_stick(epsilon)) + 1e-12


@pytest.mark.usefixtures("quick")
def test_a_release_says_certified(tmp_path: Path) -> None:
    data = logistic(400)
    fit = fitted(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # δ is more than 1/N
        cost = bdpvi.cost(fit, delta=1e-2, planned=Charge(1, 1.0))
        release = bdpvi.release(fit, delta=1e-2)
    assert cost.bayesian is not None
    assert cost.bayesian.certified
    assert release.receipt.bayesian is not None
    assert "certified" in str(release.receipt)
    assert release.samples.isfinite().all()
    save_fit(fit, tmp_path / "fit")
    again = load_fit(tmp_path / "fit", MODEL, guides.FullRank(MODEL))
    assert again.panels[0].influence == fit.panels[0].influence
    assert torch.equal(again.panels[0].error, fit.panels[0].error)  # type: ignore[arg-type]


def test_the_worst_case_is_that_of_optima() -> None:
    """It is more than that of modes."""
    data = logistic(60)
    one, other = (
        bdpvi.cost(fit, planned=Charge(1, 1.0)).worst_case
        for fit in (fitted(data), bdpvi.fit(MODEL, guides.Laplace(MODEL), data, progress=False))
    )
    assert one is not None
    assert other is not None
    assert one.epsilon > 1.15 * other.epsilon
    mine, theirs = of_any_table(MODEL, 4, added=True), of_any_mode(MODEL, 4, added=True)
    assert mine is not None
    assert theirs is not None
    assert mine.shift > 1.2 * theirs.shift


@pytest.mark.parametrize("seed", range(3))
def test_the_mean_over_fresh_records_is_within_a_certificate(seed: int) -> None:
    data, fresh = logistic(400, seed), logistic(300, 1000 + seed)
    fresh = Dataset(fresh.x, fresh.y, ids=torch.arange(300) + 10_000)
    found = Account([GuideDraws(fitted(data).panels)]).cost(1e-2).bayesian
    assert found is not None
    pairs = fitted(data, neighbours=Optimum(Add(fresh))).panels[0].pairs
    for one in (pairs, pairs.reverse()):
        delta = one.hockey_stick(found.epsilon)
        assert float(delta.mean()) <= 1e-2 + 3 * float(delta.std()) / 300**0.5


def test_no_known_record_exceeds_the_range() -> None:
    """Of a real table: each of its records, in both orders."""
    data = datasets.load_breast_cancer().train
    (panel,) = fitted(Dataset(data.x[:, :6], data.y)).panels
    assert panel.influence is not None
    for epsilon in (0.2, 1.0):
        for way, some in ((WITH, panel.pairs), (WITHOUT, panel.pairs.reverse())):
            assert float(some.hockey_stick(epsilon).max()) <= panel.influence.delta(epsilon, way)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_table_of_any_size_has_a_range(rows: int) -> None:
    """Whether there is an answer does not depend on the records."""
    data = logistic(9).select(torch.arange(rows))
    fit = fitted(data)
    assert fit.panels[0].influence is not None
    cost = bdpvi.cost(fit, delta=1e-2, planned=Charge(1, 1.0))
    assert cost.worst_case is not None


def typical(fit: bdpvi.Fit) -> bool:
    return all(panel.influence is None and panel.largest is None for panel in fit.panels)


@pytest.mark.filterwarnings("ignore::bdpvi.NotCertifiedWarning")
def test_where_nothing_is_proven_nothing_is_certified() -> None:
    data = logistic(30)
    weak = BayesianLogisticRegression(prior_scale=1.0)  # B² = 16, more than 2λ
    near_limit = BayesianLogisticRegression(prior_scale=8**-0.5 * 1.0001)
    for model in (weak, near_limit, BayesianLogisticRegression.unweighted()):
        assert typical(fitted(data, model))
        assert of_any_table(model, 4, added=True) is None
    assert not typical(fitted(data, BayesianLogisticRegression(prior_scale=8**-0.5 * 0.9999)))
    assert typical(fitted(data, training=Training(steps=3, seed=0, optim=_adam())))
    ridged = guides.FullRank(MODEL, ridge=1.0)
    assert typical(bdpvi.fit(MODEL, ridged, data, progress=False))
    low = guides.LowRank(MODEL, rank=2)
    assert typical(bdpvi.fit(MODEL, low, data, training=Training(steps=3), progress=False))
    counts = bdpvi.BayesianPoissonRegression.bounded(largest=4)
    assert typical(bdpvi.fit(counts, guides.FullRank(counts), data, progress=False))


def _adam() -> Any:
    import pyro

    return pyro.optim.Adam({"lr": 0.01})


def test_a_fit_that_rounding_keeps_away_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bdpvi.bayesian.optimum.influence._ROUNDING", 1e-6)
    with pytest.raises(FloatingPointError, match=r"guides\.Laplace is certified"):
        fitted(logistic(60))


def test_records_in_blocks_have_the_same_certificate(tmp_path: Path) -> None:
    data = logistic(300)
    rows = [
        f"{','.join(map(repr, x))},{y:g}"
        for x, y in zip(data.x.tolist(), data.y.tolist(), strict=True)
    ]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,c,y", *rows]))
    blocks = bdpvi.Table.of(tmp_path / "table.csv").numbers("y")
    here = fitted(data).panels[0]
    there = bdpvi.fit(MODEL, guides.FullRank(MODEL), blocks, progress=False).panels[0]
    assert here.influence is not None
    assert there.influence is not None
    assert there.influence.shift == pytest.approx(here.influence.shift, rel=1e-6)
    assert torch.allclose(here.pairs.b2.sum(1), there.pairs.b2.sum(1), rtol=1e-5)
    assert there.error is not None
