"""The published schemes for federated learning: what they claim against what is true."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import optimize, stats
from studies import federated

from bdpvi._ground.progress import silent


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    out: Path = tmp_path_factory.mktemp("federated")
    return federated.federated(out, seed=0, track=silent, scale=0.5).table


def log_moment(
    p: list[tuple[float, float, float]], q: list[tuple[float, float, float]], order: int
) -> float:
    """Return log E_P (P/Q)^λ of mixtures of normals (weight, mean, sd), by summing on a grid."""
    w = np.linspace(-60, 120, 1_800_001)

    def density(parts: list[tuple[float, float, float]]) -> np.ndarray:
        each = [math.log(c) + stats.norm.logpdf(w, mean, sd) for c, mean, sd in parts if c]
        return np.asarray(np.logaddexp.reduce(each, axis=0))

    ratio = density(p)
    total = np.exp((order + 1) * ratio - order * density(q)).sum() * (w[1] - w[0])
    return math.log(total)


def sampled(noise: float, rate: float, order: int, distance: float) -> float:
    with_it = [(1 - rate, 0.0, noise), (rate, distance, noise)]
    return log_moment(with_it, [(1.0, 0.0, noise)], order)


def test_sequential_claim_and_the_sum_are_what_quadrature_says() -> None:
    order = torch.tensor(8)
    claim = float(federated.sequential(20, 50, 0.7, 0.4, order, distance=0.5))
    assert claim == pytest.approx(20 * sampled(0.7, 0.4 / 50, 8, 0.5), rel=1e-5)
    truth = float(federated.released_sum(9, 0.7, 0.4, order, distance=0.5))
    assert truth == pytest.approx(sampled(0.7 * 3, 0.4, 8, 0.5), rel=1e-5)


def test_the_sequential_claim_is_never_below_the_truth_for_the_full_sum(
    table: pd.DataFrame,
) -> None:
    cells = table[table["part"] == "cells"]
    assert len(cells) == 126
    assert cells["ratio"].min() == pytest.approx(1.0182, abs=2e-4)


def test_whoever_sees_less_than_the_full_sum_sees_more_than_the_claim(table: pd.DataFrame) -> None:
    seen = table[table["part"] == "observers"].set_index("what")
    ratio = seen["ratio"]
    assert ratio["the sum of 100 known of 1,000"] == pytest.approx(0.0102, rel=0.01)
    assert ratio["the update of one client, all 1,000 taking part"] == pytest.approx(1e-3, rel=0.03)
    assert ratio["the sum of 100 secret of 1,000, a coin for every client"] < 0.11
    assert ((seen["ratio"] >= 1) == (seen["verdict"] == "sound")).all()


def test_a_far_update_betrays_the_coin_of_its_client() -> None:
    coin, rate, distance, order = 0.3, 0.4, 0.8, 3
    cost = sampled(1.0, rate, order, distance)
    bound = float(federated.betrayed(torch.tensor(cost, dtype=torch.float64), coin))

    def truth(rest: float) -> float:
        without = [(1 - coin, 0.0, 1.0), (coin, rest, 1.0)]
        with_it = [
            (1 - coin, 0.0, 1.0),
            (coin * (1 - rate), rest, 1.0),
            (coin * rate, rest + distance, 1.0),
        ]
        return log_moment(with_it, without, order)

    assert truth(25.0) == pytest.approx(bound, rel=1e-4)
    assert truth(0.0) < truth(2.0) < bound


@pytest.mark.parametrize(("order", "power"), [(1, 1.0), (6, 1.0), (1, 2.0)])
def test_departing_noise_is_what_quadrature_says(order: int, power: float) -> None:
    wide = (10 / 9) ** (power / 2)
    pairs = ((wide, 1.0), (1.0, wide))
    each = [log_moment([(1, 0.0, a)], [(1, 0.0, b)], order) / order for a, b in pairs]
    assert federated.departing(10, 7, order, power) == pytest.approx(7 * max(each), rel=1e-5)


@pytest.mark.parametrize(
    ("weights", "clients", "at_1", "at_32"),
    [
        (26_010, 10, 162, math.inf),
        (470_000, 1000, 0.23, 4.0),
        (470_000, 10_000, 2.4e-3, 0.039),
    ],
)
def test_the_departing_noise_of_networks(
    weights: int, clients: int, at_1: float, at_32: float
) -> None:
    """Against numbers from another program, given to two digits or three."""
    assert federated.departing(clients, weights, 1) == pytest.approx(at_1, rel=0.03)
    assert federated.departing(clients, weights, 32) == pytest.approx(at_32, rel=0.03)


def test_fixed_numbers_of_clients_are_not_poisson(table: pd.DataFrame) -> None:
    coins, charged, truth, known = table[table["part"] == "sampling"]["epsilon"]
    assert coins == charged == pytest.approx(7.05, rel=1e-3)

    def excess(epsilon: float) -> float:  # of Gaussian DP with μ = √100/1
        first = stats.norm.cdf(5 - epsilon / 10)
        return float(first - math.exp(epsilon + stats.norm.logcdf(-5 - epsilon / 10)) - 1e-5)

    assert known == pytest.approx(optimize.brentq(excess, 10, 200), rel=1e-6)
    assert truth == pytest.approx(max(map(composed, (True, False))), rel=3e-3)


def composed(present: bool) -> float:
    """Return ε at δ = 1e-5 of 100 fixed samples of 100 of 1,000, all others the opposite.

    By the distribution of the privacy loss in one direction, rounded to a grid and composed.
    """
    step, size = 1e-3, 2**18
    w = np.linspace(-14, 18, 2_000_001)
    alone = stats.norm.pdf(w)
    mixed = 0.9 * alone + 0.1 * stats.norm.pdf(w - 2)
    first, second = (mixed, alone) if present else (alone, mixed)
    loss = np.rint(np.log(first / second) / step).astype(int)
    masses = np.bincount(loss % size, first * (w[1] - w[0]), size)
    total = np.fft.irfft(np.fft.rfft(masses) ** 100, size)
    s = step * np.arange(size)
    s[s > 200] -= step * size

    def excess(epsilon: float) -> float:
        return float((total * np.clip(-np.expm1(epsilon - s), 0, None)).sum() - 1e-5)

    return float(optimize.brentq(excess, 0, 150))


def epsilon(times: int, noise: float, rate: float) -> float:
    """Return the smallest ε over λ = 1 … 128 from exact binomial sums."""
    return converted([times * binomial(order, noise, rate) for order in range(1, 129)])


def binomial(order: int, noise: float, rate: float) -> float:
    k = np.arange(order + 2)
    terms = stats.binom.logpmf(k, order + 1, rate) + k * (k - 1) / (2 * noise**2)
    return float(np.logaddexp.reduce(terms))


def converted(costs: list[float]) -> float:
    """Convert as Canonne, Kamath and Steinke."""
    return min(
        (cost + order * math.log(order / (order + 1)) - math.log(order + 1) + math.log(1e5)) / order
        for order, cost in enumerate(costs, start=1)
    )


def test_growth_is_the_smallest_over_orders_of_binomial_sums(table: pd.DataFrame) -> None:
    growth = table[table["part"] == "growth"]
    rounds = int(growth["rounds"].max())
    found = growth[growth["rounds"] == rounds].set_index(["what", "clients"])["epsilon"]

    assert found["parallel", 1] == pytest.approx(epsilon(rounds, 1.0, 0.1), rel=1e-6)
    assert found["sequential", 100] == pytest.approx(epsilon(rounds * 100, 1.0, 1e-3), rel=1e-6)
    assert found["the sum itself", 100] == pytest.approx(epsilon(rounds, 10.0, 0.1), rel=1e-6)
    sequential = found["sequential"]
    assert (np.diff(sequential) < 0).all()
    assert (found["the sum itself"] <= sequential).all()
    assert (sequential < found["parallel", 1]).all()
