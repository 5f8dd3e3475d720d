"""Costs of mechanisms against integration of their definitions and another library."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.privacy.conversions import epsilon
from bdpvi.privacy.sampled_moments import subsampled_gaussian_cost

Density = Callable[[mpmath.mpf], mpmath.mpf]


def float64(values: list[list[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def pair(r: float, b2: float) -> GaussianPairs:
    """N(b, r) and N(0, 1)."""
    return GaussianPairs(float64([[r]]), float64([[b2]]))


def log_moment(p: Density, q: Density, order: float) -> float:
    """log E_p (p/q)^order by integration, in units where both spread over about 1."""
    with mpmath.workdps(20):
        moment = mpmath.quad(
            lambda w: p(w) * mpmath.exp(order * (mpmath.log(p(w)) - mpmath.log(q(w)))),
            [-40, -20, -10, -4, 0, 4, 10, 20, 40],
        )
        return float(mpmath.log(moment))


def densities(r: float, b2: float, rate: float) -> tuple[Density, Density]:
    """The release with the record in the data (a mixture) and without."""

    def without(w: mpmath.mpf) -> mpmath.mpf:
        return mpmath.npdf(w, 0, 1)

    def with_record(w: mpmath.mpf) -> mpmath.mpf:
        seen = mpmath.npdf(w, mpmath.sqrt(b2), mpmath.sqrt(r))
        return (1 - mpmath.mpf(rate)) * without(w) + rate * seen

    return with_record, without


@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("noise", [0.4, 1.0, 4.0, 30.0])
def test_a_distance_of_one_is_the_renyi_accountant(rate: float, noise: float) -> None:
    orders = torch.tensor([1, 2, 3, 10, 31, 63, 255])
    theirs = rdp_privacy_accountant._compute_rdp_poisson_subsampled_gaussian(
        rate, noise, (orders + 1).tolist()
    )
    ours = subsampled_gaussian_cost(1.0, noise, rate, orders) / orders
    # Theirs adds log-moments near 0 to 1, which rounds them by 1e-16.
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("rate", [1e-6, 0.02, 0.7])
@pytest.mark.parametrize("scale", [1e-6, 0.03, 1.0, 8.0])
@pytest.mark.parametrize("order", [1, 4, 40])
def test_gaussian_cost_keeps_its_digits(rate: float, scale: float, order: int) -> None:
    with mpmath.workdps(60):
        q, half = mpmath.mpf(rate), mpmath.mpf(scale) ** 2 / 2
        n = order + 1
        moment = mpmath.fsum(
            mpmath.binomial(n, k) * q**k * (1 - q) ** (n - k) * mpmath.exp(k * (k - 1) * half)
            for k in range(n + 1)
        )
        exact = float(mpmath.log(moment))
    cost = subsampled_gaussian_cost(2 * scale, 2.0, rate, order)
    assert float(cost) == pytest.approx(exact, rel=1e-12)


def test_gaussian_cost_is_the_definition_integrated() -> None:
    for rate, scale, order in ((0.01, 0.25, 10), (0.2, 0.7, 3), (0.5, 1.5, 2)):
        with_record, without = densities(1.0, scale**2, rate)
        cost = float(subsampled_gaussian_cost(scale, 1.0, rate, order))
        assert cost == pytest.approx(log_moment(with_record, without, order), rel=1e-9)
        assert cost >= log_moment(without, with_record, order)


def test_published_epsilon_and_what_the_printed_maximum_would_make_of_it() -> None:
    rate, noise, steps, orders = 0.005, 1.2, 2000, torch.arange(1, 100)
    cost = steps * subsampled_gaussian_cost(1.0, noise, rate, orders)
    assert float(epsilon(cost, orders, 1e-3, "chernoff").min()) == pytest.approx(0.919, rel=1e-3)


def test_gaussian_cost_of_many_records_is_that_of_each() -> None:
    distance = torch.cat([torch.zeros(1), torch.logspace(-6, 1.5, 30_000)]).double()
    orders = torch.tensor([1, 5, 99])
    together = subsampled_gaussian_cost(distance, 0.5, 0.01, orders)
    assert together.shape == (3, 30_001)
    assert together[:, 0].tolist() == [0.0, 0.0, 0.0]
    assert bool((together.diff(dim=1) > 0).all())
    for i in (1, 100, 15_000, 25_000, 30_000):
        alone = subsampled_gaussian_cost(distance[i], 0.5, 0.01, orders)
        torch.testing.assert_close(together[:, i], alone, rtol=1e-12, atol=0)


@settings(deadline=None)
@given(
    distance=st.floats(0, 20), rate=st.floats(1e-4, 1), order=st.integers(1, 60),
    noise=st.floats(0.3, 30),
)  # fmt: skip
def test_sampling_never_costs_and_everything_is_gaussian_at_rate_one(
    distance: float, rate: float, order: int, noise: float
) -> None:
    gaussian = order * (order + 1) * distance**2 / (2 * noise**2)
    cost = float(subsampled_gaussian_cost(distance, noise, rate, order))
    assert 0 <= cost <= gaussian * (1 + 1e-12)
    assert float(subsampled_gaussian_cost(distance, noise, 1.0, order)) == pytest.approx(
        gaussian, rel=1e-12
    )
    less = subsampled_gaussian_cost(distance, noise, rate / 2, order)
    assert float(less) <= cost * (1 + 1e-12)


def test_enormous_costs_stay_numbers() -> None:
    assert float(subsampled_gaussian_cost(1e3, 1e-2, 1e-3, 50)) == pytest.approx(
        50 * 51 / 2 * 1e10 + 51 * math.log(1e-3), rel=1e-12
    )


def posterior_draws_cost(
    pairs: GaussianPairs, order: Any, draws: int = 1, temperature: float = 1.0
) -> Tensor:
    panel = Panel("add", torch.arange(len(pairs)), pairs, largest=1.0)
    event = GuideDraws((panel,), draws, temperature)
    assert set(event.records) == {"add D‖D′", "add D′‖D"}
    return event.cost("add D‖D′", torch.as_tensor(order))


@pytest.mark.parametrize("temperature", [1.0, 7.0])
@pytest.mark.parametrize("order", [0.3, 2.0, 4.5])
def test_posterior_draws_against_integration(temperature: float, order: float) -> None:
    r, b2, draws = 1.1, 0.3, 3
    spread = mpmath.sqrt(temperature)
    exact = log_moment(
        lambda w: mpmath.npdf(w, math.sqrt(b2), spread * math.sqrt(r)),
        lambda w: mpmath.npdf(w, 0, spread),
        order,
    )
    cost = posterior_draws_cost(pair(r, b2), order, draws, temperature)
    assert cost.tolist() == pytest.approx([draws * exact], rel=1e-6)


@settings(deadline=None)
@given(
    r=st.floats(0.8, 1.2), b2=st.floats(0, 2), order=st.floats(0.1, 3), draws=st.integers(1, 50),
    temperature=st.floats(1, 100),
)  # fmt: skip
def test_more_draws_never_cost_less_and_heat_never_costs(
    r: float, b2: float, order: float, draws: int, temperature: float
) -> None:
    pairs = pair(r, b2)
    cost = float(posterior_draws_cost(pairs, order, draws))
    assert cost <= float(posterior_draws_cost(pairs, order, draws + 1))
    warmer = float(posterior_draws_cost(pairs, order, draws, temperature))
    floor = float(posterior_draws_cost(pair(r, 0.0), order, draws))
    assert floor * (1 - 1e-12) <= warmer <= cost * (1 + 1e-12)


ONE, BROKEN, NAN = torch.ones(2), torch.tensor(1.5), torch.tensor(math.nan)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: subsampled_gaussian_cost(-ONE, 1.0, 0.1, 2), "distance .* got -1.0"),
        (lambda: subsampled_gaussian_cost(math.nan, 1.0, 0.1, 2), "distance .* got nan"),
        (lambda: subsampled_gaussian_cost(ONE, 0.0, 0.1, 2), "noise .* got 0.0"),
        (lambda: subsampled_gaussian_cost(ONE, math.nan, 0.1, 2), "noise .* got nan"),
        (lambda: subsampled_gaussian_cost(ONE, 1.0, 0.0, 2), "rate .* got 0.0"),
        (lambda: subsampled_gaussian_cost(ONE, 1.0, 1.1, 2), "rate .* got 1.1"),
        (lambda: subsampled_gaussian_cost(ONE, 1.0, math.nan, 2), "rate .* got nan"),
        (lambda: subsampled_gaussian_cost(ONE, 1.0, 0.1, 0), "order .* got 0.0"),
        (lambda: subsampled_gaussian_cost(ONE, 1.0, 0.1, BROKEN), "order .* whole .* got 1.5"),
        (lambda: subsampled_gaussian_cost(ONE, 1.0, 0.1, NAN), "order .* got nan"),
        (lambda: posterior_draws_cost(pair(1.1, 1.0), -1.0), "order .* got -1.0"),
        (lambda: posterior_draws_cost(pair(1.1, 1.0), 1.0, draws=0), "draws .* got 0"),
        (lambda: posterior_draws_cost(pair(1.1, 1.0), 1.0, 1, 0.0), "temperature .* got 0.0"),
    ],
)
def test_bad_input_is_named(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def exact_log_mgf(r: list[float], b2: list[float], s: float, temperature: float) -> float:
    """Return log E (p/q)^s of Gaussians, by its closed form in 60 digits."""
    with mpmath.workdps(60):
        total = mpmath.mpf(0)
        for one, b in zip(map(mpmath.mpf, r), map(mpmath.mpf, b2), strict=True):
            w = 1 - s * (one - 1)
            total += s * (mpmath.mpf(s) + 1) * b / (temperature * w) - mpmath.log(w)
            total -= s * mpmath.log(one)
        return float(total / 2)


@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1e-9, 1e-6, 1e-4, 1e-2, 0.3]),
    direction=st.booleans(),
)
def test_close_pairs_cost_what_all_pairs_do(seed: int, size: float, direction: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, b = torch.rand(2, 3, 2, generator=generator, dtype=torch.float64)
    pairs = GaussianPairs(1 + size * (x - 0.5), size * b)
    pairs = pairs.reverse() if direction else pairs
    orders = torch.tensor([0.2, 1.0, 30.0, 2000.0], dtype=torch.float64)
    found = posterior_draws_cost(pairs, orders, draws=2, temperature=3.0)
    for row, s in zip(found.tolist(), orders.tolist(), strict=True):
        for cost, r, b2 in zip(row, pairs.r.tolist(), pairs.b2.tolist(), strict=True):
            if max(s * (one - 1) for one in r) >= 1:
                assert cost == math.inf
                continue
            exact = 2 * exact_log_mgf(r, b2, s, 3.0)
            assert exact * (1 - 1e-12) <= cost <= exact * (1 + 1e-11)
