"""The generic accountant is what was published, and it is below the truth."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats
from studies import accountants, gaussian

from bdpvi._ground.progress import silent
from bdpvi.privacy.sampled_moments import subsampled_gaussian_cost


def log_moment(order: int, distance: float, noise: float, rate: float) -> float:
    """Return log ∫ p^(λ+1) q^(−λ) by quadrature, p the mixture; at rate 1, with the record."""

    def integrand(x: float) -> float:
        with_it = stats.norm.logpdf(x, distance, noise)
        without = stats.norm.logpdf(x, 0, noise)
        first = with_it
        if rate < 1:
            first = np.logaddexp(math.log(rate) + with_it, math.log1p(-rate) + without)
        return math.exp((order + 1) * first - order * without)

    edges = np.linspace(-10 * noise, (order + 1) * distance + 10 * noise, 40)
    return math.log(
        sum(integrate.quad(integrand, low, high, epsrel=1e-12)[0] for low, high in pairwise(edges))
    )


@pytest.mark.parametrize(("order", "distance"), [(1, 1.0), (4, 0.7), (9, 1.0)])
def test_the_generic_cost_is_q_squared_times_that_without_sampling(
    order: int, distance: float
) -> None:
    noise, rate = 1.3, 0.01
    lam = torch.tensor([float(order)], dtype=torch.float64)
    found = float(accountants.unsound_generic_cost(distance, noise, rate, lam))
    whole = log_moment(order, distance, noise, 1.0)
    assert found == pytest.approx(rate**2 * whole, rel=1e-8)


@pytest.mark.parametrize("order", [1, 10])
def test_it_is_below_the_log_moment_of_the_mixture(order: int) -> None:
    lam = torch.tensor([float(order)], dtype=torch.float64)
    true = log_moment(order, 1.0, 1.0, 0.01)
    exact = float(subsampled_gaussian_cost(1.0, 1.0, 0.01, lam))
    assert exact == pytest.approx(true, rel=1e-6)
    assert float(accountants.unsound_generic_cost(1.0, 1.0, 0.01, lam)) < 0.7 * true


def test_what_is_called_the_truth_is_at_most_the_epsilon_of_a_step_by_quadrature() -> None:
    noise, rate = 0.7, gaussian.ORDERS_RATE

    def excess(epsilon: float) -> float:
        """Return ∫ (p − e^ε q)⁺ − δ, which begins where p/q = e^ε."""
        ratio = (math.exp(epsilon) - 1 + rate) / rate
        start = noise**2 * math.log(ratio) + 0.5
        more = rate * stats.norm.sf(start, 1, noise)
        return (
            float(more + (1 - rate - math.exp(epsilon)) * stats.norm.sf(start, 0, noise))
            - gaussian.DELTA
        )

    true = optimize.brentq(excess, 1e-6, 5, xtol=1e-12)
    found = accountants.at_least(noise, rate, 1)
    assert 0.99 * true < found <= true


def test_nothing_it_claims_has_a_guarantee(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accountants, "MOST_STEPS", 300)
    monkeypatch.setattr(accountants, "NOISES", (0.6, 1.0))
    monkeypatch.setattr(accountants, "GRID", 1e-3)
    table = accountants.accountants(tmp_path, seed=0, track=silent, scale=0.003).table
    named = table["accountant"] == accountants.GENERIC
    assert "guarantees nothing" in accountants.GENERIC
    assert (table[named]["guarantee"] == "none").all()
    assert not table[~named]["below the truth"].any()
    low = table[named & (table["part"] == "sigma") & (table["sigma"] == 0.6)]
    assert low["below the truth"].all()
