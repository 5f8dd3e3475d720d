"""The accountant by itself gives the figures that papers and other accountants have."""

from __future__ import annotations

import math

import pytest
import torch

from bdpvi import BayesianAccountant
from bdpvi.bayesian import Accounting

JAELKOE = [
    # Jälkö, Dikmen and Honkela (UAI 2017), Abalone and Adult: δ, T, q, σ, ε by moments, by losses.
    (1e-3, 1000, 0.05, 1.22, 7.2584, 5.5651),
    (1e-3, 2000, 0.005, 0.4, 32.5928, 14.9826),
    (1e-3, 2000, 0.005, 1.2, 0.9190, 0.5382),
    (1e-3, 2000, 0.005, 2.0, 0.4609, 0.2480),
]
MNIST = [
    # MNIST, 690 steps at q = 512/59000: noise z, δ, worst-case ε and P(A).
    (0.85, 1e-5, 1.982, 0.879),
    (0.85, 1e-10, 4.150, 0.984),
    (1.68, 1e-5, 0.553, 0.635),
    (1.68, 1e-10, 0.944, 0.720),
    (4.0, 1e-5, 0.191, 0.548),
]
"""As docs/benchmarks/reproduction.txt has them."""


def steps(
    noise: float, rate: float, number: int, conversion: str | None = None
) -> BayesianAccountant:
    """Return steps at the largest norm for everybody: what any record may cost."""
    accountant = BayesianAccountant(accounting=Accounting(conversion=conversion))
    for part in (number // 3, number - number // 3):
        accountant.step(noise, rate, torch.ones(4), steps=part, scope="static")
    return accountant


@pytest.mark.parametrize(("delta", "number", "rate", "noise", "moments", "losses"), JAELKOE)
def test_the_published_prices_of_training(
    delta: float, number: int, rate: float, noise: float, moments: float, losses: float
) -> None:
    accountant = steps(noise, rate, number, conversion="chernoff")
    by_moments = accountant.cost(delta)
    assert by_moments.bayesian is not None
    assert by_moments.worst_case is not None
    # It is the worst case, which implies it, where moments have more.
    assert by_moments.bayesian.epsilon == pytest.approx(losses, abs=6e-5)
    assert by_moments.worst_case.epsilon == pytest.approx(losses, abs=6e-5)
    found = accountant.account._estimated(delta, None)
    assert found is not None
    assert found.epsilon == pytest.approx(moments, abs=6e-5)


@pytest.mark.parametrize(("noise", "delta", "epsilon", "success"), MNIST)
def test_the_reported_noise_of_networks(
    noise: float, delta: float, epsilon: float, success: float
) -> None:
    found = steps(noise, 512 / 59000, 690).cost(delta).worst_case
    assert found is not None
    assert found.epsilon == pytest.approx(epsilon, abs=6e-4)
    by_pair = (math.exp(found.epsilon) + delta) / (1 + math.exp(found.epsilon))
    assert by_pair == pytest.approx(success, abs=6e-4)
    assert found.attack_success is not None
    assert 0.5 < found.attack_success < success  # by the whole curve
