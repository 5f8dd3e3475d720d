"""Mixed models of tables: groups as features, groups as records, files, scores, refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import bdpvi
from bdpvi import (
    DPVI,
    BayesianLinearRegression,
    BayesianNegativeBinomialRegression,
    BayesianPoissonRegression,
    score,
)
from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi.datasets import constants_of
from bdpvi.datasets.dataset import Dataset, People
from bdpvi.models.mixed import MixedRecords, MixedRegression
from bdpvi.models.traces import log_likelihood
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.whole_units import UnitSteps
from bdpvi.programs.plan import DPVIPlan
from bdpvi.releases.route import Allowance
from bdpvi.tables import Public, Unit
from bdpvi.tables import mixed as mixed_tables

LINEAR = BayesianLinearRegression.of_bounds(4, 16)
COUNTS = BayesianPoissonRegression(largest=20)
KNOWN: dict[str, Any] = {"source": "By law.", "age": [20, 80]}


def table(groups: int, rows: int, seed: int = 0) -> pd.DataFrame:
    r = np.random.default_rng(seed)
    clinic = np.repeat(np.arange(groups), r.integers(rows // 2, rows + 1, groups))
    age = r.uniform(20, 80, len(clinic))
    eta = 0.03 * (age - 50) + 0.8 * r.normal(size=groups)[clinic]
    return pd.DataFrame(
        {
            "age": age,
            "clinic": [f"c{one:04d}" for one in clinic],
            "number": 10 + eta + r.normal(size=len(clinic)),
            "count": r.poisson(np.exp(eta)),
            "sick": np.where(r.random(len(clinic)) < 1 / (1 + np.exp(-eta)), "yes", "no"),
        }
    )


def known(frame: pd.DataFrame, target: str, *, levels: bool) -> Public:
    declared = KNOWN | ({"clinic": sorted(set(frame["clinic"]))} if levels else {})
    others = tuple(one for one in ("number", "count", "sick") if one != target)
    return Public(constants=constants_of(declared), group="clinic", drop=others)


def test_groups_that_are_features_have_effects_drawn_to_zero(tmp_path: Path) -> None:
    frame = table(25, 800)
    public = known(frame, "number", levels=True)
    release = bdpvi.private(frame, target="number", epsilon=3.0, model=LINEAR, public=public)
    assert type(release.model) is MixedRegression
    summary = release.summary()
    rows = {one.name: one for one in summary.coefficients}
    assert rows["age"].mean == pytest.approx(0.03, abs=0.006)
    assert rows["clinic=c0003"].measured
    assert summary.spread is not None
    assert summary.spread[1] == pytest.approx(0.8, abs=0.4)
    assert summary.reliable
    plain = frame.assign(age=50.0).drop_duplicates("clinic").sort_values("clinic")
    here = release.predict_mean(plain)
    nowhere = release.predict_mean(plain.assign(clinic="another"))
    means = (frame["number"] - 0.03 * (frame["age"] - 50)).groupby(frame["clinic"]).mean()
    assert np.corrcoef(here, means)[0, 1] > 0.95
    assert nowhere.std() < 0.01
    path = tmp_path / "release.json"
    bdpvi.save_release(release, path)
    again = bdpvi.load_release(path)
    assert again.model == release.model
    assert again.summary().spread == summary.spread
    scored = score.load(path).predict(plain.head(3).to_dict("records"))
    assert [one["expected"] for one in scored] == pytest.approx(here.head(3).tolist(), rel=1e-9)


@pytest.mark.parametrize(("target", "model"), [("sick", None), ("count", COUNTS)])
def test_scored_groups_have_effects_and_a_file(target: str, model: Any, tmp_path: Path) -> None:
    """One charge, effects near the truth, and the same predictions from a file."""
    frame = table(25, 1200, seed=1)
    given: dict[str, Any] = {"positive": "yes"} if model is None else {}
    ledger = bdpvi.Ledger()
    release = bdpvi.private(
        frame, target=target, epsilon=3.0, model=model, ledger=ledger,
        public=known(frame, target, levels=True), **given,
    )  # fmt: skip
    (paid,) = (entry for entry in ledger.entries() if entry.kind == "release")
    assert len(paid.events or ()) == 1
    assert release.cost.worst_case is not None
    assert 2.97 < release.cost.worst_case.epsilon <= 3
    summary = release.summary()
    rows = {one.name: one for one in summary.coefficients}
    assert rows["age"].measured
    assert rows["age"].mean == pytest.approx(0.03, abs=0.008)
    assert summary.spread is not None
    assert summary.spread[4]
    assert summary.spread[1] == pytest.approx(0.8, abs=0.4)
    plain = frame.assign(age=50.0).drop_duplicates("clinic").sort_values("clinic")
    here = release.predict_mean(plain)
    truth = (frame[target] == "yes") if model is None else frame[target]
    means = truth.groupby(frame["clinic"]).mean()
    assert np.corrcoef(here, means)[0, 1] > 0.9
    assert release.predict_mean(plain.assign(clinic="another")).std() < 0.01
    path = tmp_path / "release.json"
    bdpvi.save_release(release, path)
    again = bdpvi.load_release(path)
    assert again.predict_mean(plain).tolist() == here.tolist()


@pytest.mark.parametrize(
    ("target", "model"), [("sick", None), ("number", LINEAR), ("count", COUNTS)]
)
def test_groups_that_are_records_have_a_spread_and_cost_one_record(target: str, model: Any) -> None:
    frame = table(3000, 8)
    given: dict[str, Any] = {"positive": "yes"} if model is None else {}
    ledger = bdpvi.Ledger(unit="clinic", rows_per_unit=7)
    with pytest.warns(PrivacyUtilityWarning, match="left out: no person"):
        release = bdpvi.private(
            frame, target=target, epsilon=3.0, model=model, unit=Unit("clinic", rows=7),
            public=known(frame, target, levels=False), ledger=ledger, **given,
        )  # fmt: skip
    assert "at most 7, of one person ('clinic')" in str(release.receipt)
    paid = [entry for entry in ledger.entries() if entry.kind in ("constants", "release")]
    events = [event for entry in paid for event in entry.events or () if not event.delta]
    assert [type(event) for event in events] == [UnitSteps, UnitSteps]
    summary = release.summary()
    rows = {one.name: one for one in summary.coefficients}
    low, high = rows["age"].low, rows["age"].high
    assert low is not None
    assert high is not None
    assert low - 0.01 < 0.03 < high + 0.01
    assert summary.spread is not None
    column, middle, _, _, seen = summary.spread
    assert column == "clinic"
    assert seen
    assert middle == pytest.approx(0.8, rel=0.35)
    expected = release.predict_mean(pd.DataFrame({"age": [50.0, 80.0]}))
    assert expected.shape == (2,)
    assert expected[1] > expected[0]


def test_records_of_groups_are_their_rows_in_units_of_the_target() -> None:
    """And the release of such a model, turned back, has the law of the rows' own units."""
    of = BayesianLinearRegression(largest=40.0, middle=100.0, prior_scale=60.0)
    mixed = MixedRegression(of=of, column="clinic")
    x, y = torch.arange(10.0).reshape(5, 2).double(), torch.tensor([90.0, 100, 120, 300, 100])
    data = Dataset(x, y.double(), people=People(unit="clinic", rows_per_unit=3))
    made = mixed_tables.grouped(data, np.array([1, 0, 1, 1, 0]), mixed, 3)
    assert made.people.are_records
    assert sorted(made.x.reshape(2, 3, 3)[..., -1].sum(1).tolist()) == [2.0, 3.0]
    assert made.y.tolist() == [[-0.5, 1.0, 2.0], [0.0, 0.0, 0.0]]
    inner = mixed_tables.of_records(mixed, 3)
    latents = {"w": torch.tensor([0.1, -0.2, 0.3]).double()}
    logs = {"log_scale": torch.tensor(-0.5).double(), "log_spread": torch.tensor(-1.0).double()}
    found = log_likelihood(inner, {**latents, **logs}, made.x, made.y)
    w = 20 * latents["w"] + torch.tensor([0.0, 0.0, 100.0]).double()
    spread, sd = 20 * math.exp(-1.0), 20 * math.exp(-0.5)
    for at, some in enumerate(([0, 2, 3], [1, 4])):
        eta = torch.cat([x[some], torch.ones(len(some), 1)], 1) @ w
        cov = sd**2 * torch.eye(len(some)).double() + spread**2
        law = torch.distributions.MultivariateNormal(eta, cov)
        wanted = law.log_prob(of.cut(y[some].double())) + len(some) * math.log(20)
        assert float(found[at]) == pytest.approx(float(wanted), abs=1e-6)
    assert inner.identified(9).shape == (3, 3)
    assert isinstance(inner, MixedRecords)


def test_rows_of_a_person_are_no_unit() -> None:
    """Only records that are whole units are charged as one, whatever the number of their rows."""
    rows, left = DPVI(rows=1000), Allowance(1.0, 1e-5, 0.0)
    one, three = (DPVIPlan.of(rows, 5, left._replace(rows=k)) for k in (1, 3))
    units = DPVIPlan.of(rows, 5, left._replace(rows=3), units=True)
    assert [type(each.events[0]) for each in (one, three, units)] == [
        SampledGaussian, SampledGaussian, UnitSteps,
    ]  # fmt: skip
    noise = one.event.noise_multiplier
    assert units.event.noise_multiplier == noise
    assert three.event.noise_multiplier == pytest.approx(3 * noise)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"target": "count", "model": BayesianNegativeBinomialRegression(largest=9)},
            "group='clinic': mixed models are logistic, linear, poisson, not negative binomial",
        ),
        ({"group": "number"}, "must be neither the target nor left out"),
        ({"group": "ward"}, "group='ward' must be a column"),
        ({"hashed": True}, "hashed=True would mix groups"),
        ({"weights": "age", "largest_weight": 80.0}, "weights='age'"),
        ({"unit": Unit("clinic", rows=3), "rows": 100.0}, "rows=100.0: a mixed model"),
        ({"epsilon": 1.0, "levels": ("c0000", "c0001")}, "2 groups of 'clinic', and τ needs 3"),
    ],
)
def test_what_does_not_go_together_is_refused_uncharged(
    given: dict[str, Any], message: str
) -> None:
    frame = table(4, 60)
    given = {"target": "number", "model": LINEAR if "positive" not in given else None} | given
    levels = given.pop("levels", ("c0000", "c0001", "c0002", "c0003"))
    names = ("group", "hashed", "weights", "largest_weight", "rows")
    said = {name: given.pop(name) for name in names if name in given}
    declared = KNOWN if "unit" in given else {**KNOWN, "clinic": list(levels)}
    others = tuple(one for one in ("number", "count", "sick") if one != given["target"])
    usual = {"group": "clinic", "constants": constants_of(declared), "drop": others}
    if "weights" in said:
        del usual["constants"]
    public = Public(**{**usual, **said})
    given["ledger"] = ledger = bdpvi.Ledger()
    with pytest.raises(ValueError, match=message):
        bdpvi.private(frame, public=public, **{"epsilon": 1.0, **given})
    assert not ledger.entries()
