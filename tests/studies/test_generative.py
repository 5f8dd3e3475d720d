"""Average-case privacy and its control; what the published GAN's noise is worth."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import integrate, optimize, stats
from studies import generative

from bdpvi._ground.progress import silent
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    out: Path = tmp_path_factory.mktemp("generative")
    return generative.generative(out, seed=0, track=silent, scale=1.0).table


def divergence(first: np.ndarray, second: np.ndarray) -> float:
    """Return Wang, Kulkarni and Verdú's estimate, row by row; no row is its own neighbour."""

    def nearest(x: np.ndarray, among: np.ndarray) -> float:
        apart = [float(np.linalg.norm(x - y)) for y in among]
        return min(one for one in apart if one > 0)

    ratios = [math.log(nearest(x, second) / nearest(x, first)) for x in first]
    mean = float(np.mean(ratios))
    return int(first.shape[1]) * mean + math.log(len(second) / (len(first) - 1))


def test_an_expected_loss_is_the_divergence_without_the_nearest_row() -> None:
    rng = np.random.default_rng(0)
    released, records = rng.normal(size=(25, 3)), rng.normal(size=(9, 3))
    found = generative.expected_losses(released, records)
    for loss, record in zip(found, records, strict=True):
        taken = int(np.linalg.norm(released - record, axis=1).argmin())
        expected = divergence(released, np.delete(released, taken, axis=0))
        assert loss == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_the_rules_are_their_formulas() -> None:
    losses = np.array([0.1, 0.4, 0.2, 0.5])
    mean, sd = 0.3, math.sqrt((0.04 + 0.01 + 0.01 + 0.04) / 3)
    assert generative.chebyshev(losses, 1e-4) == pytest.approx(mean + 100 * sd)
    limit = generative.student(losses, 1e-3)
    above = integrate.quad(stats.t(3).pdf, (limit - mean) / (sd / 2), np.inf)[0]
    assert above == pytest.approx(1e-3, rel=1e-6)


def test_the_training_rows_verbatim_score_as_private_as_fresh_rows(table: pd.DataFrame) -> None:
    rows = table[table["part"] == "average"].set_index(["what", "data", "rule"])
    copy, fresh = rows.loc[generative.VERBATIM], rows.loc[generative.FRESH]
    assert (copy["mu"] <= fresh["mu"]).all()
    assert (copy["attack"] == 1).all()
    assert (fresh["attack"] < 0.6).all()
    assert (rows["guarantee"] == "none").all()


def test_seen_coins_are_a_mean_over_how_often_a_record_took_part() -> None:
    noise, rate, steps = 0.7, 0.2, 12
    k = np.arange(steps + 1)
    mu = np.maximum(np.sqrt(k) / noise, 1e-12)

    def excess(epsilon: float) -> float:
        first = stats.norm.cdf(mu / 2 - epsilon / mu)
        each = first - np.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
        return float(stats.binom.pmf(k, steps, rate) @ each) - 1e-5

    expected = optimize.brentq(excess, 0.1, 100)
    found = generative.seen_coins(noise, rate, steps)
    assert found == pytest.approx(expected, rel=1e-3)
    assert found >= expected
    assert found > PrivacyLossAccountant().epsilon(noise, rate, steps, 1e-5)


def test_published_settings_against_numbers_of_another_program(table: pd.DataFrame) -> None:
    rows = table[table["part"] == "settings"]
    assert rows["renyi"].tolist() == pytest.approx([2.0e9, 4.9e8, 2.7, 0.49], rel=0.02)
    assert (rows["epsilon"] < rows["renyi"]).all()
    # Where sums show who took part: K losses of 1/2z² + log q each, the others of log(1 − q).
    columns = ["batch", "multiplier", "steps", "epsilon"]
    for batch, noise, steps, epsilon in rows[columns].to_numpy(float)[:2].tolist():
        rate = batch / generative.IMAGES
        most = float(stats.binom.isf(1e-5, int(steps), rate))
        assert epsilon == pytest.approx(most * (0.5 / noise**2 + math.log(rate)), rel=0.01)
