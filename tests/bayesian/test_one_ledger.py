"""One table of people has one ledger: whatever is made of it, and wherever it is kept."""

from __future__ import annotations

import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import mpmath
import numpy as np
import pandas as pd
import pytest
from accounts import bayes, elsewhere
from simulated import logistic_data

import bdpvi
from bdpvi import Budget, BudgetExceededError, Dataset, Ledger
from bdpvi._ground.chain import Head, proven
from bdpvi.bayesian.guarantees import BayesianDP
from bdpvi.bayesian.storage import load_fit, save_fit
from bdpvi.cli import main
from bdpvi.datasets.dataset import People
from bdpvi.guides import MeanField
from bdpvi.privacy.accounts import beside
from bdpvi.privacy.perturbed_objective import PerturbedObjective, profile

MODEL = bdpvi.BayesianLogisticRegression(clip=0.5, prior_scale=0.3, limit=2.0)
DELTA = 1e-5


def run(*arguments: object) -> int:
    """Run the command line in this process; return its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bdpvi", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            main()
    return int(leaving.value.code or 0)


@pytest.fixture
def data() -> Dataset:
    return logistic_data(60, 3)


def fitted(data: Dataset, noise_scale: float = 1.0, **given: object) -> bdpvi.Fit:
    guide = MeanField(MODEL, noise_scale=noise_scale)
    return bdpvi.fit(MODEL, guide, data, progress=False, **given)  # type: ignore[arg-type]


def loaded(folder: Path) -> bdpvi.Fit:
    return load_fit(folder, MODEL, MeanField(MODEL, noise_scale=1.0))


def delta_of(epsilon: float, variance: mpmath.mpf) -> mpmath.mpf:
    """Return δ(ε) of a Gaussian mechanism in 50 digits (Balle and Wang 2018, Theorem 8)."""
    epsilon, distance = mpmath.mpf(epsilon), mpmath.sqrt(variance)
    above = mpmath.ncdf(distance / 2 - epsilon / distance)
    return above - mpmath.exp(epsilon) * mpmath.ncdf(-distance / 2 - epsilon / distance)


def worst(fit: bdpvi.Fit) -> bdpvi.Bound:
    result = bdpvi.cost(fit).worst_case
    assert result is not None
    return result


def test_two_fits_of_one_table_say_together_what_they_cost(data: Dataset) -> None:
    one, two = fitted(data), fitted(data.to("cpu"), noise_scale=2.0)
    bdpvi.release(one, 2, temperature=0.5)
    bdpvi.release(two, 3, temperature=0.125)
    assert worst(one).epsilon == worst(two).epsilon
    # μ² = Σ k m / τ, with what a record moves at most, m: (C s² / noise)² and the fit's precision.
    most = [mpmath.mpf(fit.panels[0].largest) for fit in (one, two)]
    moved = 0.5 * 0.3**2
    assert [float(m) for m in most] == pytest.approx([moved**2, moved**2 / 4], rel=1e-4)
    with mpmath.workdps(50):
        variance = most[0] * 2 / mpmath.mpf("0.5") + most[1] * 3 / mpmath.mpf("0.125")
        assert delta_of(worst(one).epsilon, variance) == pytest.approx(DELTA, rel=1e-3)  # rounding
        assert worst(one).distance == pytest.approx(float(mpmath.sqrt(variance)), rel=1e-12)
    alone = fitted(data.of_people(People()))
    bdpvi.release(alone, 2, temperature=0.5)
    own = alone.ledger.worst_case(DELTA)
    assert own is not None
    before = one.ledger.worst_case(DELTA)
    assert before is not None
    assert own.epsilon < before.epsilon
    # The owner reads what the process spent on these rows, by whichever ledger.
    assert worst(alone).epsilon == worst(one).epsilon > before.epsilon
    with mpmath.workdps(50):
        variance += most[0] * 2 / mpmath.mpf("0.5")
        assert worst(alone).distance == pytest.approx(float(mpmath.sqrt(variance)), rel=1e-12)
    elsewhere()
    assert worst(fitted(data.of_people(People()))).epsilon == 0


def test_what_is_spent_is_refused_with_what_was_charged_before(data: Dataset) -> None:
    one, two = fitted(data), fitted(data)
    bdpvi.release(one, epsilon=1.0)
    with pytest.raises(BudgetExceededError, match=r"epsilon=1 is spent.*1 charge made"):
        bdpvi.release(two, epsilon=1.0)  # no temperature in the hundreds of thousands
    assert len(data.ledger.entries()) == 1
    later = bdpvi.release(two, epsilon=1.4)
    assert later.receipt.bound.epsilon == 1.4
    assert 1.39 < worst(one).epsilon <= 1.4


def test_one_budget_for_all_fits(data: Dataset) -> None:
    one = fitted(data, ledger=Ledger(budget=Budget(1.0)))
    two = fitted(data)
    bdpvi.release(one, epsilon=0.8)
    with pytest.raises(BudgetExceededError, match=r"over the budget of worst-case.*1 draw at"):
        bdpvi.release(two, temperature=0.001)
    with pytest.raises(ValueError, match="need a ledger of their own"):
        data.ledger.settle(budget=Budget(2.0))
    # A Bayesian ε of two fits is held against the budget too: it is below the worst case.
    with pytest.raises(BudgetExceededError, match=r"epsilon=0.01 is missed by the certificate"):
        bdpvi.release(two, epsilon=0.01, guarantee=BayesianDP())
    with pytest.raises(BudgetExceededError, match=r"over the budget of Bayesian DP ε = 1"):
        bdpvi.release(two, temperature=0.02, guarantee=BayesianDP())
    bdpvi.release(two, temperature=2.0, guarantee=BayesianDP())
    assert 0.7 < bayes(bdpvi.cost(one)).epsilon <= 1.0


def test_a_bayesian_price_is_of_all_fits_of_the_table(data: Dataset) -> None:
    one, two = fitted(data), fitted(data)
    bdpvi.release(one, temperature=2.0, guarantee=BayesianDP())
    alone = bayes(bdpvi.cost(one)).epsilon
    assert bayes(bdpvi.cost(two)).epsilon == alone
    bdpvi.release(two, temperature=2.0, guarantee=BayesianDP())
    assert alone < bayes(bdpvi.cost(one)).epsilon == bayes(bdpvi.cost(two)).epsilon


def test_a_fit_saved_twice_and_a_copied_folder_have_one_budget(
    data: Dataset, tmp_path: Path
) -> None:
    fit = fitted(data, ledger=Ledger(budget=Budget(1.0)))
    save_fit(fit, tmp_path / "a")
    save_fit(fit, tmp_path / "b")
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    bdpvi.release(loaded(tmp_path / "b"), epsilon=1.0)
    for name in ("a", "b", "c"):
        with pytest.raises(BudgetExceededError):
            bdpvi.release(loaded(tmp_path / name), epsilon=1.0)
    # Another fit of the same table, also after it was saved.
    with pytest.raises(BudgetExceededError):
        bdpvi.release(fitted(data), epsilon=1.0)
    (tmp_path / "new").mkdir()
    for name in ("a", "b"):
        (tmp_path / name).rename(tmp_path / "new" / name)
    shutil.rmtree(tmp_path / "c")
    assert len(loaded(tmp_path / "new" / "b").ledger.entries()) == 1  # moved together


def test_replace_resets_nothing(data: Dataset) -> None:
    fit = fitted(data)
    bdpvi.release(fit, epsilon=1.0)
    again = replace(fit, data_name="other")
    assert again.ledger is fit.ledger
    with pytest.raises(BudgetExceededError):
        bdpvi.release(again, epsilon=1.0)
    with pytest.raises(TypeError, match="ledger"):
        replace(fit, ledger=Ledger())  # type: ignore[call-arg]


def test_a_ledger_may_be_given_and_then_holds(data: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "people.jsonl"
    bdpvi.release(fitted(data, ledger=Ledger.at(path)), epsilon=1.0)
    another = logistic_data(60, 3)  # the same people, read anew
    with pytest.raises(BudgetExceededError):
        bdpvi.release(fitted(another, ledger=Ledger.at(path)), epsilon=1.0)
    with pytest.raises(ValueError, match="this table has one already"):
        fitted(data, ledger=Ledger())
    with pytest.raises(BudgetExceededError):
        bdpvi.release(fitted(data), epsilon=1.0)


@pytest.mark.parametrize("by", ["head", "receipts"])
def test_a_cut_or_an_old_ledger_is_noticed(data: Dataset, tmp_path: Path, by: str) -> None:
    """By its head; or, where an old head was put back too, by the receipts in the fit's folder."""
    words = {"head": "has lost lines", "receipts": r"lacks charge \d, whose receip"}
    folder = tmp_path / "fit"
    save_fit(fitted(data), folder)
    old = (folder / "ledger.jsonl").read_bytes()
    for _ in range(3):
        bdpvi.release(loaded(folder), temperature=100.0)
    whole = (folder / "ledger.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    for content in (old, b"".join(lines[:-1]), whole[:-40]):
        (folder / "ledger.jsonl").write_bytes(content)
        if by == "receipts":
            Head.of(proven(content)).write(folder / "ledger.jsonl.head")
        with pytest.raises(ValueError, match=rf"ledger\.jsonl {words[by]}"):
            loaded(folder)
        assert run("account", folder) == 2
        assert run("account", folder, "--repair") == 0  # the receipts say what was charged
        assert (folder / "ledger.jsonl").read_bytes() == whole
        loaded(folder)


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    age, dose = rng.normal(50, 10, 120), rng.normal(size=120)
    sick = rng.random(120) < 1 / (1 + np.exp(-(age - 50) / 5 - dose))
    frame = {"who": np.arange(120) // 3, "age": age, "dose": dose}
    frame["sick"] = np.where(sick, "yes", "no")
    pd.DataFrame(frame).to_csv(tmp_path / "patients.csv", index=False)
    public = {"source": "By law.", "age": [18, 98], "dose": [-2, 2]}
    (tmp_path / "public.json").write_text(json.dumps(public))
    return tmp_path / "patients.csv"


def test_a_unit_of_several_rows_is_priced_as_a_group(table: Path, tmp_path: Path) -> None:
    """By default a minimum, each row a change of its own; draws from a guide by their distance."""
    more = ("--epsilon", 1, "--unit", "who", "--rows-per-unit", 3)
    given = ("--target", "sick", "--positive", "yes", "--no-scores", "--quiet", *more)
    public = ("--constants", table.with_name("public.json"), "--out", tmp_path / "a")
    assert run("private", "--data", table, *given, *public, "--rows", 1e4) == 0
    receipt = bdpvi.load_release(tmp_path / "a" / "release.json").receipt
    assert receipt.bound.neighbours == (
        "add or remove all records, at most 3, of one person ('who')"
    )
    assert "all records, at most 3, of one person ('who') added or removed, whatever person" in (
        receipt.meaning
    )
    (entry,) = Ledger.at(beside(table)).book().charges
    (event,) = entry.events or ()
    assert isinstance(event, PerturbedObjective)
    chained = sum(math.exp(at / 3) for at in range(3)) * profile(1 / 3, event)
    assert DELTA * 0.9 < chained <= DELTA
    # Another unit needs another ledger.
    single = ("--one-row-per-person", "--drop", "who", "--epsilon", 2, "--out", tmp_path / "b")
    assert run("private", "--data", table, *given[:6], *single) == 2
