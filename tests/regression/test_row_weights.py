"""Weights of records: what one adds, and estimates against fits without privacy or noise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from intervals import FAMILIES
from row_weights import released, sampled, without_privacy
from scipy.optimize import minimize
from torch import Tensor

from bdpvi.datasets.records import Held
from bdpvi.datasets.weights import shares_of
from bdpvi.models.poisson import PoissonScores
from bdpvi.noise.keys import Key
from bdpvi.regression.objective_plan import Facts, plan
from bdpvi.regression.perturbed_objective import Signed, SummedObjective
from bdpvi.regression.score_posterior import NormalPrior, sampling_variance
from bdpvi.regression.score_release import Measured, ScorePlan, measure
from bdpvi.regression.score_rounds import Place, summed
from bdpvi.releases.exact_sums import SLACK

NUMBER = st.floats(-1e6, 1e6, allow_nan=False)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(FAMILIES)),
    st.tuples(NUMBER, NUMBER),
    st.integers(-12, 12),
    st.floats(0.0, 1.0),
    st.tuples(NUMBER, NUMBER),
    st.floats(0.3, 5.0),
)
def test_no_weighted_record_moves_a_sum_by_more_than_the_bound(
    name: str,
    features: tuple[float, float],
    target: int,
    weight: float,
    point: tuple[float, float],
    radius: float,
) -> None:
    family = FAMILIES[name]
    number = (
        float(target > 0) if name == "logistic" else abs(target) if name != "linear" else target
    )
    x = torch.tensor([[*features, 1.0]], dtype=torch.float64)
    y, shares = torch.tensor([float(number)]).double(), torch.tensor([weight]).double()
    at = torch.tensor([*point, 0.5], dtype=torch.float64) / 1e3
    longest = family.longest(radius, 1.3, 0.3)
    for place in (
        Place(family, radius),
        Place(family, radius, at, 1.3),
        Place(family, radius, at, 1.3, longest),
    ):
        parts = place.parts(x, y, shares)
        moved = float(torch.linalg.vector_norm(summed(parts, x)))
        assert moved <= parts.bound * (1 + SLACK)
        assert moved == pytest.approx(float(parts.lengths(x)), rel=1e-7, abs=1e-12)
        whole = place.parts(x, y)
        assert parts.bound == whole.bound
        for one, other in zip(parts[:3], whole[:3], strict=True):
            if one is not None and other is not None:
                assert torch.allclose(one, other * weight, atol=1e-30)
        if parts.middle is not None:
            length = torch.linalg.vector_norm(x)
            scores = (weight * whole.score).abs()
            assert torch.allclose(parts.middle, torch.minimum(scores, longest / length).square())


@settings(max_examples=60, deadline=None)
@given(st.tuples(NUMBER, NUMBER), st.booleans(), st.floats(0.0, 1.0))
def test_no_weighted_record_moves_a_minimum_further_than_its_bound(
    features: tuple[float, float], target: bool, weight: float
) -> None:
    x, y, shares = table()
    made = plan(Facts(columns=2, rows=300), epsilon=1.0)
    slope = torch.tensor([2.0, -1.0, 3.0]).double()
    before = SummedObjective(made, Held(Signed.of(made, x, y, shares))).minimum(slope)
    x = torch.cat([x, torch.tensor([features]).double()])
    y = torch.cat([y, torch.tensor([float(target)]).double()])
    shares = torch.cat([shares, torch.tensor([weight]).double()])
    signed = Signed.of(made, x, y, shares)
    norms = torch.linalg.vector_norm(signed.signed, dim=1)
    assert float((signed.weights * norms).max()) <= made.clip
    assert float((signed.weights * norms**2).max()) <= made.bend * made.clip**2
    after = SummedObjective(made, Held(signed)).minimum(slope)
    assert float((after - before).norm()) <= weight * made.clip / made.ridge + 1e-9


def table(rows: int = 300, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return records whose weights depend on their targets."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    y = (torch.rand(rows, generator=generator) < torch.sigmoid(x[:, 0] - 0.5)).double()
    shares = torch.rand(rows, generator=generator, dtype=torch.float64)
    return x, y, torch.where(y == 1, shares, shares.sqrt())


def test_without_noise_a_weighted_minimum_is_that_of_the_formula() -> None:
    x, y, shares = table()
    made = plan(Facts(columns=2, rows=300), epsilon=5.0)
    zero = torch.zeros(3).double()
    found = SummedObjective(made, Held(Signed.of(made, x, y, shares))).minimum(zero)
    z = np.column_stack([x.clamp(-made.limit, made.limit).numpy(), np.full(300, 2.0)])
    size = np.linalg.norm(z, axis=1)
    omega = np.minimum(1, np.minimum(made.clip / size, 1.5 * made.clip**2 / size**2))
    sign = 2 * y.numpy() - 1

    def objective(w: np.ndarray) -> float:
        losses = np.logaddexp(0, -sign * (z @ w))
        return float((shares.numpy() * omega) @ losses + made.ridge * w @ w / 2)

    best = minimize(objective, np.zeros(3), method="BFGS", options={"gtol": 1e-7}).x
    assert found.numpy() == pytest.approx(best, abs=1e-5)
    ignored = SummedObjective.of(made, x, y).minimum(zero)
    assert float((found - ignored).abs().max()) > 0.05


def test_whole_weights_are_repeated_rows() -> None:
    x, y, _ = table()
    times = torch.arange(300) % 3 + 1
    made = plan(Facts(columns=2, rows=300), epsilon=1.0)
    w, often = torch.tensor([0.3, -1.0, 0.2]).double(), times.repeat_interleave(times)
    assert len(often) == 600
    once = SummedObjective(replace(made, ridge=1.0), Held(Signed.of(made, x, y, times / 3)))
    rows = (one.repeat_interleave(times, 0) for one in (x, y))
    many = SummedObjective.of(replace(made, ridge=3.0), *rows)
    assert torch.allclose(3 * once.gradient(w), many.gradient(w), atol=1e-10)
    assert torch.allclose(3 * once.curvature(w), many.curvature(w), atol=1e-10)


def noiseless(
    name: str, x: Tensor, y: Tensor, shares: Tensor | None = None, wide: float = 100.0
) -> Measured:
    """Return a release with next to no noise, in which no record is weighted down."""
    k = x.shape[1]
    family = PoissonScores(60.0) if name == "poisson" else FAMILIES[name]  # no count is cut
    made = ScorePlan.of(family, k, 1.0, len(x)).with_noise(1e-9)
    made = replace(made, radius=wide, weighted=shares is not None)
    prior = NormalPrior(torch.zeros(k).double(), torch.eye(k).double() * 1e-9)
    records = (x, y) if shares is None else (x, y, shares)
    return measure(made, Held(records), prior, Key.of_seed(0))


@pytest.mark.parametrize("name", ["logistic", "linear", "poisson"])
def test_without_noise_scores_give_the_weighted_fit_and_its_sandwich(name: str) -> None:
    x, y, weights = sampled(name, 3, 4_000, 1)
    shares = shares_of(weights, 8.0)
    found = noiseless(name, x, y, shares).of_features()
    best, sd = without_privacy(name, x, y, weights)
    ignored = without_privacy(name, x, y, torch.ones_like(weights))[0]
    near = 0.3 if name == "linear" else 0.05  # its scores are Huber's
    assert float(((found.mean - best) / sd).abs().max()) < near
    assert float(((ignored - best) / sd).abs().max()) > 3
    ratio = found.covariance.diagonal().sqrt() / sd
    assert float(ratio.min()) > 0.97
    assert float(ratio.max()) < 1.12


@pytest.mark.parametrize("name", ["logistic", "linear", "poisson"])
def test_without_noise_whole_weights_estimate_as_repeated_rows(name: str) -> None:
    x, y, _ = sampled(name, 3, 1_000, 2)
    times = torch.arange(len(x)) % 3 + 1
    for wide in (1.0, 100.0):
        once = noiseless(name, x, y, times / 3, wide).of_features()
        rows = x.repeat_interleave(times, 0), y.repeat_interleave(times, 0)
        many = noiseless(name, *rows, wide=wide).of_features()
        assert torch.allclose(once.mean, many.mean, atol=5e-4)


def test_the_share_of_the_assumed_variance_is_that_of_the_middle_and_its_noise() -> None:
    eye = torch.eye(2).double()
    middle = torch.diag(torch.tensor([0.3, 0.7]).double())
    noise = 1e-3
    found = sampling_variance(4 * eye, eye, 4 * middle, 4 * noise, weighted=True)
    share = 0.5 + noise * math.sqrt(2) / 2
    squared = noise**2 / 2 * (2**2 + 2)
    excess = (0.3 - share, 0.7 - share)
    kept = 1 - squared / (excess[0] ** 2 + excess[1] ** 2)
    expected = [4 * share, 4 * (share + kept * excess[1])]
    assert found.diagonal().tolist() == pytest.approx(expected, rel=1e-6)
    loud = sampling_variance(eye, eye, 0.1 * eye, 5.0, weighted=True)
    assert torch.allclose(loud, eye)  # the noise says nothing, and the model is believed
    part = sampling_variance(eye, eye[:, :1], 0.25 * eye, 0.0, weighted=True)
    assert part.diagonal().tolist() == [0.25, 1.0]


def test_weighted_intervals_cover_and_ignoring_the_weights_does_not() -> None:
    inside: list[Tensor] = []
    ignored: list[Tensor] = []
    for seed in range(40):
        x, y, weights = sampled("logistic", 3, 3_000, seed)
        truth = torch.tensor([1.0, -0.5, 0.25, -0.5]).double()
        for some, shares in ((inside, shares_of(weights, 8.0)), (ignored, None)):
            found = released("logistic", x, y, shares, 3.0, seed)
            sd = found.covariance.diagonal().sqrt()
            some.append((found.mean - truth).abs() < 1.96 * sd)
    covered = torch.stack(inside).double()
    assert float(covered.mean()) > 0.93
    assert float(covered.mean(0).min()) > 0.88
    assert float(torch.stack(ignored).double()[:, -1].mean()) < 0.1
