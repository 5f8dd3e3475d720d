"""One Bayesian account for a table: its fits together, in one process or several."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from accounts import bayes
from simulated import logistic_data

import bdpvi
from bdpvi import BayesianLogisticRegression, Budget, BudgetExceededError, Ledger
from bdpvi.bayesian.accounting import record_losses
from bdpvi.bayesian.storage import load_fit, save_fit
from bdpvi.guides import Laplace
from bdpvi.releases.shared_file import release_bytes

MODEL = BayesianLogisticRegression()
WEAKER = BayesianLogisticRegression(weight_norm=0.8)
DELTA = 1e-3


def fitted(ledger: Ledger, model: BayesianLogisticRegression = MODEL) -> bdpvi.Fit:
    return bdpvi.fit(model, Laplace(model), logistic_data(100, 1), ledger=ledger, progress=False)


def release(fit: bdpvi.Fit, draws: int = 1, **more: float) -> bdpvi.Release:
    return bdpvi.release(fit, draws, delta=DELTA, **{"temperature": 2.0, **more})  # type: ignore[arg-type]


def epsilon(fit: bdpvi.Fit) -> float:
    return bayes(bdpvi.cost(fit, delta=DELTA)).epsilon


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:delta")
def test_two_fits_alike_cost_what_one_does_twice_and_others_more_than_either() -> None:
    once, twice, both, mixed, other = (Ledger() for _ in range(5))
    release(one := fitted(once))
    release(two := fitted(twice), 2)
    for _ in range(2):
        release(fit := fitted(both))
    assert epsilon(fit) == pytest.approx(epsilon(two), rel=1e-9)
    release(fitted(mixed))
    release(last := fitted(mixed, WEAKER))
    release(alone := fitted(other, WEAKER))
    assert epsilon(last) > max(epsilon(one), epsilon(alone))
    assert "this fit only" not in str(bdpvi.cost(last, delta=DELTA))


def test_a_budget_is_for_all_fits() -> None:
    ledger = Ledger()
    release(one := fitted(ledger))
    limit = Ledger(budget=Budget(1.02 * epsilon(one), DELTA))
    release(fitted(limit))
    with pytest.raises(BudgetExceededError, match=r"would bring the total to Bayesian DP ε"):
        release(fitted(limit, WEAKER))
    assert len(limit.entries()) == 1


KILLED = """
import os, signal, sys
sys.path[:0] = {paths!r}
from test_one_account import Ledger, fitted, record_losses, release
write = record_losses._write
if {early}:
    def dies(*given):
        write(*given)
        os.kill(os.getpid(), signal.SIGKILL)
    record_losses._write = dies
release(fitted(Ledger.at({path!r})))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("early", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_what_a_killed_process_released_counts(early: bool, tmp_path: Path) -> None:
    """Whether it dies when losses are kept and not charged, or once it is charged."""
    path, folder = str(tmp_path / "people.jsonl"), Path(__file__).parent
    paths = [str(folder), str(folder.parent), str(folder / "accounting")]
    code = KILLED.format(paths=paths, early=early, path=path)
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    release(later := fitted(Ledger(path), WEAKER))
    together = Ledger()
    if not early:
        release(fitted(together))
    release(here := fitted(together, WEAKER))
    assert len(later.ledger.entries()) == len(together.entries())
    assert epsilon(later) == pytest.approx(epsilon(here), rel=1e-9)
    assert len(os.listdir(record_losses.file_of(tmp_path / "people.jsonl", "a").parent)) == 2


def test_losses_move_with_a_saved_fit_and_are_written_again_by_it(tmp_path: Path) -> None:
    ledger = Ledger()
    release(one := fitted(ledger))
    release(two := fitted(ledger, WEAKER))
    before = epsilon(one)
    save_fit(one, tmp_path / "one")
    save_fit(two, tmp_path / "two")
    assert ledger.path is not None
    loaded = [
        load_fit(tmp_path / name, model, Laplace(model))
        for name, model in (("one", MODEL), ("two", WEAKER))
    ]
    assert [epsilon(fit) for fit in loaded] == pytest.approx([before, before], rel=1e-12)
    file = record_losses.file_of(ledger.path, one.kept.name)
    file.unlink()
    again = load_fit(tmp_path / "two", WEAKER, Laplace(WEAKER))
    assert f"{file.name}" in bdpvi.cost(again, delta=DELTA).why
    with pytest.raises(ValueError, match=f"{file.name}.*no such file.*load that fit"):
        release(again, epsilon=9.0, temperature=100.0)
    assert len(again.ledger.entries()) == 2
    load_fit(tmp_path / "one", MODEL, Laplace(MODEL))
    assert file.exists()
    assert epsilon(again) == pytest.approx(before, rel=1e-12)


def test_nothing_that_is_kept_is_published(tmp_path: Path) -> None:
    released = release(fit := fitted(Ledger.at(tmp_path / "people.jsonl")))
    public = release_bytes(released)
    assert fit.kept.name.encode() not in public
    for value in fit.panels[0].pairs.b2[:50].flatten().tolist():
        assert repr(value)[:8].encode() not in public
