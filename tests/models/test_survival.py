"""Survival regression: its likelihood, curves and means, against other definitions and software."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

import bdpvi
from bdpvi import BayesianSurvivalRegression, Dataset
from bdpvi.models.hazards import restricted_mean, survival
from bdpvi.models.piecewise import PiecewiseExponential
from bdpvi.models.predictions import survival_draws
from bdpvi.models.traces import log_likelihood

CUTS = (1.0, 2.5, 4.0)
MODEL = BayesianSurvivalRegression(cuts=CUTS)
W = torch.tensor([0.5, -0.3, -2.0, -1.2, -1.7], dtype=torch.float64)
TIMES = torch.tensor([0.3, 1.0, 1.7, 2.5, 4.0, 3.999, 4.2, 9.0, 0.0]).double()
EVENTS = torch.tensor([1, 1, 0, 1, 1, 0, 1, 0, 1]).double()


def records(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return features and targets: times by the model, censored between 0 and 6."""
    random = np.random.default_rng(seed)
    x = torch.from_numpy(random.normal(size=(n, 2)))
    hazards = np.exp((x @ W[:2]).numpy()[:, None] + W[2:].numpy())
    left, time, start = random.exponential(size=n), np.zeros(n), 0.0
    for at, end in enumerate((*CUTS[:-1], math.inf)):
        run = np.minimum(left / hazards[:, at], end - start)
        time, left, start = time + run, left - run * hazards[:, at], end
        left[left < 1e-12] = 0.0
    ends = random.uniform(0, 6, n)
    return x, MODEL.targets(np.minimum(time, ends), time <= ends)


def expanded(x: Any, y: Any) -> pd.DataFrame:
    """Return person-periods: a row for each interval in which a person was under observation."""
    rows = []
    for person, (features, signed) in enumerate(zip(np.asarray(x), np.asarray(y), strict=True)):
        time, event, start = abs(signed), signed > 0, 0.0
        if time > CUTS[-1]:
            time, event = CUTS[-1], False
        for at, end in enumerate(CUTS):
            if time > start:
                row = {"person": person, "interval": at, "exposure": min(time, end) - start}
                row |= {"event": float(event and time <= end)}
                rows.append(row | {f"x{k}": value for k, value in enumerate(features)})
            start = end
    return pd.DataFrame(rows)


def test_the_likelihood_is_poissons_of_person_periods() -> None:
    y = torch.cat([MODEL.targets(TIMES, EVENTS), records(300)[1]])
    x = torch.randn(len(y), 2, generator=torch.Generator().manual_seed(1)).double()
    rows = expanded(x, y)
    logs = rows[["x0", "x1"]].to_numpy() @ W[:2].numpy() + W[2:].numpy()[rows["interval"]]
    poisson = stats.poisson(rows["exposure"] * np.exp(logs)).logpmf(rows["event"])
    constant = rows["event"] * np.log(rows["exposure"])  # the counts' own, free of the weights
    right = (poisson - constant).groupby(rows["person"]).sum().to_numpy()
    found = log_likelihood(MODEL, {"w": W}, x, y)  # a person is one record
    np.testing.assert_allclose(found.numpy(), right, rtol=1e-9)
    law = MODEL.likelihood({"w": W}, x)
    assert law.log_prob(y[: len(x)]).shape == (len(x),)


def test_targets_are_signed_times_and_late_events_are_censored_at_the_horizon() -> None:
    found = MODEL.targets([1.0, 2.0, 0.0, 0.0, -1.0, 3.0, math.nan], [1, 0, True, False, 1, 2, 1])
    assert found[:2].tolist() == [1.0, -2.0]
    assert 0 < found[2] == -found[3] < 1e-8
    assert found[4:].isnan().all()
    assert MODEL.fits(found).tolist() == [True] * 4 + [False] * 3
    assert not MODEL.fits(torch.zeros(1)).any()
    assert MODEL.cut(torch.tensor([4.0, 4.1, -3.0, -9.0])).tolist() == [4.0, -4.0, -3.0, -4.0]


def hazard(t: float, logs: Any) -> float:
    """Return the hazard at a time."""
    return math.exp(logs[min(int(np.searchsorted(CUTS, t)), 2)])


@pytest.mark.parametrize("logs", [(-2.0, -1.2, -1.7), (1.5, -3.0, 0.0), (-18.0, -19.0, -15.0)])
def test_curves_and_means_are_integrals(logs: tuple[float, ...]) -> None:
    at = torch.tensor([logs], dtype=torch.float64)

    def summed(f: Any, end: float) -> float:
        ends = [0.0, *(cut for cut in CUTS if cut < end), end]
        return sum(integrate.quad(f, *pair, epsabs=1e-13)[0] for pair in pairwise(ends))

    def curve(t: float) -> float:
        return math.exp(-summed(lambda s: hazard(s, logs), t))

    times = [0.0, 0.4, 1.0, 1.9, 3.3, 4.0]
    found = survival(at, torch.tensor(times, dtype=torch.float64), CUTS)[0]
    np.testing.assert_allclose(found, [curve(t) for t in times], rtol=1e-9)
    mean = summed(curve, CUTS[-1])
    assert float(restricted_mean(at, CUTS)) == pytest.approx(mean, rel=1e-9)
    assert float(restricted_mean(at - 300, CUTS)) <= CUTS[-1]


def test_draws_follow_the_curve_and_stop_at_the_horizon() -> None:
    at = W[2:].expand(200_000, 3)
    torch.manual_seed(0)
    drawn = PiecewiseExponential(at, CUTS).sample()
    times = [0.2, 0.9, 1.5, 2.4, 3.0, 3.9]
    later = [float((drawn.abs() > t).double().mean()) for t in times]
    right = survival(at[:1], torch.tensor(times, dtype=torch.float64), CUTS)[0]
    np.testing.assert_allclose(later, right, atol=4.5 * 0.5 / math.sqrt(len(drawn)))
    assert bool((drawn[drawn < 0] == -CUTS[-1]).all())
    rest = float((drawn < 0).double().mean())
    assert rest == pytest.approx(float(survival(at[:1], drawn.new_tensor([4.0]), CUTS)), abs=0.005)
    mean = float(restricted_mean(at[:1], CUTS))
    assert float(drawn.abs().mean()) == pytest.approx(mean, abs=0.015)


@pytest.mark.filterwarnings("ignore::bdpvi.PrivacyUtilityWarning")
def test_with_little_noise_the_fit_is_statsmodels() -> None:
    sm = pytest.importorskip("statsmodels.api")
    x, y = records(4000)
    rows = expanded(x, y)
    design = np.column_stack([rows[["x0", "x1"]], np.eye(3)[rows["interval"]]])
    usual = sm.GLM(
        rows["event"], design, family=sm.families.Poisson(), offset=np.log(rows["exposure"])
    ).fit()
    made = bdpvi.fit_private(MODEL, (x, y), epsilon=100.0, route=bdpvi.DPVI(rows=4000))
    found = made.summary(odds=True)
    assert found.reliable
    for row, mean, sd in zip(found.coefficients, usual.params, usual.bse, strict=True):
        assert row.sd is not None
        assert abs(row.mean - mean) < sd
        assert 0.8 * sd < row.sd < 1.5 * sd
    assert [row.name for row in found.coefficients][2:] == list(MODEL.baselines)
    assert "hazard ratio" in str(found)
    curves = made.predict_survival(x[:50], [0.0, 1.0, 4.0])
    right = survival(
        (x[:50] @ W[:2])[:, None] + W[2:], torch.tensor([0.0, 1.0, 4.0]).double(), CUTS
    )
    assert float((curves.mean - right).abs().max()) < 0.05
    assert bool((curves.low <= curves.mean).all() & (curves.mean <= curves.high).all())
    assert float((curves.high - curves.low).max()) > 0.01
    with pytest.raises(
        ValueError, match="times must lie between 0 and the horizon 4, the last cut"
    ):
        made.predict_survival(x, [5.0])
    with pytest.raises(ValueError, match=r"times must be a list of numbers, got the shape \(\)"):
        made.predict_survival(x, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a band needs 20 draws, there are 3"):
        made.with_draws(3).predict_survival(x, [1.0])
    means = made.predict_mean(x)
    assert bool(((means > 0) & (means <= 4.0)).all())


@pytest.mark.parametrize("cuts", [(), (2, 1), (1, 1), (0, 1), (-1.0, 2.0), (1, math.inf), (1, "x")])
def test_cuts_that_are_none_are_named(cuts: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="cuts must be"):
        BayesianSurvivalRegression(cuts=cuts)


def test_records_of_other_targets_are_refused_or_left_out() -> None:
    x = torch.zeros(2, 1).double()
    with pytest.raises(ValueError, match="y must be times, those of censored records with a minus"):
        MODEL.check(Dataset(x, torch.tensor([1.0, 0.0]).double()))
    other = bdpvi.BayesianPoissonRegression(largest=3)
    with pytest.raises(ValueError, match="poisson has no survival curve"):
        survival_draws(other, {"w": torch.zeros(1, 2)}, torch.zeros(1, 1), torch.zeros(1))
