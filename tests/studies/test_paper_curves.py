"""The curves and remarks of the papers are what independent computations say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from paper_curves import activation_price, deltas, generated, recovered
from scipy import integrate, optimize, stats
from torch.nn import functional as F


def test_delta_of_a_step_is_that_by_quadrature() -> None:
    noise, rate, epsilon = 0.7, 0.05, 0.3

    def mixture(x: float) -> float:
        return float((1 - rate) * stats.norm.pdf(x, 0, noise) + rate * stats.norm.pdf(x, 1, noise))

    def excess(x: float, remove: bool) -> float:
        one, other = mixture(x), float(stats.norm.pdf(x, 0, noise))
        return max((one - math.exp(epsilon) * other) * (1 if remove else 0), 0.0) + max(
            (other - math.exp(epsilon) * one) * (0 if remove else 1), 0.0
        )

    truth = max(
        integrate.quad(excess, -8, 9, args=(remove,), limit=400, points=[0.5, 1, 2])[0]
        for remove in (True, False)
    )
    generic, moments, renyi, losses = deltas(noise, rate, 1, epsilon)
    assert losses == pytest.approx(truth, rel=1e-3)
    assert generic < truth < losses * (1 + 1e-6) < renyi < moments


def test_delta_of_the_moments_accountant_is_the_least_over_all_orders() -> None:
    noise, rate, steps, epsilon = 1.1, 0.02, 200, 0.8
    found = []
    for order in range(1, 257):
        k = np.arange(order + 2)
        terms = stats.binom.logpmf(k, order + 1, rate) + k * (k - 1) / (2 * noise**2)
        moment = float(np.logaddexp.reduce(terms))
        found.append(steps * moment - order * epsilon)
    assert deltas(noise, rate, steps, epsilon)[1] == pytest.approx(math.exp(min(found)), rel=1e-9)


@pytest.mark.parametrize(("noise", "passes"), [(5.0, 1), (5.0, 100), (50.0, 400)])
def test_activations_cost_a_gaussian_mechanism_of_twice_the_clip_a_pass(
    noise: float, passes: int
) -> None:
    mu = 2 * math.sqrt(passes) / noise

    def delta(epsilon: float) -> float:
        far = float(stats.norm.logcdf(-mu / 2 - epsilon / mu))
        return float(stats.norm.cdf(mu / 2 - epsilon / mu)) - math.exp(epsilon + far)

    expected = optimize.brentq(lambda e: math.log(max(delta(e), 1e-300) / 1e-5), 1e-3, 90)
    assert activation_price(noise, passes) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("noise", [0.0, 1.0, 1e3])
def test_a_gradient_below_the_noise_is_a_multiple_of_the_record(noise: float) -> None:
    assert recovered(noise) > 1 - 1e-9
    x = torch.arange(1.0, 4.0, dtype=torch.float64)
    weight = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    F.softplus((weight @ x + noise * torch.randn(2)) / (1 + noise)).sum().backward()
    assert weight.grad is not None
    assert torch.allclose(weight.grad[0] / weight.grad[0, 0], x, rtol=1e-9)


def test_generators_of_clients_make_as_many_rows_of_each_class() -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 100)
    x = random.standard_normal((300, 4)) + 20 * labels[:, None]
    for clients in (1, 5):
        rows, classes = generated(x, labels, seed=1, clients=clients)
        assert (np.bincount(classes) == 100).all()
        assert np.abs(rows.mean(1) - 20 * classes).max() < 5
