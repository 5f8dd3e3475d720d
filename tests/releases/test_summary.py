"""Summaries: of posteriors that know of the noise, and of draws, with what these leave out."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from scipy import stats
from simulated import guided, logistic_data

import bdpvi
from bdpvi import BayesianLogisticRegression, Release, fit_private
from bdpvi.datasets.cells import read_columns
from bdpvi.datasets.columns import Numeric, OneHot
from bdpvi.datasets.encoding import Encoding
from bdpvi.datasets.schema import Schema
from bdpvi.datasets.types import ColumnType
from bdpvi.regression import NoisyScores, ObjectivePerturbation
from bdpvi.releases.estimate import Estimate
from bdpvi.releases.summary import rounded
from bdpvi.tables import Public

MODEL = BayesianLogisticRegression.unweighted(intercept=True, limit=2.0)


@pytest.fixture(scope="module")
def minima() -> Release:
    data = logistic_data(200, 2)
    return fit_private(MODEL, data, epsilon=1.0, route=ObjectivePerturbation(draws=30))


def known(release: Release, **changes: object) -> Release:
    from dataclasses import replace

    given: dict[str, object] = {
        "mean": (1.0, -0.5, 0.0),
        "covariance": ((0.04, 0.01, 0.0), (0.01, 0.09, 0.0), (0.0, 0.0, 0.0)),
        "sampling": (0.15, 0.3, 0.0),
        "reliable": True,
        "notes": ("", "", "base level"),
    }
    return replace(release, estimate=Estimate(**(given | changes)))  # type: ignore[arg-type]


def test_intervals_and_shares_are_those_of_the_normal_posterior(minima: Release) -> None:
    summary = known(minima).summary(0.9)
    one, two, three = summary.coefficients
    law = stats.norm(1.0, 0.2)
    assert (one.low, one.high) == pytest.approx((law.ppf(0.05), law.ppf(0.95)), rel=1e-9)
    assert one.positive == pytest.approx(law.sf(0.0))
    assert one.privacy == pytest.approx(0.25)
    assert two.privacy == 0
    assert three.note == "base level"
    assert three.privacy is None
    ends = (1.0, one.low or 0.0, one.high or 0.0)
    assert one.ratio() == pytest.approx(tuple(map(math.exp, ends)))
    assert [c.name for c in summary.coefficients] == ["x0", "x1", "intercept"]
    content = json.loads(json.dumps(summary.to_dict()))
    assert content["coefficients"][0]["ratio"] == list(one.ratio())
    frame = summary.to_frame()
    assert frame.loc["x0", "ratio_high"] == one.ratio()[2]
    text = str(summary)
    assert text.startswith("90 % intervals; reliable: yes")
    assert "odds ratio" not in text
    assert "odds ratio" in str(known(minima).summary(odds=True))


def test_the_noise_of_a_linear_model_has_its_interval(minima: Release) -> None:
    noise = known(minima, log_scale=(0.0, 0.1)).summary().noise
    assert noise == pytest.approx((1.0, math.exp(-0.196), math.exp(0.196)), rel=1e-3)


def test_draws_have_quantiles_and_a_word_on_what_they_leave_out(minima: Release) -> None:
    summary = minima.summary(0.5)
    assert summary.reliable is None
    values = minima.latents["w"].double()
    first = summary.coefficients[0]
    assert first.mean == pytest.approx(float(values[:, 0].mean()))
    assert (first.low, first.high) == pytest.approx(
        tuple(values[:, 0].quantile(torch.tensor([0.25, 0.75]).double()).tolist())
    )
    assert "privacy noise alone" in summary.reason
    assert first.privacy is None
    with pytest.raises(ValueError, match="each draw of this release costs"):
        minima.with_draws(5)
    with pytest.raises(ValueError, match="level must lie strictly between 0 and 1, got 95"):
        minima.summary(95)


@pytest.mark.parametrize("listed", [("b", "a", "c"), ()])
def test_levels_are_compared_with_the_first_by_default(
    listed: tuple[str, ...], tmp_path: Path
) -> None:
    """In every form of the table, at no price; where no level is listed it is ``other``."""
    g = torch.Generator().manual_seed(0)
    kind = torch.randint(3, (3000,), generator=g)
    frame = pd.DataFrame({"age": torch.randn(3000, generator=g).numpy(), "kind": list(kind)})
    frame["kind"] = ["abc"[int(at)] for at in kind]
    encoding = Encoding((Numeric("age", 0.0, 1.0), OneHot("kind", listed)), "x", unknown="other")
    y = (torch.rand(3000, generator=g) < torch.sigmoid(kind - 1.0)).double()
    told = {"encoding": encoding.to_dict()}
    names = encoding.feature_names
    x = encoding.whole(read_columns(frame))
    model = BayesianLogisticRegression.unweighted(intercept=True, prior_scale=5.0)
    first = "kind=b" if listed else "kind=other"
    for route in (ObjectivePerturbation(draws=25), NoisyScores()):
        data = bdpvi.Dataset(x, y, feature_names=names, preprocessing=told)
        found = fit_private(model, data, epsilon=2.0, route=route)
        summary = found.summary(odds=True)
        rows = {coefficient.name: coefficient for coefficient in summary.coefficients}
        assert (rows[first].note, rows[first].mean, rows[first].sd) == ("base level", 0, None)
        assert summary.to_frame().loc[first, "note"] == "base level"
        assert summary.to_dict()["coefficients"][2]["ratio"] == (1.0, None, None)
        assert f"{first} " in str(summary)
        minima, alone = found.estimate is None, "that no record has is privacy noise alone"
        assert (alone in summary.reason) == (alone in found.receipt.meaning) == minima
        w, at = found.latents["w"].double(), {name: at for at, name in enumerate(names)}
        apart = (w[:, at["kind is missing"]] - w[:, at[first]]).mean()
        assert rows["kind is missing"].mean == pytest.approx(float(apart), abs=0.3)
        assert summary.plot(tmp_path / f"{type(route).__name__}.png").exists()


def test_releases_of_a_secret_fit_say_that_noise_and_clip_are_not_in_it() -> None:
    data = logistic_data(200, 2)
    fit = guided(data)
    one = bdpvi.release(fit, 1, epsilon=0.5)
    points = one.summary()
    assert points.reliable is None
    assert {(row.sd, row.low, row.high, row.positive) for row in points.coefficients} == {
        (None,) * 4
    }
    weights = one.latents["w"][0].tolist()
    assert [row.mean for row in points.coefficients] == pytest.approx(weights)
    assert str(points).startswith("point estimates, without intervals")
    assert "too few draws were released for intervals" in str(points)
    many = bdpvi.release(fit, 25, epsilon=1.0)
    assert "nor the bias of a clip, of record weights or of a strong prior" in str(many.summary())


def test_correlated_features_have_coefficients_of_their_own() -> None:
    data = logistic_data(300, 2)
    model = BayesianLogisticRegression.unweighted(intercept=True, limit=2.0, correlation=0.5)
    found = fit_private(model, data, epsilon=5.0, route=ObjectivePerturbation(draws=20))
    summary, x = found.summary(), torch.tensor([[0.3, -0.2], [0.0, 0.0]], dtype=torch.float64)
    logits = (model.design(x).double() @ found.latents["w"].double().T).mean(1)
    slopes = torch.tensor(
        [coefficient.mean for coefficient in summary.coefficients], dtype=torch.float64
    )
    assert logits[0].item() == pytest.approx(float(x[0] @ slopes[:2] + slopes[2]), rel=1e-6)


def test_a_forest_plot_is_drawn(minima: Release, tmp_path: Path) -> None:
    for odds in (False, True):
        path = known(minima).summary(odds=odds).plot(tmp_path / f"{odds}.png")
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def of_table() -> Release:
    random = torch.Generator().manual_seed(0)
    age = torch.rand(4000, generator=random) * 60 + 20
    sick = torch.rand(4000, generator=random) < torch.sigmoid((age - 50) / 20)
    frame = pd.DataFrame(
        {"age": age.numpy(), "name": ["a_b", "c&d"] * 2000, "sick": sick.int().numpy()}
    )
    public = Public(types=Schema({"age": ColumnType(kind="number", low=20, high=80)}, "By law."))
    return bdpvi.private(
        frame, target="sick", positive=1, epsilon=3.0, public=public, intervals=True
    )


def test_a_coefficient_is_per_unit_of_its_column_or_as_many_as_asked(of_table: Release) -> None:
    scale = 60 / math.sqrt(12)
    assert of_table.estimate is not None
    age = of_table.summary().coefficients[0]
    assert age.mean == pytest.approx(of_table.estimate.mean[0] / scale, rel=1e-12)
    ten = of_table.summary(per={"age": 10}).coefficients[0]
    for name in ("mean", "sd", "low", "high"):
        assert getattr(ten, name) == pytest.approx(10 * getattr(age, name), rel=1e-12)
    assert (ten.label, age.label, ten.positive) == ("age (per 10)", "age", age.positive)
    assert ten.mean == pytest.approx(0.5, abs=6 * (ten.sd or 0.0))
    others = of_table.summary(per={"age": 10}).coefficients[1:]
    assert others == of_table.summary().coefficients[1:]
    for per in ({"name": 2}, {"x": 2}, {"age": 0}):
        with pytest.raises(ValueError, match="per"):
            of_table.summary(per=per)


def test_numbers_have_two_digits_of_half_their_interval() -> None:
    assert rounded(1.08512, 1.0809, 1.0913, width=0.0104) == ["1.0851", "1.0809", "1.0913"]
    assert rounded(12345.678, width=300.0) == ["12346"]
    assert rounded(0.5, None, width=None) == ["0.5"]
    assert rounded(3.2e8, width=10.0) == ["3.2e+08"]
    assert rounded(1.0, width=math.inf) == ["1"]


def test_a_table_is_written_in_other_forms(of_table: Release, tmp_path: Path) -> None:
    summary = of_table.summary(odds=True, per={"age": 10})
    html = summary.save(tmp_path / "table.html").read_text(encoding="utf-8")
    assert "<td>name=c&amp;d</td>" in html
    assert html.count("<tr>") == len(summary.rows())
    assert summary._repr_html_() + "\n" == html
    latex = summary.save(tmp_path / "table.tex").read_text(encoding="utf-8")
    assert r"name=c\&d & " in latex or r"name=a\_b & " in latex
    assert latex.count(r" \\") == len(summary.rows())
    frame = pd.read_csv(summary.save(tmp_path / "table.csv"), index_col="name")
    assert frame.loc["age", "mean"] == summary.coefficients[0].mean
    assert summary.save(tmp_path / "forest.svg").read_text(encoding="utf-8").count("<svg") == 1
    with pytest.raises(ValueError, match="exist"):
        summary.save(tmp_path / "table.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "forest.svg",
        "table.csv",
        "table.html",
        "table.tex",
    ]
