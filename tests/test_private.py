"""``bdpvi private`` and the settings that it takes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats
from simulated import logistic_data
from test_cli import run

import bdpvi
from bdpvi.commands.private import no_better
from bdpvi.compare.methods.posterior import FullRankRelease
from bdpvi.guides import MeanField
from bdpvi.releasing.advice import advice


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a category and a rare class."""
    generator = np.random.default_rng(3)
    age, dose = generator.normal(50, 12, 900), generator.normal(2, 1, 900)
    sex = generator.choice(["F", "M"], 900)
    odds = -2 + 0.1 * (age - 50) + (sex == "M") + 0.5 * dose
    sick = np.where(generator.random(900) < 1 / (1 + np.exp(-odds)), "yes", "no")
    path = tmp_path_factory.mktemp("private") / "patients.csv"
    pd.DataFrame({"age": age, "dose": dose, "sex": sex, "sick": sick}).to_csv(path, index=False)
    return path


def private(table: Path, out: Path, *more: object) -> int:
    return run("private", "--data", table, "--target", "sick", "--out", out, "--quiet", *more)


def test_one_command_makes_a_model_that_may_be_shared(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "shared"
    assert private(table, out, "--epsilon", 1) == 0
    said = capsys.readouterr().out
    assert "worst-case DP ε = 1 (aimed at)" in said
    assert "reliable" in said
    assert "NOT RELIABLE" not in said
    assert "always the base rate" in said
    assert "WARNING" not in said
    assert [path.name for path in out.iterdir()] == ["release.json"]
    release = bdpvi.load_release(out / "release.json")
    assert "Computed from the rows of the data" in release.receipt.meaning
    # The budget is spent, and nothing is overwritten.
    secret = tmp_path / "shared.secret"
    assert run("release", secret, "--epsilon", 2, "--out", tmp_path / "more.json") == 2
    assert "budget" in capsys.readouterr().err
    assert private(table, out, "--epsilon", 1) == 2
    assert "exists already" in capsys.readouterr().err
    # What rounding left of the budget pays for noise.
    assert run("release", secret, "--epsilon", 1, "--out", tmp_path / "more.json") == 0
    assert "says hardly anything" in capsys.readouterr().out


def test_scores_and_both_guarantees_are_there_as_json(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--epsilon", 1, "--guarantee", "bayesian", "--json")
    assert private(table, tmp_path / "shared", *options) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["receipt"]["guarantee"] == "Bayesian DP"
    assert result["spent"]["reliable"]
    scores = result["scores"]
    assert scores["always the base rate"]["AUC"] == 0.5
    assert scores["this release"]["AUC"] > scores["without privacy"]["AUC"] - 0.05
    assert scores["without privacy"]["log score"] > scores["always the base rate"]["log score"]


def test_a_declared_base_rate_is_the_intercepts_prior_mean(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert private(table, tmp_path / "shared", "--epsilon", 0.1, "--base-rate", 0.2) == 0
    release = bdpvi.load_release(tmp_path / "shared/release.json")
    assert isinstance(release.model, bdpvi.BayesianLogisticRegression)
    assert release.model.intercept_mean == pytest.approx(np.log(0.25))
    for given, words in (
        (("--base-rate", 0), "base_rate must"),
        (("--base-rate", 0.2, "--settings", "some.json"), "base_rate=0.2 goes with"),
    ):
        assert private(table, tmp_path / "other", "--epsilon", 1, *given) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_settings_that_were_tuned_are_taken(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"clip": 0.37, "prior_scale": 0.2}
    tuned = {"model": model, "noise_scale": 0.3, "draws": 2}
    entry = {"chosen": {}, "methods": {"bdp-vi-full-rank": tuned}}
    file = tmp_path / "tuned.json"
    file.write_text(json.dumps({"patients": entry}))
    options = ("--epsilon", 1, "--settings", f"{file}:bdp-vi-full-rank", "--json")
    assert private(table, tmp_path / "shared", *options) == 0
    receipt = json.loads(capsys.readouterr().out)["receipt"]
    assert receipt["draws"] == 2
    assert bdpvi.load_release(tmp_path / "shared" / "release.json").model.clip == 0.37  # type: ignore[attr-defined]
    assert private(table, tmp_path / "x", "--epsilon", 1, "--settings", f"{file}:dp-gd") == 2
    assert "method must be one of" in capsys.readouterr().err


def test_a_release_that_is_worth_nothing_is_called_so() -> None:
    names = ("always the base rate", "this release", "without privacy")

    def said(auc: float, log_score: float) -> str:
        rows = [(0.5, -0.6, 0.7), (auc, log_score, 0.7), (0.8, -0.5, 0.8)]
        columns = ["AUC", "log score", "accuracy"]
        return no_better(pd.DataFrame(rows, index=list(names), columns=columns))

    assert said(0.7, -0.55) == ""
    assert "ranking only" in said(0.7, -0.61)
    assert "no better than the base rate" in said(0.49, -0.55)


def delta(noise: float, epsilon: float) -> float:
    """Return δ(ε) of the Gaussian mechanism, noise over sensitivity: Balle and Wang 2018."""
    above, below = 0.5 / noise - epsilon * noise, -0.5 / noise - epsilon * noise
    return float(stats.norm.cdf(above) - np.exp(epsilon + stats.norm.logcdf(below)))


def price(noise: float) -> float:
    """Return ε at δ = 1e-5."""
    return float(optimize.brentq(lambda epsilon: delta(noise, epsilon) - 1e-5, 1e-3, 600))


@pytest.mark.parametrize("draws", [1, 4])
@pytest.mark.parametrize(
    ("sensitivity", "clip", "prior_scale"),
    [(0.000992, 0.099, 0.1), (0.9945**2, 1.0, 0.99), (0.9875**2, 1.0, 0.99)],
)
def test_recommended_settings_have_noise_of_a_tenth(
    sensitivity: float, clip: float, prior_scale: float, draws: int
) -> None:
    """At prices from which an error of 1 %, in one direction or both, rounds to other digits."""
    epsilon = price(0.1 / sensitivity / np.sqrt(draws))
    settings = bdpvi.recommended(epsilon, draws=draws, kind=FullRankRelease)
    assert settings.draws == draws
    assert (settings.model.clip, settings.model.prior_scale) == (clip, prior_scale)


def test_advice_tells_the_noise_of_its_proposal() -> None:
    """Where one record moves the mean by clip · prior_scale²; an error of 1 % has other digits."""
    noise = optimize.brentq(lambda noise: delta(noise, 1.0) - 1e-5, 1.0, 10.0)
    model = bdpvi.BayesianLogisticRegression(clip=9.87 / noise / 0.5**2, prior_scale=0.5)
    fit = bdpvi.fit(model, MeanField(model), logistic_data(60, 2), progress=False)
    assert "noise of standard deviation 9.9 in every weight" in advice(fit, 1e-5)
