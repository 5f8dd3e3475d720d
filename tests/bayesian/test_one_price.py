"""One release has one price, whoever asks: the release, the fit, an accountant, a table, a file."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from accounts import bayes, elsewhere, evidence_of
from simulated import logistic_data

import bdpvi
from bdpvi import Optimum
from bdpvi.bayesian import storage
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.neighbours.rounding import Reach, rounding_error
from bdpvi.datasets.dataset import Data
from bdpvi.guides import MeanField

DRAWS, TEMPERATURE, DELTA = 3, 0.5, 1e-5
MODEL = bdpvi.BayesianLogisticRegression(clip=0.5, prior_scale=0.3, limit=2.0, intercept=True)


def fitted(data: Data) -> bdpvi.Fit:
    return bdpvi.fit(
        MODEL,
        MeanField(MODEL, noise_scale=1.0),
        data,
        neighbours=Optimum(),
        training=bdpvi.Training(device="cpu"),
        progress=False,
    )


def event(fit: bdpvi.Fit) -> GuideDraws:
    reach = Reach.of(*(panel.pairs for panel in fit.panels))
    error = rounding_error(fit.guide, fit.released, reach, DRAWS, TEMPERATURE)
    return GuideDraws(fit.panels, DRAWS, TEMPERATURE, rounding=error)


def test_one_release_has_one_price(tmp_path: Path) -> None:
    data = logistic_data(400, 3)
    fit = fitted(data)
    release = bdpvi.release(fit, DRAWS, temperature=TEMPERATURE)
    prices = {"release": release.cost, "fit": bdpvi.cost(fit, delta=DELTA)}
    prices["accountant"] = bdpvi.bayesian.cost_of([event(fit)], DELTA)
    storage.save_fit(fit, tmp_path / "fit")
    saved = storage.load_fit(tmp_path / "fit", MODEL, MeanField(MODEL, noise_scale=1.0))
    prices["file"] = bdpvi.cost(saved, delta=DELTA)
    found = {name: (bayes(one).epsilon, bayes(one).reliable) for name, one in prices.items()}
    worst = {name: one.worst_case and one.worst_case.epsilon for name, one in prices.items()}
    for name in found:
        epsilon, reliable = found[name]
        assert epsilon == pytest.approx(found["fit"][0], rel=1e-14), name
        assert reliable, name
        assert worst[name] == pytest.approx(worst["fit"], rel=1e-14), name
    assert found["fit"][0] < (worst["fit"] or 0.0)


def test_a_table_on_the_disk_has_the_price_of_one_in_memory(tmp_path: Path) -> None:
    data = logistic_data(400, 3)
    rows = pd.DataFrame(data.x.numpy(), columns=list(data.feature_names)).assign(y=data.y.numpy())
    rows.to_parquet(tmp_path / "table.parquet")
    found = []
    tables: list[Data] = [data, bdpvi.Table.of(tmp_path / "table.parquet").numbers("y")]
    for table in tables:
        elsewhere()
        fit = fitted(table)
        bdpvi.release(fit, DRAWS, temperature=TEMPERATURE)
        found.append(bdpvi.cost(fit, delta=DELTA))
    here, there = found
    assert here.worst_case is not None
    assert there.worst_case is not None
    assert there.worst_case.epsilon == pytest.approx(here.worst_case.epsilon, rel=1e-9)
    first, second = (evidence_of(bayes(x)) for x in found)
    assert (first.conversion, first.estimator) == (second.conversion, second.estimator)
    assert first.failure_probability == second.failure_probability
    # Counts round Σb² up by 0.14 % at most, and the grid of ε has steps of half a percent.
    assert bayes(here).epsilon <= bayes(there).epsilon <= 1.006 * bayes(here).epsilon
