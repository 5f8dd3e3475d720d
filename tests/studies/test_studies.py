"""Every study at a small size: files, labels and the numbers behind the texts."""

from __future__ import annotations

import math
from itertools import pairwise

import mpmath
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import integrate, stats
from studies import coverage, gaussian, networks
from studies.coverage_report import pooled, upper_limit
from studies.populations import POPULATIONS, Population, gaussian_square

from bdpvi.bayesian.accounting.estimators import student_t
from bdpvi.bayesian.accounting.reliability import reliable
from bdpvi.bench.methods.moments import MomentsAccountant


def test_moments_accountant_of_the_orders_study_is_the_exact_binomial_sum() -> None:
    order, rate, steps = 12, 64 / 60_000, 10_000
    k = np.arange(order + 2)
    terms = stats.binom.pmf(k, order + 1, rate) * np.exp(k * (k - 1) / 2)
    expected = (steps * math.log(terms.sum()) + math.log(1e5)) / order
    assert expected == pytest.approx(1.1087, abs=0.005)
    assert gaussian.worst_case(1.0, rate, steps) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("population", POPULATIONS, ids=lambda p: p.name)
def test_means_of_the_populations_are_true(population: Population) -> None:
    edges = [-12.0, -2.0, 0.0, 2.0, float(stats.norm.isf(1e-3)), 12.0]
    if population.name == "exp(0.4 g²)":
        edges = [-40.0, *edges[1:-1], 40.0]

    def density(z: float) -> float:
        return math.exp(float(population.log_value(np.array([z]))[0]) - z * z / 2)

    total = sum(
        integrate.quad(density, low, high, epsabs=1e-13)[0] for low, high in pairwise(edges)
    )
    assert math.log(total / math.sqrt(2 * math.pi)) == pytest.approx(population.log_mean, abs=1e-6)


def test_coverage_counts_what_the_public_estimator_and_rule_say() -> None:
    population, m = gaussian_square(0.2), 64
    rows = coverage.student_t_rows(population, m, 64 * 3000, np.random.default_rng(7))
    z = np.random.default_rng(7).standard_normal((3000, m))
    for row in rows[:3]:
        gamma = row["failure_probability"]
        estimate = student_t(torch.tensor(population.log_value(z)), gamma)
        missed = estimate.log_bound < population.log_mean
        trusted = reliable(estimate, gamma)
        assert row["repeats"] == 3000
        assert row["misses"] == int(missed.sum())
        assert row["reliable"] == int(trusted.sum())
        assert row["reliable_misses"] == int((missed & trusted).sum())


def test_upper_limit_is_that_of_clopper_and_pearson() -> None:
    limit = upper_limit(3, 100)
    assert stats.binom.cdf(3, 100, limit) == pytest.approx(0.05)
    assert upper_limit(5, 5) == 1


def test_rule_keeps_the_miss_rate_at_about_gamma_among_reliable_results() -> None:
    rng = np.random.default_rng(0)
    populations = [p for p in POPULATIONS if p.visible]
    rows = [row for p in populations for row in coverage.student_t_rows(p, 256, 600_000, rng)]
    pool = pooled(pd.DataFrame(rows)).sort_values("failure_probability")
    common, tiny = pool.iloc[-2], pool.iloc[0]
    assert common["failure_probability"] == 1e-2
    assert common["all_rate"] > 0.05
    assert common["khat_rate"] > 0.05
    assert common["rule_rate"] < 0.015
    assert tiny["failure_probability"] == 1e-6
    assert tiny["rule_misses"] == 0
    assert tiny["all_misses"] > 50


@pytest.mark.parametrize(
    ("clip", "by_losses", "by_moments"),
    [(5, 0.087, 0.37), (10, 0.185, 0.41), (20, 0.40, 0.58), (29, 0.61, None), (50, 1.17, 1.55)],
)
def test_the_noise_of_the_published_networks_alone_keeps_epsilon_small(
    clip: float, by_losses: float, by_moments: float | None
) -> None:
    """Against numbers from another program, given to two digits or three."""
    assert networks.worst_case(clip) == pytest.approx(by_losses, rel=0.02)
    if by_moments is not None:
        moments = MomentsAccountant(32)
        assert networks.worst_case(clip, accountant=moments) == pytest.approx(by_moments, rel=0.02)


def test_the_published_estimator_is_the_notebooks_arithmetic() -> None:
    steps, pairs, q = 3, 28, 1024 / 60_000
    distances = np.random.default_rng(0).uniform(0.01, 0.06, (steps, pairs))
    tried = []
    for order in (2, 4, 8, 16, 32):
        k = np.arange(order + 2)
        moments = np.exp((k * (k - 1))[:, None, None] * distances**2 / (2 * 0.1**2))
        y = np.einsum("k,kts->ts", stats.binom.pmf(k, order + 1, q), moments) ** steps
        margin = stats.t.isf(1e-16, pairs - 1) / math.sqrt(pairs - 1)
        bound = np.log(y.mean(1) + margin * y.std(1)).sum() / steps
        tried.append((bound + math.log(1e5)) / order)
    found = networks.published_epsilon(torch.from_numpy(distances))
    assert found == pytest.approx(min(tried), rel=1e-6)
    assert found > 1.1 * math.log(1e5) / 32


def test_recorded_distances_are_those_of_clipped_means_with_a_record_left_out() -> None:
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 2)
    x, y = 60 * torch.randn(12, 3), torch.randint(2, (12,))
    gradients = []
    for one, target in zip(x, y, strict=True):
        loss = torch.nn.functional.cross_entropy(module(one[None]), target[None])
        parts = torch.autograd.grad(loss, list(module.parameters()))
        gradients.append(torch.cat([part.flatten() for part in parts]).double())
    found = networks.record_gradients(module, x, y)
    assert found.numpy() == pytest.approx(torch.stack(gradients).numpy(), abs=1e-4)
    for scale in (0.01, 1.0):  # the clip of 1 does nothing, or something
        means = [
            scale * sum(gradients[:j] + gradients[j + 1 :], torch.zeros(())) / 11 for j in range(8)
        ]
        clipped = torch.stack([mean / max(1.0, float(mean.norm())) for mean in means])
        assert networks.left_out(scale * found).numpy() == pytest.approx(clipped.numpy(), abs=1e-5)


def test_the_published_noise_is_that_on_the_sum_over_the_clip() -> None:
    z, q, steps = 102.4 / 20, 1024 / 60_000, 1160
    tried = []
    for order in range(1, 33):
        k = np.arange(order + 2)
        moment = stats.binom.pmf(k, order + 1, q) @ np.exp(k * (k - 1) / (2 * z * z))
        tried.append((steps * math.log(moment) + math.log(1e5)) / order)
    found = networks.worst_case(20.0, accountant=MomentsAccountant(32))
    assert found == pytest.approx(min(tried), rel=1e-6)


@pytest.mark.parametrize(("hits", "misses"), [(0, 30), (3, 97), (50, 50), (20, 0)])
@pytest.mark.parametrize("gamma", [0.05, 1e-15])
def test_binary_leaves_gamma_of_the_posterior_above(hits: int, misses: int, gamma: float) -> None:
    bound = mpmath.mpf(float(coverage.binary(np.array([hits]), hits + misses, gamma)[0]))
    with mpmath.workdps(40):
        total = mpmath.beta(hits + 1, misses + 1)
        above = mpmath.quad(lambda p: p**hits * (1 - p) ** misses, [bound, (1 + bound) / 2, 1])
    # Where the bound is within rounding of 1, so is what lies above it.
    assert float(above / total) == pytest.approx(gamma, rel=1e-6 if bound < 0.99 else 0.2)
