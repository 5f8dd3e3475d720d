"""Objective perturbation: its settings, its search, its law."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from scipy.stats import kstest
from simulated import logistic_data
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from bdpvi import BayesianLogisticRegression, Dataset, fit_private
from bdpvi.datasets.columns import Numeric, OneHot
from bdpvi.datasets.encoding import Encoding
from bdpvi.datasets.records import Held
from bdpvi.noise.keys import Key
from bdpvi.noise.secure import gaussian_sum, sum_step
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian_dp import gaussian_epsilon
from bdpvi.privacy.perturbed_objective import PerturbedObjective, calibrate, delta
from bdpvi.privacy.rounding import rounding_delta
from bdpvi.privacy.worst_case import epsilon as epsilon_of
from bdpvi.regression.objective import ObjectivePerturbation, improved, levels_of, seldom_of
from bdpvi.regression.objective_plan import (
    CONSTANT,
    LAST,
    Facts,
    Levels,
    ObjectivePlan,
    Rule,
    Seldom,
    plan,
)
from bdpvi.regression.perturbed_objective import (
    Signed,
    SummedObjective,
    perturbed_minima,
)
from bdpvi.releases.row_counts import magnitude

DELTA = 1e-5
TABLE = logistic_data(300, 3)


def settings(k: float = 1.0, ridge: float = 2.0, clip: float = 1.2) -> ObjectivePlan:
    event = PerturbedObjective(
        noise_multiplier=4.0, curvature=1.5 * clip**2 / ridge, residual=k, hiding=1e-3
    )
    return ObjectivePlan(
        facts=Facts(columns=3, rows=500, centre=math.log(1.5)), clip=clip, ridge=ridge, event=event
    )


def gradient(one: ObjectivePlan, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """Return the gradient of the objective without its slope, record by record, by autograd.

    The last weight is half the intercept.
    """
    z = w.clone().requires_grad_()
    centre = torch.tensor([0.0] * (len(w) - 1) + [one.facts.centre / 2]).double()
    total = one.ridge * (z - centre).square().sum() / 2
    for place, levels in one.seldom:
        mean = z[list(levels)].mean() if levels else 0.0
        total = total + (4 * one.sigma - one.ridge) / 2 * (z[place] - mean) ** 2
    k = one.event.residual
    for features, target in zip(x, y, strict=True):
        features = features.clamp(-one.limit, one.limit)
        for places in one.levels:
            features[list(places)] -= 1 / max(2, len(places))
        row = torch.cat([features, torch.tensor([2.0]).double()])
        size = float(row.norm())
        weight = min(1.0, one.clip / size, 1.5 * one.clip**2 / size**2)
        signed = (2 * target - 1) * (row @ z)
        if float(torch.sigmoid(-signed.detach())) > k:
            total = total - weight * k * signed
        else:
            total = total - weight * torch.nn.functional.logsigmoid(signed)
    return torch.autograd.grad(total, z)[0]


@pytest.mark.parametrize("seldom", [(), ((2, (0, 1)), (1, ()))])
@pytest.mark.parametrize("levels", [(), ((0, 2), (1,))])
@pytest.mark.parametrize("k", [1.0, 0.75, 0.5])
def test_its_gradient_is_the_slope(k: float, levels: Levels, seldom: Seldom) -> None:
    one, b = (
        replace(settings(k), seldom=seldom, levels=levels),
        5.0 * torch.tensor([1.0, -2.0, 0.5, 1.0]).double(),
    )
    w = SummedObjective.of(one, TABLE.x, TABLE.y).minimum(b)
    left = gradient(one, TABLE.x, TABLE.y, w) + b
    assert float(left.norm()) < one.tolerance
    assert float(w.norm()) > 0.5 / (1 + len(seldom))


def yes_and_no(columns: int, rows: int = 2_000) -> tuple[Tensor, Tensor]:
    """Return two features for each of some yes/no columns, and targets that follow half of them."""
    generator = torch.Generator().manual_seed(0)
    yes = (torch.rand(rows, columns, generator=generator) < 0.4).double()
    logits = 2 * yes[:, : columns // 2].sum(1) - 0.8 * (columns // 2)
    y = (torch.rand(rows, generator=generator) < torch.sigmoid(logits)).double()
    return torch.stack([1 - yes, yes], 2).flatten(1), y


def test_released_weights_are_for_features_of_which_nothing_was_taken() -> None:
    x, y = yes_and_no(4)
    taken = x - 0.5
    facts = Facts(columns=8, rows=2_000, sources=2.0)
    plain = plan(facts, epsilon=1.0)
    one = replace(plain, levels=((0, 1), (2, 3), (4, 5), (6, 7)))
    found = [perturbed_minima(a, b, y, Key.of_seed(1))[0] for a, b in ((one, x), (plain, taken))]
    assert torch.equal(*found)
    w, before = (improved(a, found[0].clone(), ())[0] for a in (one, plain))
    assert torch.equal(w[:-1], before[:-1])
    assert torch.allclose(x @ w[:-1] + w[-1], taken @ before[:-1] + before[-1], atol=1e-12)


def test_yes_no_columns_count_for_half_and_categories_for_less_than_one() -> None:
    columns = (
        Numeric("age", 40.0, 10.0),
        OneHot("sex", ("F", "M")),
        OneHot("job", ("a", "b", "c", "d")),
        OneHot("note", ("x",)),
    )
    model = BayesianLogisticRegression.unweighted(intercept=True)
    for unknown, extra in (("refuse", 0), ("other", 2)):
        encoding = Encoding(columns, "By law.", unknown=unknown)
        names = encoding.feature_names
        data = Dataset(
            torch.zeros(2, len(names)).double(),
            torch.tensor([0.0, 1.0]),
            feature_names=names,
            preprocessing={"encoding": encoding.to_dict()},
        )
        route = ObjectivePerturbation(rows=500).adapt(model, data, None)
        assert route.sources == pytest.approx(1 + 0.5 + 0.75 + 0.5)
        assert route.levels == levels_of(encoding, seldom_of(encoding))
        assert [len(one) for one in route.levels] == [2, 4, 1]
        assert route.levels[1][0] == route.levels[0][-1] + 1 + extra
        plain = BayesianLogisticRegression.unweighted(intercept=False)
        without = ObjectivePerturbation(rows=500).adapt(plain, data, None)
        assert (without.sources, without.levels) == (4, ())


def test_blanks_that_no_record_has_move_predictions_little() -> None:
    """Their weights are noise of deviation ¼ about the mean of their column's listed levels."""
    encoding = Encoding((Numeric("n", 0.0, 1.0), OneHot("c", ("u", "v"))), "x", unknown="other")
    g = torch.Generator().manual_seed(0)
    x = torch.zeros(4000, 6).double()
    x[:, 0] = torch.randn(4000, generator=g).double()
    x[:, 2:4] = torch.eye(2).double()[torch.arange(4000) % 2]
    y = (torch.rand(4000, generator=g) < torch.sigmoid(x[:, 0] + 2 * x[:, 2])).double()
    made = {"encoding": encoding.to_dict()}
    data = Dataset(x, y, feature_names=encoding.feature_names, preprocessing=made)
    model = BayesianLogisticRegression.unweighted(intercept=True)
    route = ObjectivePerturbation(rows=4000, draws=200, rule=Rule(shrinkage=0.0))
    found = fit_private(model, data, epsilon=3.0, route=route)
    w = found.latents["w"].double()
    mean = w[:, 2:4].mean(1)
    assert found.encoding is not None
    noise = torch.stack([w[:, 1], w[:, 4] - mean, w[:, 5] - mean])
    assert noise.std(1).tolist() == pytest.approx([0.25] * 3, rel=0.25)
    assert float(noise.mean(1).abs().max()) < 0.1
    assert "but 0.25 for blanks and unlisted levels" in found.receipt.about


def test_without_noise_or_weights_it_is_logistic_regression() -> None:
    one = replace(settings(clip=1e3), facts=Facts(columns=3, rows=500), limit=100.0)
    one = replace(one, event=replace(one.event, noise_multiplier=1e-3))
    w = SummedObjective.of(one, TABLE.x, TABLE.y).minimum(torch.zeros(4).double())
    design = np.column_stack([TABLE.x.numpy(), 2 * np.ones(300)])
    usual = LogisticRegression(C=1 / one.ridge, fit_intercept=False, tol=1e-10, max_iter=1000)
    usual.fit(design, TABLE.y.numpy())
    np.testing.assert_allclose(w.numpy(), usual.coef_[0], rtol=1e-4)


def test_what_is_released_has_the_law_that_is_charged() -> None:
    """One feature that is always 0 leaves one dimension: Pr[w ≤ v] = Φ(F(v)/σ)."""
    event = PerturbedObjective(
        noise_multiplier=2.0, curvature=0.5, residual=0.75, draws=1000, hiding=1e-3
    )
    one = ObjectivePlan(
        facts=Facts(columns=1, rows=50, centre=math.log(1.5)), clip=0.9, ridge=2.4, event=event
    )
    x, y = torch.zeros(30, 1).double(), (torch.arange(30) % 3 > 0).double()
    w = perturbed_minima(one, x, y, Key.of_seed(1))
    assert w.shape == (1000, 2)
    weight, v = min(1.0, 0.9 / 2, 1.5 * 0.81 / 4), w[:, 1].numpy()
    p = 1 / (1 + np.exp(-v))
    force = (
        2 * weight * (10 * np.minimum(p, 0.75) - 20 * np.minimum(1 - p, 0.75))
        + 2.4 * (v - math.log(1.5)) / 2
    )
    assert kstest(ndtr(force / one.sigma), "uniform").pvalue > 1e-3
    assert kstest(ndtr(2.4 * w[:, 0].numpy() / one.sigma), "uniform").pvalue > 1e-3


def test_the_slope_has_the_deviation_that_is_charged() -> None:
    """Without records w = w₀ − b/λ. Of 41,000 numbers the deviation is within 0.35 %, one sd."""
    event = PerturbedObjective(noise_multiplier=2.0, curvature=0.5, draws=1000, hiding=1e-3)
    one = ObjectivePlan(facts=Facts(columns=40, rows=50), clip=0.9, ridge=2.4, event=event)
    nobody = torch.zeros(0, 40).double(), torch.zeros(0).double()
    w = perturbed_minima(one, *nobody, Key.of_seed(2))
    said = ObjectivePerturbation().words(one)
    assert float(re.findall("standard deviation (.*)", said)[0]) == pytest.approx(
        float(w[:, :-1].std()), rel=0.01
    )
    w[:, -1] /= CONSTANT
    assert float(2.4 * w.std()) == pytest.approx(0.9 * 2.0, rel=0.007)
    places = w / sum_step(LAST)
    assert bool(((places - places.round()).abs() < 1e-3).all())


@pytest.mark.parametrize("levels", [(), ((0, 1, 2),)])
def test_weights_bound_any_record(levels: Levels) -> None:
    generator = torch.Generator().manual_seed(0)
    one = replace(settings(), limit=1e9, levels=levels)
    x = torch.randn(100_000, 3, generator=generator, dtype=torch.float64)
    x *= torch.logspace(-6, 14, 100_000, dtype=torch.float64)[:, None]
    objective: Any = SummedObjective.of(one, x, torch.ones(100_000)).parts.first()
    norms = torch.linalg.vector_norm(objective.signed, dim=1)
    assert float((objective.weights * norms).max()) <= one.clip
    assert float((objective.weights * norms**2).max()) <= 1.5 * one.clip**2
    assert float((objective.weights * norms**2).max()) > 1.499 * one.clip**2
    assert one.event.curvature == 1.5 * one.clip**2 / one.ridge


@pytest.mark.parametrize("k", [1.0, 0.5])
def test_no_record_moves_the_minimum_further_than_its_gradient(k: float) -> None:
    one = settings(k)
    b = 4.0 * torch.tensor([0.3, -1.0, 2.0, 0.1]).double()
    before = SummedObjective.of(one, TABLE.x, TABLE.y).minimum(b)
    for far in (0.0, 1.0, 1e12):
        for target in (0.0, 1.0):
            x = torch.cat([TABLE.x, far * torch.ones(1, 3).double()])
            y = torch.cat([TABLE.y, torch.tensor([target]).double()])
            moved = float((SummedObjective.of(one, x, y).minimum(b) - before).norm())
            assert 0 < moved <= k * one.clip / one.ridge


def wild() -> dict[str, tuple[Tensor, Tensor]]:
    x, ones = TABLE.x, torch.ones(300).double()
    return {
        "usual": (x, TABLE.y),
        "one class": (x, ones),
        "zeros": (0 * x, TABLE.y),
        "collinear": (x[:, :1].repeat(1, 3), TABLE.y),
        "far out": (1e12 * x, TABLE.y),
        "separable": (10 * x, (x[:, 0] > 0).double()),
        "one row": (x[:1], ones[:1]),
        "no row": (x[:0], ones[:0]),
    }


@pytest.mark.parametrize("name", wild())
@pytest.mark.parametrize("k", [1.0, 0.5])
def test_every_search_ends(name: str, k: float) -> None:
    x, y = wild()[name]
    for ridge, clip, limit in ((0.1, 3.0, 10.0), (1e3, 0.1, 2.0), (2.0, 1.2, 2.0)):
        one = replace(settings(k, ridge, clip), limit=limit)
        one = replace(one, event=replace(one.event, hiding=0.01))
        for size in (0.0, 1.0, 1e3):
            b = size * gaussian_sum(torch.zeros(4), 1.0, Key.of_seed(3))
            w = SummedObjective.of(one, x, y).minimum(b)
            left = float((gradient(one, x, y, w) + b).norm())
            assert left <= one.tolerance


def test_rounding_is_bounded() -> None:
    """The gradient against one in extended precision, at w of any size."""
    one, random = replace(settings(0.75), limit=50.0), np.random.default_rng(0)
    one, apart = replace(one, seldom=((2, (0, 1)),)), np.array([-0.5, -0.5, 1, 0], np.longdouble)
    x = torch.from_numpy(random.normal(size=(5000, 3)) * np.exp(random.normal(size=(5000, 1))))
    y = torch.from_numpy((random.random(5000) < 0.5).astype(float))
    objective = SummedObjective.of(one, x, y)
    signed, weights = (
        t.numpy().astype(np.longdouble)
        for t in (objective.parts.first().signed, objective.parts.first().weights)
    )
    for size in (0.1, 1.0, 30.0):
        w = torch.from_numpy(size * random.normal(size=4))
        exact = np.minimum(1 / (1 + np.exp(signed @ w.numpy().astype(np.longdouble))), 0.75)
        exact = -(weights * exact) @ signed + np.longdouble(one.ridge) * (
            w.numpy().astype(np.longdouble) - np.array([0, 0, 0, math.log(1.5) / 2])
        )
        exact += np.longdouble(one.extra_ridge) * apart * (apart @ w.numpy().astype(np.longdouble))
        error = float(np.linalg.norm((objective.gradient(w).numpy() - exact).astype(float)))
        assert error < objective.rounding(w) < 1e-8


def test_a_tolerance_out_of_reach_is_an_error() -> None:
    one = settings()
    with pytest.raises(FloatingPointError, match="nothing is released"):
        perturbed_minima(replace(one, event=replace(one.event, hiding=1e-13)), TABLE.x, TABLE.y)


@pytest.mark.parametrize("epsilon", [0.05, 0.2, 1.0, 5.0])
@pytest.mark.parametrize(("columns", "rows"), [(5, 1e3), (20, 1e4), (60, 1e3), (5, 1e6)])
def test_settings_follow_the_rule_and_cost_what_they_may(
    columns: int, rows: float, epsilon: float
) -> None:
    one = plan(Facts(columns=columns, rows=rows), epsilon=epsilon)
    clip, k = 0.75 * math.sqrt(columns + 4), one.event.residual
    mu = distance(epsilon)
    assert one.clip == clip
    spread = math.sqrt((columns + 4) * (columns + 1))
    assert k == pytest.approx(min(1, max(0.5, 0.02 * mu * rows / spread)), rel=1e-6)
    floor, shrinking = 1.5 * clip**2 / epsilon, 4 * (columns + 1) * (k * clip / mu) ** 2 / rows
    assert one.ridge == pytest.approx(max(floor, shrinking), rel=1e-6)
    assert one.event.curvature == pytest.approx(1.5 * clip**2 / one.ridge)
    spent = delta([one.event], epsilon) + rounding_delta(one.event.rounding, epsilon)
    assert 0.999 * DELTA < spent <= DELTA
    assert one.event.rounding < 1e-29
    # τ leaves room for a slope that is rounded to its lattice.
    assert math.sqrt(columns + 1) * sum_step(one.sigma) < one.tolerance / 40
    assert one.tolerance <= one.event.hiding * one.ridge * LAST / 2
    if k == 1:
        assert 1 <= one.event.noise_multiplier * mu < 1.001
    else:
        assert (
            k < one.event.noise_multiplier * mu < (1.01 * k if one.ridge > 4 * floor else 1.15 * k)
        )


def distance(epsilon: float) -> float:
    low, high = 1e-4, 20.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (
            (middle, high) if gaussian_epsilon(middle**2, DELTA) < epsilon else (low, middle)
        )
    return low


@pytest.mark.parametrize("share", [0.0, 0.2, 0.8])
@pytest.mark.parametrize("draws", [1, pytest.param(4, marks=pytest.mark.slow), 100])
@pytest.mark.parametrize("rows", [1e3, 1e6])
def test_the_price_of_company_is_within_its_bounds(share: float, draws: int, rows: float) -> None:
    epsilon = 0.5
    mu = distance(epsilon)
    variance = share * mu**2
    one = plan(Facts(columns=10, rows=rows), epsilon=epsilon, draws=draws, variance=variance)
    k, event = one.event.residual, one.event
    spent = delta([event], epsilon, variance) + rounding_delta(event.rounding, epsilon)
    assert 0.999 * DELTA < spent <= DELTA
    left = distance(epsilon) ** 2 - variance
    endless = calibrate(
        replace(event, curvature=0.0, residual=1.0),
        epsilon=epsilon,
        delta=DELTA,
        variance=variance,
    )
    price = event.noise_multiplier / (k * endless.noise_multiplier)
    assert 0.98 < price <= (1.032 if k == 1 else 1.15)
    assert endless.noise_multiplier > 0.999 * math.sqrt(draws / left)


def test_a_plan_with_what_was_bought_is_within_epsilon() -> None:
    """One worst case for constants, draws and a Poisson-sampled run together."""
    bought = SampledGaussian(noise_multiplier=20.0)
    one = plan(Facts(columns=10, rows=1e4), epsilon=1.0, variance=1 / 400, draws=2)
    found = epsilon_of([bought, one.event], DELTA)
    assert found is not None
    assert found.by == "objective perturbation"
    assert 0.9999 < found.epsilon <= 1
    alone = epsilon_of([one.event], DELTA)
    run = SampledGaussian(noise_multiplier=2.0, rate=0.01, steps=100)
    more = epsilon_of([one.event, run, bought], DELTA)
    assert alone is not None
    assert more is not None
    assert alone.epsilon < 1 < more.epsilon
    # A Poisson sample of everybody is no sample.
    whole = replace(bought, rate=1 - 1e-12)
    again = epsilon_of([one.event, whole], DELTA)
    assert again is not None
    assert found.epsilon * (1 - 1e-4) <= again.epsilon <= found.epsilon * 1.003


def test_rows_and_base_rate_are_public_facts() -> None:
    assert [magnitude(n) for n in (10, 14, 15, 31, 32, 70, 72, 9e11)] == [
        10, 10, 20, 20, 50, 50, 100, 1e12
    ]  # fmt: skip
    facts = Facts(columns=5, rows=39_073, centre=-2.0, sources=5)
    assert facts == Facts(columns=5, rows=50_000, centre=-2.0, sources=5)
    one = plan(facts, epsilon=1.0)
    assert one.clip == 2.25
    assert plan(Facts(columns=5, rows=1e5), epsilon=1.0).limit == 4.0
    other = plan(facts, epsilon=1.0, rule=Rule(scale=1.0, bend=2.0))
    assert other.clip == 3.0
    assert other.event.curvature * other.ridge == pytest.approx(2.0 * 9.0)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"columns": 0}, "columns"),
        ({"rows": 9}, "rows"),
        ({"rows": 2e12}, "rows"),
        ({"rows": math.nan}, "rows"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"draws": 0}, "draws"),
        ({"variance": -1.0}, "variance"),
        ({"variance": 9.0}, "variance=9.0 uses up epsilon=1.0"),
        ({"sources": 0}, "sources"),
        ({"centre": math.inf}, "centre"),
        ({"centre": 1.0, "intercept": False}, "centre"),
        ({"scale": 0.0}, "scale"),
        ({"bend": 0.9}, "bend"),
        ({"residual": -1.0}, "residual"),
        ({"shrinkage": -1.0}, "shrinkage"),
    ],
)
def test_facts_out_of_range(changed: dict[str, float], name: str) -> None:
    rest: dict[str, Any] = {"columns": 5, "rows": 1e4, "epsilon": 1.0, **changed}
    facts = {n: rest.pop(n) for n in list(rest) if n in Facts.__annotations__}
    rule = {n: rest.pop(n) for n in list(rest) if n in Rule.__annotations__}
    with pytest.raises(ValueError, match=name):
        plan(Facts(**facts), rule=Rule(**rule), **rest)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: perturbed_minima(settings(), TABLE.x[:, :2], TABLE.y), "shapes"),
        (lambda: perturbed_minima(settings(), TABLE.x, TABLE.y[:9]), "shapes"),
        (lambda: perturbed_minima(settings(), TABLE.x, 2 * TABLE.y), "y must be 0 or 1"),
    ],
)
def test_bad_records(call: Callable[[], object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        call()


@pytest.mark.parametrize("rows", [2e7, 1e9, 1e11])
@pytest.mark.parametrize(("columns", "epsilon"), [(3, 0.2), (20, 1.0), (60, 5.0)])
def test_a_search_over_very_many_rows_ends(rows: float, columns: int, epsilon: float) -> None:
    """Its rows are copies of a few, each with the weight of all its copies."""
    few, one = (
        logistic_data(1000, columns),
        plan(Facts(columns=columns, rows=rows), epsilon=epsilon),
    )
    made, copies = Signed.of(one, few.x, few.y), rows / 1000
    many = replace(made, weights=made.weights * copies, sizes=made.sizes * copies)
    objective = SummedObjective(one, Held(many))
    objective.records = int(rows)
    w = objective.minimum(torch.full((columns + 1,), one.sigma).double())
    assert objective.rounding(w) <= one.tolerance / 2
    least = float(torch.linalg.eigvalsh(objective.curvature(w)).min())
    assert one.ridge < 2e-3 * least  # weights shrink by at most this share
