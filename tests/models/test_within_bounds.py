"""Expected targets lie within the public bounds that the model was fitted by, for any features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import bdpvi
from bdpvi import DPVI, Ledger, PrivacyUtilityWarning, Release
from bdpvi.datasets import constants_of
from bdpvi.models.predictions import predictive_means
from bdpvi.sklearn import PrivateLinearRegression, PrivatePoissonRegressor
from bdpvi.tables import Predictions

FAR = torch.tensor([[0.0], [50.0], [-50.0]], dtype=torch.float64)
DRAWS = {
    "w": torch.tensor([[3.0, 0.1], [-0.2, 0.1]], dtype=torch.float64),
    "log_scale": torch.zeros(2, dtype=torch.float64),
    "log_dispersion": torch.zeros(2, dtype=torch.float64),
}


class Mine(bdpvi.BayesianPoissonRegression):
    """A model that Pyro runs."""


@pytest.mark.parametrize(
    ("model", "low", "high"),
    [
        (bdpvi.BayesianPoissonRegression(largest=30), 0, 30),
        (Mine(largest=30), 0, 30),
        (bdpvi.BayesianPoissonRegression.bounded(largest=30), 0, 30),
        (bdpvi.BayesianNegativeBinomialRegression(largest=30), 0, 30),
        (bdpvi.BayesianNegativeBinomialRegression.bounded(largest=30, dispersion=1.0), 0, 30),
        (bdpvi.BayesianLinearRegression.of_bounds(-2, 6), -2, 6),
    ],
)
def test_each_draw_predicts_within_the_bounds(model: Any, low: float, high: float) -> None:
    found = predictive_means(model, DRAWS, FAR)
    assert found.min() >= low
    assert found.max() <= high
    inside = model.means({name: value[0] for name, value in DRAWS.items()}, FAR)
    assert float(found[0, 0]) == pytest.approx(float(inside[0]))  # the intercept alone
    assert float(found[0, 1]) == pytest.approx(high, rel=0.05)  # clipped, not shrunk


@pytest.mark.filterwarnings("ignore::bdpvi.PrivacyUtilityWarning")
def test_estimators_predict_within_the_bounds() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(3000, 2))
    counts = random.poisson(np.exp(x @ [1.0, 0.5]))
    new = 12.0 * random.normal(size=(50, 2))
    poisson = PrivatePoissonRegressor(bounds=(-3, 3), largest=30, epsilon=10).fit(x, counts)
    found = poisson.predict(new)
    assert found.min() >= 0
    assert 29 < found.max() <= 30
    y = x @ [2.0, -1.0]
    linear = PrivateLinearRegression(bounds=(-3, 3), target_bounds=(-4, 4)).fit(x, y)
    assert np.abs(linear.predict(new)).max() <= 4


@pytest.fixture(scope="module")
@flat.few_steps(20)
def exposed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Release, Path]:
    random, path = np.random.default_rng(0), tmp_path_factory.mktemp("events")
    frame = pd.DataFrame(
        {"age": random.normal(50, 10, 3000), "years": random.uniform(0.5, 3, 3000)}
    )
    frame["events"] = random.poisson(np.exp(-1 + 0.02 * frame["age"]) * frame["years"])
    frame.to_csv(path / "events.csv", index=False)
    release = flat.private(
        path / "events.csv", epsilon=2.0, target="events", exposure="years", draws=3,
        model=bdpvi.BayesianPoissonRegression(largest=30), one_row_per_person=True,
        ledger=Ledger(), progress=False,
        constants=constants_of({"source": "By law.", "age": [0, 100]}),
    )  # fmt: skip
    return release, path


def test_a_row_of_a_file_without_an_exposure_has_no_prediction_and_is_counted(
    exposed: tuple[Release, Path],
) -> None:
    release, path = exposed
    table = pd.DataFrame({"age": ["50"] * 6, "years": ["1", "", "?", "-1", "2000", "0"]})
    table.to_csv(path / "new.csv", index=False)
    why = "4 predictions left out: the exposure is blank, no number or not positive"
    with pytest.warns(PrivacyUtilityWarning, match=why):
        found = Predictions.of(release, path / "new.csv", progress=False).frame()
    assert found["expected"].isna().tolist() == [False, True, True, True, False, True]
    assert found["spread"].isna().tolist() == found["expected"].isna().tolist()
    assert 0 < found["expected"][0] < 30
    assert found["expected"][4] == 30
    with pytest.warns(PrivacyUtilityWarning, match=why):
        Predictions.of(release, path / "new.csv", progress=False).write(path / "out.csv")
    written = pd.read_csv(path / "out.csv")
    assert written["expected"].isna().sum() == 4
    table[:1].to_csv(path / "good.csv", index=False)
    Predictions.of(release, path / "good.csv", progress=False).frame()  # no warning is an error


def test_without_a_file_the_row_is_refused_by_its_number(exposed: tuple[Release, Path]) -> None:
    release, _ = exposed
    width = len(release.feature_names)
    x = torch.zeros(3, width, dtype=torch.float64)
    at = release.feature_names.index("years")
    x[:, at] = torch.tensor([1.0, 2.0, 0.0])
    calls: list[Any] = [release.predict_mean, release.predict_draws, release.to_inference_data]
    for call in calls:
        with pytest.raises(ValueError, match=r"x: row 2, from 0, has the exposure 0.0, which must"):
            call(x)
    assert release.predict_mean(x[:2]).shape == (2,)  # the remedy: leave the row out


def test_targets_drawn_for_arviz_lie_within_the_bounds() -> None:
    pytest.importorskip("arviz")
    x = torch.randn(2000, 1, generator=torch.Generator().manual_seed(0))
    y = torch.poisson((2 * x[:, 0]).exp(), generator=torch.Generator().manual_seed(1))
    route = DPVI(rows=2000, steps=40, draws=20)
    model = bdpvi.BayesianPoissonRegression(largest=30)
    release = bdpvi.fit_private(model, (x, y), epsilon=2.0, route=route)
    found: Tensor = release.predict_draws(20 * x[:50])
    assert found.max() == 30
    drawn = release.to_inference_data(20 * x[:50])["posterior_predictive"]
    values = np.asarray(next(iter(drawn.data_vars.values())))
    assert values.max() == 30
