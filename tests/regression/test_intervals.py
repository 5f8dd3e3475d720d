"""The route of noisy scores: its price, its refusals, and what its releases say and keep."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from test_cli import run

import bdpvi
from bdpvi import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegression,
    Dataset,
    Release,
    TooFewRecordsError,
    fit_private,
)
from bdpvi.datasets import Encoding
from bdpvi.datasets.columns import Numeric, OneHot
from bdpvi.programs.plan import DPVIPlan
from bdpvi.regression import NoisyScores
from bdpvi.regression.noisy_scores import _estimate
from bdpvi.regression.score_posterior import Posterior
from bdpvi.regression.score_release import ScorePlan
from bdpvi.regression.score_rounds import Joined
from bdpvi.releases.estimate import HIDDEN, LEFT_OUT
from bdpvi.releases.route import Allowance
from bdpvi.tables.setup import Intervals

MODEL = BayesianLogisticRegression.unweighted(intercept=True, prior_scale=5.0)
MODELS: dict[str, Any] = {
    "logistic": MODEL,
    "linear": BayesianLinearRegression(largest=5.0),
    "poisson": BayesianPoissonRegression(largest=10.0),
}
TRUTH = torch.tensor([1.0, -0.5, 0.0], dtype=torch.float64)


def table(name: str = "logistic", n: int = 4000) -> Dataset:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=g, dtype=torch.float64)
    mean = x @ TRUTH[:2]
    if name == "logistic":
        y = (torch.rand(n, generator=g) < torch.sigmoid(mean)).double()
    elif name == "poisson":
        y = torch.poisson((mean / 2).exp(), generator=g)
    else:
        y = mean + 0.7 * torch.randn(n, generator=g, dtype=torch.float64)
    return Dataset(x, y, feature_names=("a", "b"))


REFUSED = ["reserved", "constants", "ended"]
"""What was charged where there are too few records: their count, and nothing stays reserved."""


@pytest.fixture(scope="module")
def release() -> Release:
    return fit_private(MODEL, table(), epsilon=1.0, route=NoisyScores())


@pytest.mark.parametrize("rows", [None, 4000.0])
def test_the_rounds_and_the_count_cost_what_was_asked_for(rows: float | None) -> None:
    data = table()
    found = fit_private(MODEL, data, epsilon=1.0, route=NoisyScores(rows=rows))
    entries = data.ledger.book().charges
    assert [entry.kind for entry in entries] == ["constants", "release"][rows is not None :]
    assert not data.ledger.book().opened
    total = data.ledger.worst_case(1e-5)
    assert 0.998 <= total.epsilon <= 1.0
    assert total.distance is not None  # a Gaussian mechanism: what it leaves is known
    if rows is None:
        shares = [entry.events[0].noise_multiplier ** -2 for entry in entries]
        assert shares[0] / sum(shares) == pytest.approx(0.01, rel=0.01)
    assert found.receipt.bound.kind.value == "worst-case DP"
    assert found.receipt.bound.epsilon == 1.0


def test_too_few_records_are_refused_for_no_more_than_their_count() -> None:
    data = table(n=300)
    with pytest.raises(
        TooFewRecordsError, match=r"are needed .* Options: epsilon=.* with rows=300"
    ):
        fit_private(MODEL, data, epsilon=0.2, route=NoisyScores(rows=300))
    assert data.ledger.entries() == ()
    with pytest.raises(TooFewRecordsError):
        fit_private(MODEL, data, epsilon=0.2, route=NoisyScores())
    assert [entry.kind for entry in data.ledger.entries()] == REFUSED


def test_a_late_refusal_is_a_release_that_says_so() -> None:
    found = fit_private(MODEL, table(n=300), epsilon=0.2, route=NoisyScores(rows=1e5))
    assert found.estimate is not None
    assert not found.estimate.reliable
    text = str(found.summary())
    assert "reliable: no" in text
    assert "too few records" in text


def test_a_changed_estimate_is_refused(release: Release, tmp_path: Path) -> None:
    bdpvi.save_release(release, tmp_path / "release.json")
    content = json.loads((tmp_path / "release.json").read_text())
    for change, said in (
        ({"mean": [0.0]}, "must be of 1 weight"),
        ({"covariance": [[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]}, "eigenvalues"),
        ({"sampling": [-1.0, 1.0, 1.0]}, "sampling must be finite and at least 0"),
        ({"reliable": "yes"}, r"estimate\.reliable must be bool"),
    ):
        wrong = content | {"estimate": content["estimate"] | change}
        (tmp_path / "wrong.json").write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=said):
            bdpvi.load_release(tmp_path / "wrong.json")
    del content["estimate"]  # as earlier versions wrote it
    (tmp_path / "old.json").write_text(json.dumps(content))
    assert bdpvi.load_release(tmp_path / "old.json").estimate is None


@pytest.mark.parametrize(
    ("model", "guide", "said"),
    [
        (lambda x, y=None: None, None, "route=NoisyScores.. is for BayesianLogisticRegression"),
        (BayesianLogisticRegression.unweighted(), None, "needs intercept=True"),
        (MODEL, "guide", "guide='guide'"),
    ],
)
def test_what_does_not_go_this_way_is_refused(model: Any, guide: Any, said: str) -> None:
    data = table()
    with pytest.raises(ValueError, match=said):
        fit_private(model, data, epsilon=1.0, route=NoisyScores(), guide=guide)
    with pytest.raises(ValueError, match="rows must be finite and positive, got -1"):
        NoisyScores(rows=-1)
    assert data.ledger.entries() == ()


def test_targets_and_columns_are_checked_before_anything_is_charged() -> None:
    data = table("linear")
    with pytest.raises(ValueError, match="x has no columns"):
        fit_private(MODELS["linear"], Dataset(data.x[:, :0], data.y), epsilon=1.0)
    with pytest.raises(ValueError, match="largest must be a whole number"):
        BayesianPoissonRegression(largest=2.5)
    assert data.ledger.entries() == ()


def test_categories_have_a_base_level_and_units_their_odds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a level that nobody has, one noisy count in 44 is above two standard deviations.
    monkeypatch.setattr("bdpvi.regression.score_rounds.EMPTY", 6.0)
    g = torch.Generator().manual_seed(0)
    n = 30_000
    kinds = torch.multinomial(torch.tensor([0.5, 0.5, 0.0]), n, True, generator=g)
    age = torch.randn(n, generator=g).double() * 10 + 40
    logit = (age - 40) / 10 + 0.8 * (kinds == 1)
    y = (torch.rand(n, generator=g) < torch.sigmoid(logit)).double()
    columns = (Numeric("age", mean=40.0, sd=10.0), OneHot("kind", ("a", "b", "c")))
    encoding = Encoding(columns, "By law.")
    frame = pd.DataFrame({"age": age.numpy(), "kind": [("a", "b", "c")[i] for i in kinds]})
    data = Dataset(
        encoding.apply(frame),
        y,
        feature_names=encoding.feature_names,
        preprocessing={"encoding": encoding.to_dict()},
    )
    found = fit_private(MODEL, data, epsilon=1.0, route=NoisyScores())
    summary = found.summary(odds=True)
    assert summary.reliable
    text = str(summary)
    assert text.startswith("95 % intervals; reliable: yes, 3 of 3 coefficients are measured\n")
    assert "Left out, too few records have them for this ε: kind=c\n" in text
    assert text.count("kind=c") == 1
    rows = {coefficient.name: coefficient for coefficient in summary.coefficients}
    assert rows["kind=a"].note == "base level"
    assert float(found.latents["w"][:, 1].abs().max()) == 0
    assert rows["kind=c"].note == LEFT_OUT
    assert rows["kind=c"].sd is None
    means = [float(found.latents["w"][:, at].double().mean()) for at in (2, 3)]
    assert means[1] / means[0] == pytest.approx(0.5, abs=0.05)  # half of the records are b
    assert rows["kind=b"].note == ""
    assert abs(rows["kind=b"].mean - 0.8) < 5 * (rows["kind=b"].sd or 0.0)
    assert found.estimate is not None
    ten = found.summary(per={"age": 10}).coefficients[0]
    assert ten.ratio()[0] == pytest.approx(math.exp(10 * rows["age"].mean))
    assert ten.mean == pytest.approx(found.estimate.mean[0])  # its public scale is 10
    _another_reference_level(found)
    bdpvi.save_release(found, tmp_path / "release.json")
    assert run("summary", tmp_path / "release.json", "--reference", "kind=c") == 0
    assert "'kind' is compared with 'c'" in capsys.readouterr().out
    assert run("summary", tmp_path / "release.json", "--reference", "kind") == 2
    assert "reference='kind' must be like smokes=never" in capsys.readouterr().err


@pytest.mark.parametrize(("blanks", "reliable"), [(3, True), (0, False)])
def test_levels_that_are_left_out_do_not_count_as_not_measured(blanks: int, reliable: bool) -> None:
    """Two of three directions that are used are measured; or two of six."""
    kept = torch.tensor([True] * 2 + [False] * blanks + [True] * (1 if reliable else 4))
    known = torch.arange(len(kept)) < 2
    unseen = 25.0 * (~known).double().diag()
    sizes = unseen + 0.01 * known.double().diag()
    used = int(kept.sum())
    posterior = Posterior(torch.zeros(len(kept)).double(), sizes, sizes, unseen, 2, used, 0.0)
    joined = Joined(kept, ~kept & False, ~kept, torch.eye(len(kept)).double()[:, kept])
    made = _estimate(posterior, torch.ones_like(kept), joined, 5.0)
    assert made.reliable == posterior.passes == reliable
    assert made.notes.count("") == 2
    assert made.notes.count(LEFT_OUT) == blanks
    assert ("2 of 6 coefficients are measured" in made.reason) == (not reliable)


def _another_reference_level(found: Release) -> None:
    """Draws of the same posterior, subtracted one by one; and no prediction changes."""
    again = found.summary(reference={"kind": "b"})
    rows = {coefficient.name: coefficient for coefficient in again.coefficients}
    usual = {coefficient.name: coefficient for coefficient in found.summary().coefficients}
    assert (rows["kind=b"].note, rows["kind=b"].mean, rows["kind=b"].sd) == ("base level", 0, None)
    assert rows["age"] == usual["age"]
    assert rows["kind=a"].note == ""
    assert rows["kind=c"].note == LEFT_OUT
    hidden = {
        coefficient.name: coefficient.note
        for coefficient in found.summary(reference={"kind": "c"}).coefficients
    }
    assert [hidden[f"kind={level}"] for level in "abc"] == [HIDDEN, HIDDEN, "base level"]
    assert (hidden["age"], hidden["intercept"]) == ("", HIDDEN)
    assert "'kind' is compared with 'b'" in again.reason
    assert rows["kind=a"].mean == pytest.approx(-usual["kind=b"].mean)
    assert rows["kind=a"].privacy == usual["kind=b"].privacy
    for level in "abc":
        whole = rows["intercept"].mean + rows[f"kind={level}"].mean
        assert whole == pytest.approx(usual["intercept"].mean + usual[f"kind={level}"].mean)
    w = found.with_draws(40_000).latents["w"].double()
    drawn = w[:, 4] + w[:, 2]
    sd = rows["intercept"].sd
    assert sd == pytest.approx(float(drawn.std()), rel=6 / math.sqrt(2 * len(w)))
    assert abs(rows["intercept"].mean - float(drawn.mean())) < 6 * float(drawn.std()) / 200
    assert rows["kind=c"].sd is None  # nothing is known of a level that is left out
    assert rows["intercept"].privacy is None  # of a sum of two weights
    draws = replace(found, estimate=None).summary(0.5, reference={"kind": "c"})
    w = found.latents["w"].double()
    ends = (w[:, 1] - w[:, 3]).quantile(torch.tensor([0.25, 0.75]).double()).tolist()
    assert [draws.coefficients[1].low, draws.coefficients[1].high] == pytest.approx(ends)
    for bad, words in (
        ({"age": "a"}, r"reference='age' must be a category with named levels: \['kind'\]"),
        ({"kind": "d"}, r"reference='d' must be a level of 'kind': \['a', 'b', 'c'\]"),
    ):
        with pytest.raises(ValueError, match=words):
            found.summary(reference=bad)


def test_the_route_for_intervals_follows_from_public_facts() -> None:
    scores, trained = NoisyScores(rows=7500), bdpvi.DPVI(rows=7500)
    route = Intervals(scores=scores, trained=trained)

    def kind(features: int, epsilon: float, rows: float = 7500.0) -> type:
        return type(route.of_rows(rows).plan(MODEL, features, Allowance(epsilon, 1e-5, 0.0)))

    assert kind(36, 3.0) is kind(5, 1.0) is ScorePlan
    assert kind(60, 3.0) is kind(36, 2.0) is DPVIPlan
    assert kind(60, 9.0, 2e4) is ScorePlan
    with pytest.raises(TooFewRecordsError):  # DPVI would measure little, too
        kind(10, 1.0, 600.0)
    assert kind(60, 3.0) is DPVIPlan
    with pytest.raises(TooFewRecordsError):  # nobody knows when DPVI is worth it for persons
        route.plan(MODEL, 60, Allowance(3.0, 1e-5, 0.0, rows=2))
    route = route.of_columns(20)  # a record has one level of each category
    assert kind(60, 3.0) is ScorePlan


@pytest.mark.parametrize(
    "model",
    [bdpvi.BayesianLinearRegression.of_bounds(0, 9), bdpvi.BayesianPoissonRegression(largest=9)],
)
def test_numbers_and_counts_take_noisy_scores_alone(model: Any) -> None:
    """Intervals of a guide that is trained for them cover too rarely."""
    route = Intervals(scores=NoisyScores(rows=7500), trained=bdpvi.DPVI(rows=7500))
    for features, epsilon in ((5, 1.0), (36, 2.0), (60, 3.0)):
        try:
            plan = route.plan(model, features, Allowance(epsilon, 1e-5, 0.0))
        except TooFewRecordsError:
            continue
        assert isinstance(plan, ScorePlan)


def test_many_features_are_trained_and_their_summary_says_how_many_are_measured() -> None:
    data, n = table(n=3000), 3000
    g = torch.Generator().manual_seed(1)
    more = torch.randn(n, 28, generator=g, dtype=torch.float64)
    wide = Dataset(torch.cat([data.x, more], 1), data.y)
    scores, trained = NoisyScores(rows=n), bdpvi.DPVI(rows=n, steps=200)
    found = fit_private(MODEL, wide, epsilon=3.0, route=Intervals(scores=scores, trained=trained))
    assert found.guide is not None
    assert found.estimate is None
    summary = found.summary()
    seen = sum(coefficient.measured for coefficient in summary.coefficients)
    assert summary.reliable is (seen >= 15.5)
    assert f"{seen} of 31 coefficients are measured" in str(summary)
    assert all(coefficient.sd for coefficient in summary.coefficients)


def test_what_was_paid_on_the_way_is_a_path_and_no_guarantee() -> None:
    found = fit_private(MODEL, table(), epsilon=1.0, route=NoisyScores())
    cost = found.cost
    assert cost.path is not None
    assert cost.worst_case is not None
    assert cost.bayesian is None
    assert cost.path.epsilon < cost.worst_case.epsilon <= 1.0
    assert "not a guarantee about the algorithm" in str(cost)
    few = fit_private(MODEL, table(n=50), epsilon=1.0, route=NoisyScores(rows=1e5))
    assert few.cost.path is None
