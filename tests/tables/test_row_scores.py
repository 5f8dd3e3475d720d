"""Scores of a release on the rows of a table in blocks, against those of the table in memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

import bdpvi
from bdpvi import Ledger
from bdpvi.datasets import constants_of
from bdpvi.datasets.table import Table
from bdpvi.noise.keys import Key
from bdpvi.releases.transaction import Transaction
from bdpvi.tables.row_scores import RELEASE, RowScores, auc_of
from bdpvi.tables.scores import RATE
from bdpvi.tables.work import Work

ROWS = 2_000
PUBLIC = constants_of({"source": "By law.", "age": [18, 98], "dose": [-3, 3]})
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # for the owner


def table() -> pd.DataFrame:
    random = np.random.default_rng(0)
    age, dose = random.normal(50, 10, ROWS).round(1), random.normal(size=ROWS).round(2)
    sick = random.random(ROWS) < 1 / (1 + np.exp(1 - (age - 50) / 10 - dose))
    frame = pd.DataFrame({"age": age, "dose": dose, "sick": np.where(sick, "yes", "no")})
    frame.loc[3, "sick"] = ""
    return frame


def work_of(folder: Path, **more: Any) -> Work:
    table().to_csv(folder / "a.csv", index=False)
    given: dict[str, Any] = {"target": "sick", "positive": "yes", "epsilon": 2.0, "name": "data"}
    given |= {"constants": PUBLIC, "expected_rows": ROWS, "one_row_per_person": True, **more}
    blocks = Table.of(folder / "a.csv", size=5_000)
    assert len(blocks.parts) > 4
    return flat.work(blocks, progress=False, ledger=Ledger(), **given)


def test_sums_over_blocks_are_the_scores_of_the_table(tmp_path: Path) -> None:
    work = work_of(tmp_path, draws=3)
    release = work.perform(Transaction(work.ledger, Key.of_seed(0)))
    found = RowScores.of(work, release)
    assert found is not None
    rows = table()[lambda frame: frame["sick"] != ""]
    y, chance = (rows["sick"] == "yes").to_numpy(), release.predict_proba(rows)[1].to_numpy()
    own, base = found.values[RELEASE], found.values[RATE]
    assert found.rows == len(rows) == ROWS - 1
    assert found.optimism == release.samples.shape[1] / len(rows)
    assert own["log score"] == pytest.approx(-log_loss(y, chance), rel=1e-12)
    assert own["accuracy"] == pytest.approx(accuracy_score(y, chance > 0.5), rel=1e-12)
    odds = np.floor(1024 * np.log(chance / (1 - chance)))
    assert own["AUC"] == pytest.approx(roc_auc_score(y, odds), rel=1e-12)
    assert own["AUC"] == pytest.approx(roc_auc_score(y, chance), abs=1e-4)
    assert base["log score"] == pytest.approx(-log_loss(y, np.full(len(y), y.mean())), rel=1e-12)
    assert base["accuracy"] == max(y.mean(), 1 - y.mean())
    assert "WARNING" not in str(found)
    for workers in (1, 2, 3):
        with ThreadPoolExecutor(workers) as pool:
            many = RowScores.of(work_of(tmp_path, draws=3, executor=pool), release)
        assert many == found


def test_a_release_worse_than_the_base_rate_is_said(tmp_path: Path) -> None:
    work = work_of(tmp_path)
    release = work.perform(Transaction(work.ledger, Key.of_seed(0)))
    bad = replace(release, latents={"w": -release.latents["w"]})
    found = RowScores.of(work, bad)
    assert "new rows is no better than the base rate" in str(found)


def test_numbers_have_no_scores(tmp_path: Path) -> None:
    model = bdpvi.BayesianLinearRegression.of_bounds(-3, 3)
    public = constants_of({"source": "By law.", "age": [18, 98]})
    given = {"target": "dose", "positive": None, "model": model, "drop": ("sick",)}
    work = work_of(tmp_path, **given, constants=public)
    release = work.perform(Transaction(work.ledger, Key.of_seed(0)))
    assert RowScores.of(work, release) is None


def test_the_auc_of_bins_counts_ties_one_half() -> None:
    random = np.random.default_rng(0)
    y, place = random.random(500) < 0.3, random.integers(0, 9, 500)
    zeros, ones = (torch.bincount(torch.from_numpy(place[y == k]), minlength=9) for k in (0, 1))
    assert auc_of(zeros.double(), ones.double()) == pytest.approx(roc_auc_score(y, place))


def test_the_log_score_of_own_rows_is_too_large_by_coordinates_over_rows() -> None:
    """The mean of the gap over simulated fits is d/N, within four standard errors; d/2N is not."""
    random, n, d = np.random.default_rng(0), 400, 3
    x = random.normal(size=(n, d))
    score = x @ [0.5, -0.5, 0.2]
    chance, gaps = 1 / (1 + np.exp(-score)), []
    for _ in range(800):
        y, w = random.random(n) < chance, np.zeros(d)
        for _ in range(6):
            p = 1 / (1 + np.exp(-x @ w))
            w += np.linalg.solve((x.T * (p * (1 - p))) @ x, x.T @ (y - p))
        gaps.append(((y - chance) * (x @ w - score)).mean())  # own less new rows at the same x
    error = np.std(gaps) / np.sqrt(len(gaps))
    assert abs(np.mean(gaps) - d / n) < 4 * error < 0.2 * d / n
