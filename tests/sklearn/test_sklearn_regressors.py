"""The scikit-learn regressors: their conventions, their numbers, and what ε covers."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rehearsals
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, PoissonRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks

import bdpvi
from bdpvi import PrivacyUtilityWarning
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian_dp import gaussian_distance
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.worst_case import epsilon
from bdpvi.sklearn import PrivacyLeakWarning, PrivateLinearRegression, PrivatePoissonRegressor

CENTER, SCALE = np.array([3.0, -1.0]), np.array([2.0, 0.1])
SCALES: dict[str, Any] = {"scales": (CENTER, SCALE)}
LINEAR = PrivateLinearRegression(**SCALES, target_bounds=(60, 140))
POISSON = PrivatePoissonRegressor(**SCALES, largest=10)
BOTH = pytest.mark.parametrize("model", [LINEAR, POISSON], ids=["linear", "poisson"])


def table(model: Any, records: int = 20_000) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return records of the model, whose columns have different scales."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(records, 2))
    if isinstance(model, PrivateLinearRegression):
        y = 100 + z @ [6.0, -3.0] + rng.normal(0, 8.0, records)
    else:
        y = rng.poisson(np.exp(z @ [0.5, -0.2] + 0.3)).astype(float)
    return z * SCALE + CENTER, y


@pytest.mark.filterwarnings("ignore::bdpvi.PrivacyUtilityWarning")
@pytest.mark.filterwarnings("ignore::bdpvi.sklearn.PrivacyLeakWarning")
@parametrize_with_checks([PrivatePoissonRegressor(draws=20)])  # type: ignore[untyped-decorator]
def test_the_conventions_of_scikit_learn(
    estimator: Any, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the other regressor all but the model is the same."""
    rehearsals.left_out(monkeypatch)
    if check.func.__name__ != "check_supervised_y_no_nan":
        check(estimator)
        return
    with pytest.raises(AssertionError, match="should have raised error on fitting array y"):
        check(estimator)  # no record decides an exit, and so not all of them together


@BOTH
def test_coefficients_are_those_without_privacy_and_intervals_hold_them(model: Any) -> None:
    x, y = table(model)
    fitted = clone(model).fit(x, y)
    usual: Any = LinearRegression() if model is LINEAR else PoissonRegressor(alpha=0)
    usual.fit((x - CENTER) / SCALE, y)
    half = np.diff(fitted.coef_interval_)[:, 0] / 2
    # Sampling moves both alike, so the difference is privacy's noise: a part of the interval.
    assert (np.abs(fitted.coef_ - usual.coef_ / SCALE) < 2 * half).all()
    assert (half * SCALE < 0.05 * (y.std() if model is LINEAR else 1)).all()
    assert fitted.coef_.shape == (2,)
    intercept = usual.intercept_ - usual.coef_ @ (CENTER / SCALE)
    assert abs(fitted.intercept_ - intercept) < 0.02 * (100 if model is LINEAR else 15)
    assert fitted.score(x, y) == pytest.approx(usual.score((x - CENTER) / SCALE, y), abs=0.01)
    low, high = fitted.coef_interval_.T
    assert ((low < fitted.coef_) & (fitted.coef_ < high)).all()
    assert fitted.summary_.reliable


@BOTH
def test_predictions_are_those_of_the_release_which_is_kept(model: Any, tmp_path: Path) -> None:
    x, y = table(model, 3000)
    fitted = clone(model).fit(x, y)
    bdpvi.save_release(fitted.release_, tmp_path / "release.json")
    loaded = bdpvi.load_release(tmp_path / "release.json")
    features = torch.from_numpy((x - CENTER) / SCALE)
    expected = loaded.predict_mean(features).numpy()
    np.testing.assert_allclose(fitted.predict(x), expected, rtol=1e-9)
    linear = x @ fitted.coef_ + fitted.intercept_
    np.testing.assert_allclose(
        fitted.predict(x), linear if model is LINEAR else np.exp(linear), rtol=0.2
    )
    same = pickle.loads(pickle.dumps(fitted))
    assert same.predict(x).tolist() == fitted.predict(x).tolist()
    assert same.release_.secret is None


@BOTH
def test_what_is_not_given_is_bought_and_the_total_is_epsilon(model: Any, tmp_path: Path) -> None:
    x, y = table(model)
    file = tmp_path / "people.jsonl"
    for given in (SCALES, {}):
        for one in tmp_path.iterdir():
            one.unlink()
        bought = type(model)(0.9, **given, ledger=str(file)).fit(x, y)
        assert bought.bound_.epsilon == 0.9
        assert "worst-case DP ε = 0.9 (target)" in bought.guarantee_
        book = Ledger.at(file).book()
        kinds = ["reserved", "constants", "constants", "release", "ended"]
        assert [entry.kind for entry in book.entries] == kinds
        assert not book.opened
        events = [event for charge in book.charges for event in charge.events or ()]
        noise = [one.noise_multiplier for one in events if isinstance(one, SampledGaussian)]
        assert len(noise) == 3  # the number of records, centres and scales, and the rounds
        paid = math.fsum(one**-2 for one in noise[:2])
        assert paid == pytest.approx(0.2 * gaussian_distance(0.9, 9e-6) ** 2, rel=1e-6)
        total = epsilon(events, 1e-5)
        assert total is not None
        assert 0.99 * 0.9 < total.epsilon <= 0.9
        fit: Any = bought.release_.model
        if model is LINEAR:
            assert 90 < fit.middle < 110
            assert 20 < fit.largest < 60  # four deviations of about ten
            assert fit.middle != np.median(y)
        else:
            assert 4 <= fit.largest <= 15
        assert (bought.center_ == CENTER).all() == bool(given)
        again = clone(bought).fit(x, y)
        assert again.release_.model != bought.release_.model or model is POISSON
        assert "total of 2 fits in this ledger" in again.guarantee_


def test_a_target_beyond_its_bounds_counts_as_the_bound() -> None:
    x, y = table(LINEAR, 2000)
    y[:3] = 1e9
    with pytest.warns(PrivacyLeakWarning, match="makes an experiment"):
        wild = clone(LINEAR).set_params(random_state=0).fit(x, y)
    y[:3] = 140.0
    with pytest.warns(PrivacyLeakWarning, match="makes an experiment"):
        tame = clone(LINEAR).set_params(random_state=0).fit(x, y)
    assert wild.coef_.tolist() == tame.coef_.tolist()
    assert not tame.bound_.reliable


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (LINEAR, {"target_bounds": (2, 1)}, "low must be below high, got 2 and 1"),
        (LINEAR, {"target_bounds": 3}, "target_bounds must be a pair of numbers, got 3"),
        (LINEAR, {"target_bounds": (0, math.inf)}, "high must be finite, got inf"),
        (LINEAR, {"epsilon": 0}, "epsilon must be finite and positive"),
        (LINEAR, {"prior_scale": -1}, "prior_scale must be finite and positive"),
        (LINEAR, {"target_bounds": None, "limit": 0}, "limit must be finite and positive"),
        (POISSON, {"largest": 2.5}, "largest must be a whole number of at least 1"),
        (POISSON, {"draws": 0}, "draws must be a whole number"),
        (POISSON, {"scales": (0, 0)}, "scales must have positive deviations"),
        (POISSON, {"expected_rows": -3}, "rows must be .* got -3"),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_charged(
    model: Any, arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    x, y = table(model, 50)
    file = tmp_path / "people.jsonl"
    with pytest.raises(ValueError, match=message):
        clone(model).set_params(**arguments, ledger=str(file)).fit(x, y)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::bdpvi.PrivacyUtilityWarning")
@pytest.mark.parametrize("records", [1, 3, 20])
def test_bought_bounds_of_few_records_are_noise_and_decide_no_exit(records: int) -> None:
    x, y = table(POISSON, records)
    for _ in range(10):
        found: Any = PrivatePoissonRegressor(0.1).fit(x, y)
        assert 1 <= found.release_.model.largest <= 10**6
        assert np.isfinite(found.predict(x)).all()


@pytest.mark.filterwarnings("ignore::bdpvi.PrivacyUtilityWarning")
def test_targets_that_are_no_counts_are_named() -> None:
    x, y = table(POISSON, 50)
    with pytest.warns(PrivacyUtilityWarning, match="owner only: 1 record left out: a value"):
        clone(POISSON).fit(x, np.where(np.arange(50) == 3, -2.0, y))
    with pytest.warns(PrivacyUtilityWarning, match="50 counts of y not an integer"):
        clone(POISSON).fit(x, y + 0.25)
