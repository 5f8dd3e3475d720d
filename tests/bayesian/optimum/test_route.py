"""The optimum route against brute-force searches, and its parts against slow independent sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from accounts import Accountant
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial.hermite_e import herme2poly
from simulated import logistic_data
from test_inversion import one_dimension
from torch import Tensor
from torch.distributions import MultivariateNormal

from bdpvi import BayesianLogisticRegression, Dataset, Training, datasets, fit
from bdpvi._ground.progress import silent
from bdpvi.bayesian import Add, Remove
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs, summarise
from bdpvi.bayesian.inference.svi import Problem, default_optimiser
from bdpvi.bayesian.neighbours.rows import RowFits
from bdpvi.bayesian.optimum.displacements import Moves
from bdpvi.bayesian.optimum.elbo import Objective, Point, start
from bdpvi.bayesian.optimum.enclosing import enclosing
from bdpvi.bayesian.optimum.expansion import Expansion
from bdpvi.bayesian.optimum.newton import climb
from bdpvi.bayesian.optimum.packed import (
    indices,
    monomials,
    pack,
    third_moments,
    unpack,
)
from bdpvi.bayesian.optimum.panels import pairs
from bdpvi.bayesian.optimum.route import Optimum
from bdpvi.bayesian.optimum.search import search
from bdpvi.bayesian.optimum.series import changes, heat, truncation_bound
from bdpvi.bayesian.optimum.weighted import Weighted
from bdpvi.guides import FullRank, GaussianGuide, MeanField
from bdpvi.models.clipped import ClippedBernoulli
from bdpvi.models.quadrature import derivatives
from bdpvi.noise.batches import BatchPlan
from bdpvi.privacy.gaussian import equal_covariance

GUIDES = [FullRank, MeanField]
ORDERS = torch.tensor([1.5, 4.0, 16.0], dtype=torch.float64)


def problem(
    data: Dataset, guide: type[GaussianGuide], clip: float | None, rate: float = 1.0
) -> Problem:
    model = BayesianLogisticRegression.unweighted(clip=clip, intercept=True)
    return Problem(model, guide(model), data, BatchPlan(steps=1, rate=rate), default_optimiser(1))


def objective(data: Dataset, guide: type[GaussianGuide], clip: float | None) -> Objective:
    model = BayesianLogisticRegression.unweighted(clip=clip, intercept=True)
    return Objective(Weighted.of(model, data), 1.0, guide is MeanField)


def optimum(data: Dataset, guide: type[GaussianGuide], clip: float | None) -> Point:
    return climb(start(objective(data, guide, clip)), 1e-13)[-1]


def brute(data: Dataset, guide: type[GaussianGuide], clip: float | None, near: Point) -> Point:
    """Return the optimum found by a search, begun at a point far beyond any tolerance."""
    return climb(objective(data, guide, clip).at(near.mean * 0.9, near.metric * 1.1), 1e-13)[-1]


def records(point: Point) -> Weighted:
    assert isinstance(point.objective.records, Weighted)
    return point.objective.records


def gaussian(point: Point) -> MultivariateNormal:
    return MultivariateNormal(point.mean, point.root @ point.root.T)


def joined(data: Dataset, heldout: Dataset, i: int) -> Dataset:
    return Dataset(
        torch.cat([data.x, heldout.x[i : i + 1]]), torch.cat([data.y, heldout.y[i : i + 1]])
    )


def divergences(pairs: GaussianPairs) -> Tensor:
    return torch.cat([pairs.renyi(ORDERS), pairs.reverse().renyi(ORDERS)])


def assert_bounds(found: Tensor, exact: Tensor) -> None:
    assert bool((found >= exact * (1 - 1e-9)).all())
    # An error of 1e-7 in the covariance is paid for with about (1e-7)^⅔ of the divergence.
    torch.testing.assert_close(found, exact, rtol=3e-4, atol=1e-12)


def unenlarged(here: Point, rows: RowFits, clip: float | None) -> GaussianPairs:
    """Return the pairs before the proven errors are added."""
    model = BayesianLogisticRegression.unweighted(clip=clip, intercept=True)
    expansion = Expansion(here, 1e-12)
    moves = Optimum(precision=1e-11).moves(expansion, Weighted.of(model, rows.records), rows.sign)
    return expansion.coordinates.pairs(moves.m, moves.y)


def outlier(data: Dataset, record: int, size: float) -> Dataset:
    x = data.x.clone()
    x[record] *= size
    return Dataset(x, data.y)


DATA = {
    "plain": logistic_data(60, 3),
    "outliers": outlier(outlier(logistic_data(60, 3), 7, 30.0), 8, -12.0),
    "separable": Dataset(logistic_data(40, 2).x, (logistic_data(40, 2).x[:, 0] > 0).double()),
    "duplicates": Dataset(logistic_data(10, 2).x.repeat(4, 1), logistic_data(10, 2).y.repeat(4)),
    "more features than records": logistic_data(9, 12),
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.whole
def test_neighbours_equal_searches_from_scratch(
    name: str,
    guide: type[GaussianGuide],
    clip: float | None,
) -> None:
    data = DATA[name]
    here = optimum(data, guide, clip)
    chosen = [0, 1, 3, 7, 8]
    rows = RowFits("remove", data.select(torch.tensor(chosen)), -1.0)
    found = divergences(unenlarged(here, rows, clip))
    for column, record in enumerate(chosen):
        there = brute(data.without(record), guide, clip, here)
        exact = divergences(summarise(gaussian(here), gaussian(there)))[:, 0]
        torch.testing.assert_close(found[:, column], exact, rtol=1e-8, atol=1e-13)


@pytest.mark.parametrize("guide", GUIDES)
def test_joining_records_equals_searches_from_scratch(guide: type[GaussianGuide]) -> None:
    data, heldout = logistic_data(60, 3), outlier(logistic_data(5, 3, seed=1), 2, 20.0)
    new = Dataset(heldout.x, heldout.y, ids=torch.arange(60, 65))
    remove, add = (
        Optimum(Remove(5), Add(new), precision=1e-9).train(problem(data, guide, 0.5), silent).panels
    )
    assert (remove.kind, add.kind) == ("remove", "add")
    here = optimum(data, guide, 0.5)
    for i in range(5):
        there = brute(joined(data, heldout, i), guide, 0.5, here)
        exact = divergences(summarise(gaussian(here), gaussian(there)))[:, 0]
        assert_bounds(divergences(add.pairs)[:, i], exact)


@pytest.mark.parametrize("guide", GUIDES)
def test_features_give_the_change_of_the_variance_to_the_last_digit(
    guide: type[GaussianGuide],
) -> None:
    here = optimum(logistic_data(60, 3), guide, None)
    coordinates = Expansion(here).coordinates
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    e = coordinates.features(x)
    y = torch.randn(len(e), 1, generator=generator, dtype=torch.float64)
    along = (x * (unpack(coordinates.matrix(y))[0] @ x)).sum(0)
    # Either side has sums of no more than q products, and few roundings in each factor.
    rounding = 2 * (len(e) + 16) * 2.0**-53 * float((2 * e.abs().T @ y[:, 0].abs()).max())
    torch.testing.assert_close(2 * e.T @ y[:, 0], along, rtol=0, atol=rounding)


def polynomial_misses(expansion: Expansion, z: Tensor) -> Tensor:
    """Return the error of the data's polynomial, by a pass over the data."""
    exact, error, _ = expansion.exact(z, 0.0)
    linear = (expansion.fixed - expansion.jacobian) @ z
    missed: Tensor = (exact - linear - expansion.polynomial(z)).norm(dim=0)
    assert bool((error < 0.01 * missed).all())
    return missed


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("degree", [2, 3])
@pytest.mark.whole
def test_errors_claimed_by_polynomials_hold(
    guide: type[GaussianGuide], clip: float | None, degree: int
) -> None:
    data, new = logistic_data(6000, 4), logistic_data(40, 4, seed=1)
    here = optimum(data, guide, clip)
    expansion = expanded(here, degree)
    model = BayesianLogisticRegression.unweighted(clip=clip, intercept=True)
    terms = expansion.terms(Weighted.of(model, new))
    moves = expansion.solve(terms, 1.0)
    z = torch.cat([moves.m, moves.y])
    assert bool((polynomial_misses(expansion, z) <= expansion.truncation_error(z)).all())
    proven = moves.error.isfinite().nonzero()[:, 0].tolist()
    assert len(proven) >= 10
    for record in proven[::4]:
        m, y = expansion.coordinates.locate(brute(joined(data, new, record), guide, clip, here))
        distance = math.hypot(
            float((m[:, 0] - moves.m[:, record]).norm()),
            float((y[:, 0] - moves.y[:, record]).norm()),
        )
        assert distance <= float(moves.error[record])


def expanded(point: Point, degree: int) -> Expansion:
    """Return an expansion with the polynomial of this degree."""
    expansion = Expansion(point, 1e-13)
    expansion.tensors.pop(3, None)
    if degree == 3:
        expansion.tensors[3] = expansion.cubic()
    return expansion


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("degree", [2, 3])
def test_bound_is_about_what_is_missed_where_all_records_agree(diagonal: bool, degree: int) -> None:
    x, bound = torch.tensor([[0.7], [math.inf]], dtype=torch.float64).expand(2, 2000)
    same = Weighted(x.unsqueeze(1), bound, torch.ones_like(bound))
    here = climb(start(Objective(same, 1.0, diagonal)), 1e-12)[-1]
    expansion = expanded(here, degree)
    z = torch.tensor([[0.1, 0.01, -0.05, 0.05], [0.0, 0.001, 0.002, 0.01]], dtype=torch.float64)
    ratio = polynomial_misses(expansion, z) / expansion.truncation_error(z)
    assert bool(((ratio <= 1) & (ratio > 0.7)).all())


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_every_neighbour_is_as_accurate_as_proven(
    guide: type[GaussianGuide], clip: float | None
) -> None:
    data = logistic_data(1500, 4)
    here = optimum(data, guide, clip)
    expansion = Expansion(here, 1e-12)
    moves = Optimum().moves(expansion, records(here), -1.0)
    distance = (moves.m.square().sum(0) + moves.y.square().sum(0)).sqrt()
    order = distance.argsort().tolist()
    for record in [*order[:5], *order[100::280], *order[-5:]]:
        there = brute(data.without(record), guide, clip, here)
        while (more := there.step(1.0)).gradient_norm < there.gradient_norm / 2:
            there = more
        m, y = expansion.coordinates.locate(there)
        missed = math.hypot(
            float((m[:, 0] - moves.m[:, record]).norm()),
            float((y[:, 0] - moves.y[:, record]).norm()),
        )
        assert missed <= float(moves.error[record])
        assert missed <= 3e-5 * max(float(distance[record]), expansion.typical)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("grow", [0.0, 0.1])
@pytest.mark.parametrize("allowed", [1e-8, math.inf])
def test_a_pass_claims_what_its_series_leave_out(
    guide: type[GaussianGuide], grow: float, allowed: float
) -> None:
    data = logistic_data(500, 4)
    expansion = Expansion(optimum(data, guide, 0.5), 1e-12)
    terms = expansion.terms(records(expansion.point))
    d = len(terms.x)
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(len(expansion.jacobian), 6, generator=generator, dtype=torch.float64)
    # From moves that a short series will do for to moves that the longest is too short for.
    z *= torch.tensor([1e-3, 0.01, 0.1, 0.3, 1.0, 2.0]) / z.norm(dim=0)
    z[d:] *= grow  # variances stay positive
    claims = []
    for column in z.split(1, 1):
        found, claimed, _ = expansion.exact(column, allowed)
        mean, variance = expansion.point.logit(records(expansion.point))
        deviation = variance.sqrt()
        shift = mean + deviation * (terms.x.T @ column[:d])[:, 0]
        grown = variance * (1 + 2 * (terms.e.T @ column[d:])[:, 0])
        bound = records(expansion.point).mark
        first, second = derivatives(shift, grown, bound, 2)[1:]
        first = first * deviation / grown.sqrt() - terms.slopes[1]
        second = second * variance / grown - terms.slopes[2]
        exact = torch.cat([terms.x @ first, terms.e @ second])
        missed = float((found[:, 0] - exact).norm())
        assert missed <= float(claimed) + 1e-13 * len(data)
        claims.append((missed, float(claimed)))
    if math.isinf(allowed):
        assert claims[-1][0] > 1e-6  # there the claim of short series is put to the test
    else:
        assert all(claimed < 1e-8 for _, claimed in claims)  # by integrals where series are long


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_fit_is_a_stationary_point_of_the_elbo_of_the_pyro_model(
    guide: type[GaussianGuide], clip: float | None
) -> None:
    data = outlier(logistic_data(60, 3), 7, 5.0)
    p = problem(data, guide, clip)
    parameters = Optimum().train(p, silent).parameters
    model = p.model
    assert isinstance(model, BayesianLogisticRegression)
    design = model.design(data.x)
    t = torch.linspace(-9, 9, 4001, dtype=torch.float64)
    weight = torch.exp(-t * t / 2) * (t[1] - t[0]) / math.sqrt(2 * math.pi)
    free = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    scale = free["scale_tril"].tril() if guide is FullRank else torch.diag(free["scale"])
    spread = (design @ scale).norm(dim=1, keepdim=True)
    logit = (design @ free["loc"]).unsqueeze(1) + spread * t
    bound = model.slope_bound(design).unsqueeze(1)
    likelihood = (
        ClippedBernoulli(logit, bound) if clip else torch.distributions.Bernoulli(logits=logit)
    )
    value = (likelihood.log_prob(data.y.unsqueeze(1).expand_as(logit)) * weight).sum()
    elbo = (
        value
        - (free["loc"].square().sum() + scale.square().sum()) / 2
        + scale.diagonal().log().sum()
    )
    for gradient in torch.autograd.grad(elbo, list(free.values())):
        assert float(gradient.abs().max()) < 1e-6


def test_fit_does_not_depend_on_where_the_search_starts() -> None:
    here = optimum(logistic_data(60, 3), FullRank, 0.5)
    far = here.objective.at(torch.full_like(here.mean, 3.0), 10 * here.metric)
    again = climb(far, 1e-12)[-1]
    torch.testing.assert_close(again.mean, here.mean, rtol=0, atol=1e-11)
    torch.testing.assert_close(again.root, here.root, rtol=0, atol=1e-11)


def test_refusals_say_what_is_wrong(data: Dataset) -> None:
    with pytest.raises(ValueError, match=r"rate=0\.5"):
        Optimum().train(problem(data, FullRank, None, rate=0.5), silent)
    with pytest.raises(ValueError, match=r"tolerance .* nan"):
        Optimum(tolerance=math.nan)
    other = problem(data, FullRank, None)
    plain = Problem(lambda x, y=None: None, other.guide, data, other.plan, other.optim)
    with pytest.raises(ValueError, match="model="):
        Optimum().train(plain, silent)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("size", [1e3, 1e5, 1e12])
@pytest.mark.parametrize("where", ["one value", "one record", "all"])
def test_any_table_is_answered_where_the_sensitivity_is_public(
    guide: type[GaussianGuide], size: float, where: str
) -> None:
    data = logistic_data(12, 2)
    x = data.x.clone()
    if where == "one value":
        x[4, 1] = size
    elif where == "one record":
        x[4] = size
    else:
        x *= size
    model = BayesianLogisticRegression(clip=0.5, prior_scale=0.7)
    result = fit(
        model,
        guide(model, noise_scale=0.1),
        Dataset(x, data.y),
        neighbours=Optimum(),
        training=Training(device="cpu"),
        progress=False,
    )
    (panel,) = result.panels
    public = (0.5 * 0.7**2 / 0.1) ** 2
    assert panel.largest is not None
    assert public <= panel.largest <= public * (1 + 1e-4)
    assert float(panel.pairs.b2.max()) <= panel.largest
    assert float(panel.pairs.b2.min()) >= 0


def test_a_neighbour_that_nothing_is_proven_of_costs_the_public_sensitivity() -> None:
    here, model = optimum(logistic_data(12, 2), FullRank, 0.5), BayesianLogisticRegression(clip=0.5)
    moves = Moves(torch.zeros(3, 2).double(), torch.zeros(6, 2).double(), torch.zeros(2).double())
    moves.error[1] = math.inf
    guide = FullRank(model, noise_scale=0.1)
    expansion = Expansion(here)
    assert pairs(expansion, moves, guide, 25.0).b2.flatten().tolist() == [0.0, 25.0]


@pytest.mark.parametrize("guide", GUIDES)
def test_distance_bounds_that_of_the_optimum(guide: type[GaussianGuide]) -> None:
    best = optimum(outlier(logistic_data(60, 3), 7, 30.0), guide, 0.5)
    for mean, metric in ((1.001, 1.0), (1.0, 1.001), (1.3, 0.7)):
        near = best.objective.at(mean * best.mean, metric * best.metric)
        away = torch.cat([(near.mean - best.mean), (near.root - best.root).flatten()]).norm()
        assert float(away) <= near.distance <= 1e3 * float(away)


def test_a_search_says_how_far_it_may_have_ended() -> None:
    point = optimum(logistic_data(60, 3), FullRank, 0.5)
    one = records(point).select(slice(0, 1))
    expansion = Expansion(point, 1e-12)
    assert float(search(expansion, one, -1.0, "").error) < 1e-9
    there = brute(logistic_data(60, 3).without(0), FullRank, 0.5, point)
    m, y = expansion.coordinates.locate(there)
    for tolerance in (1e-4, 1e-6):
        found = search(Expansion(point, tolerance), one, -1.0, "")
        away = torch.cat([found.m - m, found.y - y]).norm()
        assert float(away) <= float(found.error) < 1e3 * tolerance
    with pytest.raises(FloatingPointError, match="record 0 removed cannot be certified"):
        search(Expansion(point, 1e-2), one, -1.0, " 0")


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("ones", [0, 1])
def test_tables_of_one_class_are_answered(guide: type[GaussianGuide], ones: int) -> None:
    data = logistic_data(20, 2)
    y = (torch.arange(20) < ones).double()
    here = optimum(Dataset(data.x, y), guide, 0.5)
    found = (
        Optimum(precision=1e-7)
        .train(problem(Dataset(data.x, y), guide, 0.5), silent)
        .panels[0]
        .pairs
    )
    there = brute(Dataset(data.x, y).without(0), guide, 0.5, here)
    exact = divergences(summarise(gaussian(here), gaussian(there)))[:, 0]
    assert_bounds(divergences(found)[:, 0], exact)


def exact_derivatives(m: float, v: float, c: float) -> list[float]:
    """Return E ℓ, √v E ℓ′, v E ℓ″ and v E ℓ″ He_1 by mpmath, split at the knee."""
    with mpmath.workdps(30):
        knee = mpmath.log((1 - c) / c) if c < 1 else -mpmath.inf
        root = mpmath.sqrt(v)

        def mean(f: Callable[[mpmath.mpf, mpmath.mpf], mpmath.mpf]) -> mpmath.mpf:
            cut = (knee - m) / root
            points = sorted({-14, *range(-12, 13, 2), 14, max(min(cut, 14), -14)})
            return mpmath.quad(lambda t: f(m + root * t, t) * mpmath.npdf(t), points)

        def log_likelihood(a: mpmath.mpf) -> mpmath.mpf:
            if a >= knee:
                return -mpmath.log1p(mpmath.exp(-a))
            return -mpmath.log1p(mpmath.exp(-knee)) + c * (a - knee)

        def curvature(a: mpmath.mpf) -> mpmath.mpf:
            p = 1 / (1 + mpmath.exp(a))
            return -p * (1 - p) if a >= knee else mpmath.mpf(0)

        return [
            float(mean(lambda a, _: log_likelihood(a))),
            float(root * mean(lambda a, _: min(1 / (1 + mpmath.exp(a)), c))),
            float(v * mean(lambda a, _: curvature(a))),
            float(v * mean(lambda a, t: curvature(a) * t)),
        ]


@pytest.mark.parametrize(
    ("m", "v", "c"),
    [(0.3, 0.01, 1.0), (-4.0, 1.0, 1.0), (2.0, 30.0, 1.0), (0.9, 0.04, 0.25), (-3.0, 0.5, 0.25),
     (1.2, 9.0, 0.4), (30.0, 2.0, 0.1)],
)  # fmt: skip
def test_derivatives_equal_integrals_by_mpmath(m: float, v: float, c: float) -> None:
    mean, variance, bound = (torch.tensor([z], dtype=torch.float64) for z in (m, v, c))
    found = derivatives(mean, variance, bound, 3)[:, 0]
    exact = torch.tensor(exact_derivatives(m, v, c), dtype=torch.float64)
    torch.testing.assert_close(found, exact, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("deviation", [4.5, 60.0, 1e3, 1e5, 1e12])
@pytest.mark.parametrize(("place", "c"), [(-2.0, 1.0), (0.1, 0.6), (0.7, 1e-3), (0.3, 1e-12)])
def test_derivatives_of_wide_logits_equal_integrals_by_mpmath(
    deviation: float, place: float, c: float
) -> None:
    """In the standard deviations z of the logit, where ℓ is curved for |z| < 40/√v."""
    with mpmath.workdps(40):
        m, root = mpmath.mpf(place * deviation), mpmath.mpf(deviation)
        knee = mpmath.log((1 - mpmath.mpf(c)) / c) if c < 1 else mpmath.mpf(-90)
        cuts = [u for u in range(-90, 120, 10) if u > knee]
        ends = [(u - m) / root for u in [knee, *cuts]]

        @cache  # the orders' integrals are sums over the same places
        def curvature(z: mpmath.mpf) -> mpmath.mpf:
            return mpmath.sech((m + root * z) / 2) ** 2 / 4

        @cache
        def weight(z: mpmath.mpf) -> mpmath.mpf:
            return curvature(z) * mpmath.npdf(z)

        def integral(k: int) -> mpmath.mpf:
            hermite = [int(one) for one in reversed(herme2poly([0] * k + [1]))]
            return mpmath.quad(lambda z: weight(z) * mpmath.polyval(hermite, z), ends)

        slope = mpmath.quad(lambda z: curvature(z) * mpmath.ncdf(z), ends) * root
        orders = (2, 3, 9, 17)
        exact = [float(root * slope), *(float(-(root**2) * integral(k - 2)) for k in orders)]
    mean, variance, bound = (
        torch.tensor([z], dtype=torch.float64) for z in (float(m), deviation**2, c)
    )
    found = derivatives(mean, variance, bound, 17)[:, 0]
    unit = deviation * min(c, 1.0)
    for k, value in zip((1, *orders), exact, strict=True):
        allowed = 2e-13 * unit * math.sqrt(math.factorial(max(k - 2, 0)))
        assert abs(float(found[k]) - value) <= allowed


@pytest.mark.parametrize(
    ("m", "v", "c"), [(0.3, 2.5e-3, 1.0), (-2.0, 1e-4, 1.0), (1.6, 1e-3, 0.25), (9.0, 1e-6, 0.5)]
)
def test_derivatives_of_narrow_logits_equal_integrals_by_mpmath(
    m: float, v: float, c: float
) -> None:
    def exact(k: int) -> float:
        """Return v E ℓ″ He_k; the knee is either out of sight or there is none."""

        def term(t: mpmath.mpf) -> mpmath.mpf:
            before, hermite = mpmath.mpf(0), mpmath.mpf(1)
            for degree in range(k):
                before, hermite = hermite, t * hermite - degree * before
            p = 1 / (1 + mpmath.exp(m + mpmath.sqrt(v) * t))
            return -p * (1 - p) * hermite * mpmath.npdf(t)

        with mpmath.workdps(30):
            return float(v * mpmath.quad(term, range(-12, 13, 4)))

    mean, variance, bound = (torch.tensor([z], dtype=torch.float64) for z in (m, v, c))
    found = derivatives(mean, variance, bound, 17)[:, 0]
    first = torch.tensor(exact_derivatives(m, v, c), dtype=torch.float64)
    torch.testing.assert_close(found[:4], first, rtol=1e-12, atol=1e-15 * v)
    for k in (2, 3, 6, 11, 15):
        allowed = 1e-15 * v * math.sqrt(math.factorial(k))
        assert abs(float(found[2 + k]) - exact(k)) <= allowed


@given(
    m=st.floats(-20, 20),
    v=st.floats(1e-6, 50),
    c=st.floats(0.01, 1.5),
    a=st.floats(-0.4, 0.4),
    s=st.floats(-0.3, 0.3),
)
def test_series_and_its_bound_against_the_moved_integral(
    m: float, v: float, c: float, a: float, s: float
) -> None:
    mean, variance, bound = (torch.tensor([z], dtype=torch.float64) for z in (m, v, c))
    slopes = derivatives(mean, variance, bound, 13)
    for k in range(2, 14):
        assert float(slopes[k].abs()) <= v / 4 * math.sqrt(math.factorial(k - 2)) * (1 + 1e-9)
    shift, grow = torch.tensor([a], dtype=torch.float64), torch.tensor([s], dtype=torch.float64)
    moved = derivatives(mean + shift * variance.sqrt(), variance * (1 + grow), bound, 2)
    scale = torch.tensor([1.0, 1 + s], dtype=torch.float64).sqrt()
    for n, change in zip((1, 2), changes(slopes, shift, grow, 11), strict=True):
        exact = moved[n] / (scale[1] ** n) - slopes[n]
        beyond = heat(shift.abs(), grow.abs(), 12)[-1]
        allowed = truncation_bound(beyond, grow.abs(), 11, n) * v / 4
        assert float((change - exact).abs()) <= float(allowed) + 1e-12 * max(v, math.sqrt(v))


def test_third_moments_equal_products_of_quadratures() -> None:
    mean = torch.tensor([[0.3], [-0.7]], dtype=torch.float64)
    root = torch.tensor([[0.5, 0.0], [0.4, 0.9]], dtype=torch.float64)
    node, weight = (torch.from_numpy(z) for z in np.polynomial.hermite_e.hermegauss(8))
    grid = torch.cartesian_prod(node, node).T
    weights = torch.cartesian_prod(weight, weight).prod(1) / (2 * math.pi)
    sample = (mean + root @ grid)[indices(2, 3)].prod(0)
    torch.testing.assert_close(monomials(mean + root @ grid, 3), sample, rtol=1e-13, atol=0)
    covariance = (root @ root.T).unsqueeze(0)
    torch.testing.assert_close(unpack(pack(covariance)), covariance, rtol=0, atol=0)
    found = third_moments(mean, pack(covariance))[:, 0]
    torch.testing.assert_close(found, sample @ weights, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.whole
def test_more_than_fifty_features_are_answered_by_passes_and_searches(
    guide: type[GaussianGuide],
) -> None:
    data = logistic_data(72, 79)
    here = optimum(data, guide, 0.5)
    expansion = Expansion(here, 1e-12)
    assert not expansion.tensors
    moves = Optimum().moves(expansion, records(here), -1.0)
    assert bool((moves.error <= 1e-3).all())
    for record in (0, 71):
        m, y = expansion.coordinates.locate(brute(data.without(record), guide, 0.5, here))
        away = torch.cat([moves.m[:, [record]] - m, moves.y[:, [record]] - y]).norm()
        assert float(away) <= float(moves.error[record])


@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1e-2, 1e-4, 1e-6]),
    error=st.sampled_from([0, 1e-7, 1e-6]),
)
def test_enclosing_pairs_cost_more_than_anything_within_the_errors(
    seed: int, size: float, error: float
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def symmetric(norm: float) -> Tensor:
        a = random(3, 3)
        scaled: Tensor = norm * (a + a.T) / torch.linalg.matrix_norm(a + a.T, 2)
        return scaled

    def pair(mean: Tensor, change: Tensor) -> GaussianPairs:
        fitted = MultivariateNormal(torch.zeros_like(mean), torch.eye(3, dtype=torch.float64))
        return summarise(fitted, MultivariateNormal(mean, torch.eye(3) + change))

    mean, change, nudge = 0.1 * random(3), symmetric(size), random(3)
    claimed = enclosing(
        pair(mean, change),
        torch.full((1,), error, dtype=torch.float64),
        torch.full((1,), error, dtype=torch.float64),
    )
    truth = pair(mean + error * nudge / nudge.norm(), change + symmetric(error))
    orders = torch.tensor([1.1, 5.0, 100.0, 5e3, 100_001], dtype=torch.float64)
    for upper, lower in ((claimed, truth), (claimed.reverse(), truth.reverse())):
        assert bool((upper.renyi(orders) >= lower.renyi(orders) * (1 - 1e-8)).all())


@pytest.mark.parametrize("size", [0.3, 1e-2, 1e-3])
@pytest.mark.parametrize("eta", [1e-4, 1e-7, 1e-9])
@pytest.mark.parametrize("rho", [0.0, 1e-3, 1e-6])
def test_the_channel_of_enclosing_pairs_exists(size: float, eta: float, rho: float) -> None:
    """Its noise has a covariance of at least K = 1 - a - 2η/h - κ′, read off what is returned."""
    draw = partial(torch.rand, 20, 3, generator=torch.Generator().manual_seed(0))
    change = size * (draw(dtype=torch.float64) + 0.1)
    beta2 = size * (draw(dtype=torch.float64) + 0.1)
    r = 1 / (1 + change)
    errors = (torch.full((20,), error, dtype=torch.float64) for error in (rho, eta))
    claimed = enclosing(GaussianPairs(r, beta2 * r), *errors)
    covariance, mean2 = 1 / claimed.r, claimed.b2 / claimed.r
    # √a u has the mean β, and beside the noise's own part of I the covariance E + ηI.
    a = beta2 / mean2[:, :3]
    torch.testing.assert_close(a * (covariance[:, :3] - 1), change + eta, rtol=1e-9, atol=0)
    h = 1 - covariance[:, 3:6]
    for_mean = rho**2 / mean2[:, 6:] if rho else torch.zeros(20, 1, dtype=torch.float64)
    assert bool((covariance[:, 6] == 1).all())
    spent = 2 * eta / h + for_mean
    # A thousandth of what is spent is ten times less than an error of 1 % in either part.
    assert bool((1 - a - spent >= -1e-3 * torch.minimum(2 * eta / h, spent)).all())


def delta(pair: GaussianPairs, epsilon: float) -> float:
    """Return δ of u, v and w of :func:`enclosing`: over u and v by a dense sum, over w exactly."""
    z = torch.linspace(-9, 9, 721, dtype=torch.float64)
    weight = torch.exp(-z * z / 2) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    r, b2 = pair.r[0], pair.b2[0]
    # log p/q at x = b + √r z, p = N(b, r) and q = N(0, 1).
    u, v = (
        ((b2[i].sqrt() + r[i].sqrt() * z).square() - z.square() - r[i].log()) / 2 for i in (0, 1)
    )
    rest = epsilon - (u.unsqueeze(1) + v).flatten()
    each = torch.cat([equal_covariance(b2[2], part) for part in rest.split(2**14)])
    return float(each @ torch.outer(weight, weight).flatten())


@pytest.mark.parametrize(
    ("beta", "change", "error"),
    [
        (4e-5, 1.7e-5, 1.1e-5),  # Rényi divergences of orders up to 1e5 do not see what is here
        *((0.5, change, error) for change in (-0.3, 0.0, 1e-3) for error in (1e-5, 2e-3)),
        *((beta, change, 2e-3) for beta in (0.0, 0.02) for change in (-1e-3, 0.0, 0.3)),
    ],
)
@pytest.mark.whole
def test_enclosing_pairs_are_harder_to_hide_than_anything_within_the_errors(
    beta: float, change: float, error: float
) -> None:
    def pair(beta: float, change: float) -> GaussianPairs:
        r = torch.tensor([[1 / (1 + change)]], dtype=torch.float64)
        return GaussianPairs(r, beta**2 * r)

    rho = torch.full((1,), beta / 50, dtype=torch.float64)
    claimed = enclosing(pair(beta, change), rho, torch.full((1,), error, dtype=torch.float64))
    both = claimed, claimed.reverse()
    compared = 0
    for epsilon in (1e-6, 1e-5, 1e-4, 1.1e-4, 1e-2, 0.1, 1.0, 3.0):
        bounds = [delta(p, epsilon) for p in both]
        for mean in (-1.0, 0.0, 1.0):
            for turn in (-1.0, 0.0, 1.0):
                mean_there, change_there = abs(beta + mean * float(rho)), change + turn * error
                if mean_there == change_there == 0:
                    continue
                truth = pair(mean_there, change_there)
                for bound, true in zip(bounds, (truth, truth.reverse()), strict=True):
                    exact = one_dimension(float(true.r), float(true.b2), epsilon)
                    if exact > 1e-12:
                        assert bound >= exact * (1 - 1e-6)
                        compared += 1
    assert compared


def test_abalone_as_measured_before(uci: Path) -> None:
    split = datasets.abalone.load_abalone(uci)
    model = BayesianLogisticRegression(clip=0.25)
    data = split.train.to("cpu")
    p = Problem(model, FullRank(model), data, BatchPlan(steps=1), default_optimiser(1))
    trained = Optimum(precision=1e-7).train(p, silent)
    (panel,) = trained.panels
    assert float(panel.pairs.r.log().abs().max()) == pytest.approx(0.031, abs=0.001)
    accountant = Accountant(conversion="cks")
    accountant.step(GuideDraws((panel,), 1, 10.0))
    assert accountant.get_epsilon(delta=1e-5) == pytest.approx(0.244, rel=0.02)
    here = climb(start(Objective(Weighted.of(model, data), 1.0, False)), 1e-12)[-1]
    cost = panel.pairs.renyi(30.0)
    for record in [*cost.topk(3).indices.tolist(), 0, 1000, 2000]:
        changed = Objective(records(here).without(record), 1.0, False)
        there = climb(changed.at(here.mean, here.metric), 1e-12)[-1]
        exact = float(summarise(gaussian(here), gaussian(there)).renyi(30.0))
        assert exact <= float(cost[record]) <= exact * (1 + 3e-4)
