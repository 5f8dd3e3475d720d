"""``bdpvi private``: one command, one ε for all that leaves the house."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
import torch
from simulated import logistic_data
from sklearn.linear_model import LogisticRegression
from test_cli import run

import bdpvi
from bdpvi.datasets import constants_of
from bdpvi.noise.keys import Key
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.ledger import Ledger
from bdpvi.regression.objective import ObjectivePerturbation
from bdpvi.regression.objective_plan import ObjectivePlan
from bdpvi.releases import intent
from bdpvi.releases.transaction import Transaction
from bdpvi.tables import encoded, scores
from bdpvi.tables.scores import FEWEST, FOLDS, TURNS, Scores, preview_scores
from bdpvi.tables.work import Work

READ = ", conditional on preprocessing bounds read from this table"

ROWS = 3_000
"""Four times what ε = 1 needs for these columns: noise changes nothing of what is asserted."""


def patients(rows: int = ROWS) -> pd.DataFrame:
    """Return a table with blanks, an id, a category with one member, and a rare class."""
    generator = np.random.default_rng(3)
    age, dose = generator.normal(50, 12, rows), generator.normal(2, 1, rows)
    sex = generator.choice(["F", "M"], rows)
    odds = -4 + 0.1 * (age - 50) + (sex == "M") + 0.5 * dose
    sick = np.where(generator.random(rows) < 1 / (1 + np.exp(-odds)), "yes", "no")
    frame = pd.DataFrame(
        {"id": np.arange(rows), "age": age, "dose": dose.round(2), "sex": sex, "sick": sick}
    )
    frame.loc[1, "age"] = np.nan
    frame.loc[2, "sex"] = "hospice"
    frame.loc[4, "sick"] = None
    return frame


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("private") / "patients.csv"
    patients().to_csv(path, index=False)
    return path


BOUGHT = ["reserved", "constants", "constants", "release", "ended"]
"""What a release charges whose constants are estimated privately."""


def private(table: Path, out: Path, *more: object) -> int:
    given = ("--target", "sick", "--positive", "yes", "--drop", "id", "--out", out, "--quiet")
    if "--ledger" not in more:  # of other people each time
        more += ("--ledger", out.with_name(f"{out.name}.ledger.jsonl"))
    return run("private", "--one-row-per-person", "--data", table, *given, *more)


def test_one_command_makes_a_model_that_may_be_shared(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "shared"
    assert private(table, out, "--epsilon", 1, "--delta", 1e-8) == 0
    said = capsys.readouterr().out
    assert "worst-case DP ε = 1 (target)" in said
    assert "no Bayesian ε" in said
    assert "simulated releases" in said
    assert "no ε covers them" in said
    assert sorted(path.name for path in out.iterdir()) == ["release.json", "statement.html"]
    shared = (out / "release.json").read_text("utf-8")
    release = bdpvi.load_release(out / "release.json")
    assert "were estimated privately: ε covers them" in release.receipt.meaning
    assert Assumption.PRIVATE_CONSTANTS in release.receipt.bound.assumptions
    # Neither exact constants, nor one patient's category (let in with probability 1e-9), nor
    # scores, nor the number of records.
    encoding = release.encoding
    assert encoding is not None
    age = patients()["age"]
    for name in ("hospice", "AUC", "log score", str(age.mean()), str(age.std())):
        assert name not in shared
    assert not re.search(rf"(?<![\d.]){ROWS}(?![\d.])", shared)  # as a number, not as digits of one
    assert set(release.feature_names) >= {"age", "dose", "sex=F", "sex=M"}
    # A blank, a stray text and an unknown category are predicted, not refused.
    new = pd.DataFrame({"age": [np.nan, "old", 1e300], "dose": [1, 2, 3], "sex": ["X", None, "F"]})
    assert release.predict_mean(new).between(0, 1).all()

    # Nothing is left that tells more than the release: no rows, no fit, and no key.
    secret, ledger = tmp_path / "shared.secret", tmp_path / "shared.ledger.jsonl"
    assert {path.name for path in secret.iterdir()} == {
        "intent.json", "intent.output", "ledger.head",
    }  # fmt: skip
    assert intent.read(secret / intent.NAME).key == b""
    assert (secret / "intent.output").read_text("utf-8") == shared
    entries = Ledger.at(ledger).entries()
    assert [entry.kind for entry in entries] == BOUGHT
    capsys.readouterr()
    assert run("account", secret, "--delta", 1e-8, "--json") == 0
    assert 0.97 < json.loads(capsys.readouterr().out)["total"]["epsilon"] <= 1
    # The budget is spent, and nothing is overwritten.
    more: tuple[object, ...] = ("--epsilon", 2, "--delta", 1e-8, "--ledger", ledger)
    assert private(table, tmp_path / "m", *more) == 2
    assert "budget" in capsys.readouterr().err
    assert private(table, out, "--epsilon", 1) == 2
    assert "was begun with other options" in capsys.readouterr().err
    assert Ledger.at(ledger).entries() == entries


def test_json_keeps_public_and_secret_apart(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--epsilon", 1, "--no-scores", "--json")
    assert private(table, tmp_path / "shared", *options) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result) == {"public", "secret"}
    assert result["public"]["receipt"]["worst_case"]["epsilon"] == 1
    assert set(result["secret"]) == {"folder", "cost"}


def test_what_it_would_take_follows_from_the_header(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = tmp_path / "header.csv"
    header.write_text(",".join(patients().columns) + "\n")
    found = []
    for file in (table, header):
        assert private(file, tmp_path / "shared", "--epsilon", 1, "--plan", "--json") == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert set(found[0]["bought"]) == {"age", "dose", "sex"}
    assert 100 < found[0]["records_needed"] < ROWS / 2
    assert [path.name for path in tmp_path.iterdir()] == ["header.csv"]
    gated = ("--epsilon", 1, "--plan", "--draws-of-the-posterior")
    assert private(table, tmp_path / "shared", *gated) == 0
    assert "The draws' gate may need more" in capsys.readouterr().out


def test_too_few_records_are_said_before_the_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "few.csv", tmp_path / "shared"
    patients(60).to_csv(file, index=False)
    for _ in range(2):  # the second time it is the same answer, from the same key
        assert private(file, out, "--epsilon", 1) == 2
        error = capsys.readouterr().err
        assert "Options: public bounds and categories for these columns" in error
        assert "--constants FILE" in error
        assert "Nothing was fitted" in error
        assert not out.exists()
    constants = tmp_path / "constants.json"
    public = {"source": "By law.", "age": [18, 98], "dose": [0, 4], "sex": ["F", "M"]}
    constants.write_text(json.dumps(public))
    assert private(file, tmp_path / "public", "--epsilon", 1, "--constants", constants) == 0


def test_exact_constants_are_asked_for_and_named_everywhere(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--epsilon", 1, "--from-data", "--missing", "level", "--no-scores")
    frame = patients().dropna(subset="sick")
    frame.to_csv(tmp_path / "whole.csv", index=False)
    assert private(tmp_path / "whole.csv", tmp_path / "shared", *more) == 0
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if "worst-case" in line.lower()]
    assert lines
    assert all(READ in line for line in lines if "ε =" in line)
    release = bdpvi.load_release(tmp_path / "shared" / "release.json")
    assert Assumption.CONSTANTS_FROM_TABLE in release.receipt.bound.assumptions


@pytest.mark.usefixtures("quick")
def test_a_bayesian_guarantee_needs_public_constants(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--epsilon", 2, "--guarantee", "bayesian", "--no-scores", "--json")
    assert private(table, tmp_path / "one", *more) == 2
    assert "needs public bounds or categories" in capsys.readouterr().err
    constants = tmp_path / "constants.json"
    public = {"source": "By law.", "age": [18, 98], "dose": [0, 4], "sex": ["F", "M"]}
    constants.write_text(json.dumps(public))
    assert private(table, tmp_path / "two", *more, "--constants", constants) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["public"]["receipt"]["bayesian"]["kind"] == "Bayesian DP"
    assert result["secret"]["cost"]["bayesian"]["reliable"]


def test_a_column_of_text_without_common_values_gets_a_hint() -> None:
    frame = patients().assign(income=[f"{n:,}" for n in range(10_000, 10_000 + ROWS)])
    given: dict[str, Any] = {"target": "sick", "positive": "yes", "epsilon": 1, "drop": ["id"]}
    with pytest.warns(bdpvi.PrivacyUtilityWarning, match=r"'income': mostly text.*\(1,234\)"):
        flat.private(frame, progress=False, **given)


def test_a_table_without_rows_and_a_link_that_leads_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "header.csv").write_text("age,sick\n")
    constants = tmp_path / "constants.json"
    constants.write_text(json.dumps({"source": "By law.", "age": [18, 98]}))
    given: tuple[object, ...] = ("--data", tmp_path / "header.csv", "--target", "sick")
    given += ("--positive", "yes", "--epsilon", 1, "--constants", constants, "--no-scores")
    assert run("private", "--one-row-per-person", *given, "--out", tmp_path / "none") == 0
    release = bdpvi.load_release(tmp_path / "none" / "release.json")
    assert release.predict_mean(pd.DataFrame({"age": [50]})).between(0, 1).all()
    for name in ("out", "in.secret"):
        (tmp_path / name).symlink_to(tmp_path / "nowhere")
        capsys.readouterr()
        assert (
            run("private", "--one-row-per-person", *given, "--out", tmp_path / name.split(".")[0])
            == 2
        )
        assert "is a link that leads nowhere" in capsys.readouterr().err


def test_a_declared_base_rate_is_the_intercepts_prior_mean(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--epsilon", 1, "--base-rate", 0.2, "--no-scores")
    assert private(table, tmp_path / "shared", *more) == 0
    release = bdpvi.load_release(tmp_path / "shared/release.json")
    assert isinstance(release.model, bdpvi.BayesianLogisticRegression)
    assert release.model.intercept_mean == pytest.approx(np.log(0.25))
    for given, words in ((("--base-rate", 0), "base_rate must"),):
        assert private(table, tmp_path / "other", "--epsilon", 1, *given) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_python_takes_frames_encoded_records_and_files(table: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"target": "sick", "positive": "yes", "epsilon": 1, "drop": ["id"]}
    for one, persons in ((patients(), False), (table, True)):
        release = flat.private(one, progress=False, one_row_per_person=persons, **given)
        assert release.receipt.bound.epsilon == 1
    public = constants_of({"source": "By law.", "age": [18, 98], "sex": ["F", "M"]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        named = patients().dropna(subset="sick")
        flat.private(named, progress=False, constants=public, **given)
        flat.private(logistic_data(500, 2), epsilon=1, progress=False)
    with pytest.raises(ValueError, match="positive=None: say which value"):
        flat.private(patients(), target="sick", epsilon=1, progress=False)
    with pytest.raises(ValueError, match="from_data=True and constants were both given"):
        flat.private(patients(), constants=public, from_data=True, **given)


@pytest.mark.filterwarnings("ignore::bdpvi.PrivacyUtilityWarning")
def test_simulated_releases_hold_out_whole_persons_and_have_their_noise(monkeypatch: Any) -> None:
    frame = patients(3000).assign(who=[f"p{row % 1000}" for row in range(3000)])
    given: dict[str, Any] = {"target": "sick", "positive": "yes", "drop": ("id",), "epsilon": 8.0}
    people: dict[str, Any] = {"unit": "who", "rows_per_unit": 2}
    work = flat.work(frame, progress=False, **people, **given)
    release = work.perform(Transaction(work.ledger, Key.of_seed(0)))
    held, lefts = [], []
    parts, encode = scores._parts, encoded.encode

    def watched(work: Work, given: Any, out: Any, key: Key) -> Any:
        held.append(out)
        return parts(work, given, out, key)

    def priced(*args: Any, left: Any, **options: Any) -> Any:
        lefts.append(left)
        return encode(*args, left=left, **options)

    monkeypatch.setattr(scores, "_parts", watched)
    monkeypatch.setattr(scores, "encode", priced)
    assert preview_scores(work, release, Key.of_seed(1), seconds=0.5) is not None
    persons = pd.Series(work.rows.first().persons)
    assert persons.value_counts().eq(2).mean() > 0.9  # but where a target is blank
    assert all(pd.Series(out).groupby(persons).nunique().eq(1).all() for out in held)
    each = {(one.rows, work.asked.row_distance(one)) for one in lefts}
    assert each == {(2, work.asked.distance / 2)}


@pytest.mark.parametrize("public", [True, False])
def test_a_simulated_release_has_the_noise_of_the_release(
    public: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are counted at a price, with the constants or alone, so both have the same settings."""
    given: dict[str, Any] = {"target": "sick", "positive": "yes", "drop": ("id", "sex")}
    if public:
        given["constants"] = constants_of({"source": "By law.", "age": [0, 99], "dose": [0, 5]})
    plans: list[ObjectivePlan] = []
    own = ObjectivePerturbation.draw

    def watched(route: Any, model: Any, data: Any, plan: ObjectivePlan, key: Key) -> Any:
        plans.append(plan)
        return own(route, model, data, plan, key)

    monkeypatch.setattr(ObjectivePerturbation, "draw", watched)
    monkeypatch.setattr(scores, "TURNS", 1)
    work = flat.work(patients(1250), progress=False, epsilon=1.0, **given)
    release = work.perform(Transaction(work.ledger, Key.of_seed(0)))
    real = plans[-1]
    assert preview_scores(work, release, Key.of_seed(1)) is not None
    made = plans[-1]
    assert made is not real
    for name in ("clip", "residual", "ridge", "sigma"):
        assert getattr(made, name) == pytest.approx(getattr(real, name), rel=0.01), name


def test_a_delta_that_would_allow_a_row_to_be_published_is_warned_of() -> None:
    given: dict[str, Any] = {"target": "sick", "positive": "yes", "drop": ["id"], "epsilon": 1}
    with pytest.warns(UserWarning, match=r"delta=0\.01 is at least 1/N = 0\.000"):
        flat.private(patients(), delta=0.01, progress=False, **given)


@pytest.fixture(scope="module")
def previewable() -> tuple[Work, bdpvi.Release]:
    work = flat.work(
        patients(1500), target="sick", positive="yes", epsilon=2.0, drop=("id",), progress=False
    )
    return work, work.perform(Transaction(work.ledger, Key.of_seed(0)))


@pytest.fixture(scope="module")
def whole(previewable: tuple[Work, bdpvi.Release]) -> Scores:
    result = preview_scores(*previewable, Key.of_seed(1))
    assert result is not None
    return result


def test_previews_have_a_range_of_each_measure(whole: Scores) -> None:
    table = whole.table()
    assert list(table.index) == ["a release like this", "always the base rate", "without privacy"]
    assert (table["AUC"].loc["always the base rate"] == 0.5).all()
    assert table["AUC"].loc["without privacy", "median"] > 0.75
    low, high = (table["AUC"].loc["a release like this", at] for at in (0.05, 0.95))
    assert low < table["AUC"].loc["a release like this", "median"] < high


@pytest.mark.parametrize("intercept", [True, False])
def test_predictions_without_privacy_are_scikit_learns(intercept: bool) -> None:
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)).double()
    y = (x[:, 0] > 0.7).double()  # rare, so that a shrunk intercept would show
    model = bdpvi.BayesianLogisticRegression.unweighted(intercept=intercept)
    found = scores._without_privacy(model, bdpvi.Dataset(x, y), x)
    usual = LogisticRegression(fit_intercept=intercept, tol=1e-10).fit(x.numpy(), y.numpy())
    assert np.allclose(found.numpy(), usual.predict_proba(x.numpy())[:, 1], atol=2e-4)


def test_previews_end_when_their_ranges_are_known(
    previewable: tuple[Work, bdpvi.Release], whole: Scores, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = whole
    released = found.values.loc["a release like this"].to_numpy()
    assert "enough for ranges with standard errors of at most 0.02" in str(found)
    assert FOLDS * FEWEST <= found.previews == len(released) < FOLDS * TURNS
    assert found.to_dict()["previews"] == found.previews
    # The error of a Gaussian's 5 % quantile is 2.11 σ/√n; a turn earlier it was too large.
    for number, enough in ((found.previews, True), (found.previews - FOLDS, False)):
        error = 2.11 * released[:number].std(0, ddof=1).max() / np.sqrt(number)
        assert number < FOLDS * FEWEST or (error < 0.02) == enough
    monkeypatch.setattr(scores, "CLOSE", 0.0)
    monkeypatch.setattr(scores, "TURNS", FEWEST + 1)
    every = preview_scores(*previewable, Key.of_seed(1))
    assert every is not None
    assert every.previews == FOLDS * (FEWEST + 1)
    assert "the maximum number" in str(every)


def slow(monkeypatch: pytest.MonkeyPatch, step: str, seconds: float) -> list[float]:
    """Make a step of a preview last some seconds; return the time, which only it changes."""
    time, own = [0.0], getattr(scores, step)

    def taking(*given: Any) -> Any:
        time[0] += seconds
        return own(*given)

    monkeypatch.setattr(scores, step, taking)
    return time


@pytest.mark.parametrize(("seconds", "previews"), [(0.0, 1), (3.0, 1), (6.0, 2), (23.0, 7)])
def test_previews_end_in_time_and_are_the_same_so_far(
    previewable: tuple[Work, bdpvi.Release],
    whole: Scores,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    previews: int,
) -> None:
    """A preview takes three seconds, by this clock, all of them in its last step."""
    time = slow(monkeypatch, "predictive_means", 3.0)
    found = preview_scores(*previewable, Key.of_seed(1), seconds=seconds, clock=lambda: time[0])
    assert found is not None
    assert found.previews == previews
    pd.testing.assert_frame_equal(found.values, whole.values.iloc[: len(found.values)])
    said = str(found)
    assert f"as many as {seconds:.0f} s allow" in said
    assert f"WARNING: {previews} simulated releases are few" in said


def test_five_positives_are_not_called_better_than_chance() -> None:
    def said(auc: list[float], log_score: float) -> str:
        rows = [("a release like this", one, log_score, 0.7) for one in auc]
        rows += [("always the base rate", 0.5, -0.6, 0.7)] * len(auc)
        values = pd.DataFrame(rows, columns=["of", "AUC", "log score", "accuracy"])
        return "\n".join(Scores(values.set_index("of"), "all").warnings())

    assert said([0.7] * 100, -0.55) == ""
    assert "score no better than the base rate" in said([0.7] * 100, -0.61)
    assert "6% of the simulated releases have an AUC of ½ or less" in said(
        [0.7] * 94 + [0.4] * 6, -0.55
    )
    assert "too rare to compute an AUC" in said([float("nan")] * 5, -0.55)
