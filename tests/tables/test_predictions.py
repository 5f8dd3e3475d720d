"""Predictions of a table in blocks are those of its rows, whatever lies beside them."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
import torch
from test_cli import run

import bdpvi
from bdpvi import Ledger, PrivacyUtilityWarning, Release
from bdpvi.datasets import constants_of
from bdpvi.datasets.columns import OneHot, Ordinal
from bdpvi.datasets.encoding import Encoding
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.table import Table
from bdpvi.datasets.types import ColumnType
from bdpvi.tables import Predictions

ROWS = 3_000
CONSTANTS = {"source": "By law.", "age": [0, 100], "dose": [0, 5], "sex": ["F", "M"]}


def patients() -> pd.DataFrame:
    """Return a table with a blank and a text among its numbers."""
    random = np.random.default_rng(3)
    age, sex = random.normal(50, 12, ROWS), random.choice(["F", "M"], ROWS)
    sick = np.where(random.random(ROWS) < 1 / (1 + np.exp((50 - age) / 10)), "yes", "no")
    frame = pd.DataFrame({"age": age, "dose": random.normal(2, 1, ROWS), "sex": sex, "sick": sick})
    frame.insert(0, "who", [f"{at:05}" for at in range(ROWS)])
    frame["job"] = random.choice(["nurse", "cook", "TRUE", "01"], ROWS)
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a table as one file, and as folders of several."""
    path, frame = tmp_path_factory.mktemp("tables"), patients()
    frame.to_csv(path / "all.csv", index=False)
    (path / "csv").mkdir()
    (path / "parquet").mkdir()
    for at, (start, stop) in enumerate([(0, 1), (1, 1300), (1300, 1301), (1301, ROWS)]):
        part = frame[start:stop]
        part.to_csv(path / "csv" / f"{at}.csv", index=False)
        part.to_parquet(path / "parquet" / f"{at}.parquet", index=False, row_group_size=777)
    return path


@pytest.fixture(scope="module")
def release(folder: Path) -> Release:
    return flat.private(
        folder / "all.csv", epsilon=2.0, target="sick", positive="yes", drop=["who"], draws=3,
        one_row_per_person=True, ledger=Ledger(), progress=False,
        constants=constants_of(CONSTANTS),
    )  # fmt: skip


def predicted(release: Release, table: Any, **more: Any) -> pd.DataFrame:
    return Predictions.of(release, table, ids=["who"], progress=False, **more).frame()


def same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    """Assert that predictions are equal to rounding; some processors' products vary with places."""
    pd.testing.assert_frame_equal(one, other, rtol=1e-12, atol=0.0)


def test_a_row_has_the_same_prediction_in_any_blocks(folder: Path, release: Release) -> None:
    whole = predicted(release, folder / "all.csv")
    assert list(whole) == ["who", "class", "probability", "spread"]
    assert whole["who"].tolist() == [f"{at:05}" for at in range(ROWS)]
    by_hand = release.predict_draws(patients()).double()
    np.testing.assert_allclose(whole["probability"], by_hand.mean(0), rtol=1e-12)
    np.testing.assert_allclose(whole["spread"], by_hand.std(0), rtol=1e-9)
    assert (whole["class"] == np.where(by_hand.mean(0) > 0.5, "yes", "not yes")).all()
    pool = ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    with pool:
        for table, executor in (
            (Table.of(folder / "all.csv", size=5_000), pool), (folder / "csv", None),
            (f"{folder}/parquet/*.parquet", pool), (folder / "parquet", None),
        ):  # fmt: skip
            same(predicted(release, table, executor=executor), whole)
            asked = Predictions.of(release, table, ids=["who"], progress=False)
            assert asked.text() == replace(asked, executor=executor).text()
    same(predicted(release, folder / "csv" / "2.csv"), whole[1300:1301].reset_index(drop=True))


def test_the_command_writes_blocks_in_order(
    folder: Path, release: Release, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "release.json"
    bdpvi.save_release(release, file)
    asked = ("predict", file, "--id", "who", "--data")
    assert run(*asked, folder / "all.csv", "--out", tmp_path / "a.csv") == 0
    assert run(*asked, f"{folder}/csv/*.csv", "--out", tmp_path / "b.csv", "--workers", 2) == 0
    assert f"Wrote {ROWS} predictions to {tmp_path / 'b.csv'}" in capsys.readouterr().out
    text = {"who": object, "class": object}
    one, other = (pd.read_csv(tmp_path / name, dtype=text) for name in ("a.csv", "b.csv"))
    same(other, one)
    assert run(*asked, folder / "parquet", "--out", tmp_path / "c.parquet", "--quiet") == 0
    same(pd.read_parquet(tmp_path / "c.parquet").astype(text), one)
    assert run(*asked, folder / "csv", "--out", tmp_path / "a.csv") == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of a file's size there")
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_disk_that_is_full_on_the_way_leaves_nothing(
    suffix: str, folder: Path, release: Release, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import resource

    file, out = tmp_path / "release.json", tmp_path / f"a.{suffix}"
    bdpvi.save_release(release, file)
    asked = ("predict", file, "--id", "who", "--data", folder / "csv", "--out", out, "--quiet")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        assert run(*asked) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    said = capsys.readouterr().err
    assert "file too large" in said.lower()
    assert said.count("bdpvi: ") == 1
    assert os.listdir(tmp_path) == ["release.json"]
    assert run(*asked) == 0
    assert out.stat().st_size > 20_000


def test_a_file_without_a_column_is_refused_by_name(
    folder: Path, release: Release, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "release.json", tmp_path / "p.csv"
    bdpvi.save_release(release, file)
    (tmp_path / "new").mkdir()
    patients()[:5].to_csv(tmp_path / "new" / "a.csv", index=False)
    patients()[5:9].drop(columns="dose").to_csv(tmp_path / "new" / "b.csv", index=False)
    assert run("predict", file, "--data", tmp_path / "new", "--out", out) == 2
    said = capsys.readouterr().err
    assert "b.csv has other columns than" in said
    assert "'dose' is not in" in said
    (tmp_path / "new" / "a.csv").unlink()
    assert run("predict", file, "--data", tmp_path / "new", "--out", out) == 2
    assert "the table has no column ('dose')" in capsys.readouterr().err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["new", "release.json"]


class Own(bdpvi.BayesianLogisticRegression):
    """A model that Pyro runs."""


def test_a_release_that_predicts_no_table_is_refused(release: Release) -> None:
    rows = patients()[:5]
    own = replace(release, model=Own(**vars(release.model)))
    with pytest.raises(ValueError, match=r"it is of your own Pyro model: use its predict_mean"):
        Predictions.of(own, rows)
    assert own.predict_mean(rows).shape == (5,)
    with pytest.raises(ValueError, match="it does not say how a table becomes features"):
        Predictions.of(replace(release, preprocessing={}), rows)


def test_an_option_that_a_release_cannot_follow_is_refused(release: Release) -> None:
    with pytest.raises(ValueError, match="unknown='base': the release has other features"):
        Predictions.of(release, pd.DataFrame({"age": [40]}), unknown="base", progress=False)


def strict(release: Release, unknown: str) -> Release:
    """Return the release with an encoding that refuses a cell it does not know, or guesses it."""
    columns = (*constants_of(CONSTANTS).columns, OneHot("vip", ("False", "True")))
    encoding = Encoding(columns, "By law.", unknown=unknown)
    samples = torch.linspace(-1, 1, len(encoding.feature_names) + 1, dtype=torch.float64)[None]
    return replace(
        release, samples=samples, latents={"w": samples}, feature_names=encoding.feature_names,
        preprocessing={**release.preprocessing, "encoding": encoding.to_dict()},
    )  # fmt: skip


def test_a_cell_is_read_whatever_the_others_hold(release: Release, tmp_path: Path) -> None:
    known = strict(release, "refuse")
    rows = ["40,1,F,TRUE", "40,1,F,True", "1e1,1.0,M,false"]
    (tmp_path / "a.csv").write_text("\n".join(["age,dose,sex,vip", *rows]))
    (tmp_path / "b.csv").write_text("age,dose,sex,vip\n,NA,?,")
    alone = Predictions.of(known, tmp_path / "a.csv", progress=False).frame()
    assert alone["probability"][0] == alone["probability"][1]
    typed = pd.DataFrame({"age": [40, 10], "dose": 1.0, "sex": ["F", "M"], "vip": [True, False]})
    np.testing.assert_allclose(alone["probability"][1:], known.predict_mean(typed), rtol=1e-14)
    out = tmp_path / "p.csv"
    message = r"b\.csv, bytes 0 to 23: column 'age' has 1 missing value, the first in row 0"
    with pytest.raises(ValueError, match=message):
        Predictions.of(known, f"{tmp_path}/*.csv", progress=False).write(out)
    assert not out.exists()
    guessed = Predictions.of(known, f"{tmp_path}/*.csv", unknown="base", progress=False)
    said = "blank: 1 of 'age', 1 of 'dose', 1 of 'sex', 1 of 'vip'. The features of each are 0"
    with pytest.warns(PrivacyUtilityWarning, match=said):
        assert guessed.write(out) == 4
    written = pd.read_csv(out, dtype=str)["probability"][:3].map(float)  # pandas 2 rounds
    assert np.array_equal(written, alone["probability"])
    (tmp_path / "a.csv").write_text("age,dose,sex,vip\n40,1,F,maybe\n")
    with pytest.raises(ValueError, match="'maybe' in row 0, which is not among its categories"):
        Predictions.of(known, tmp_path / "a.csv", progress=False).frame()


@pytest.mark.filterwarnings("always::bdpvi.PrivacyUtilityWarning")
def test_cells_that_say_nothing_are_counted_and_move_little(
    release: Release, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["50,2,F,cook", ",2,F,cook", "x,2,F,cook", "50,?,F,cook", "50,2,D,cook", "50,2,,pilot"]
    (tmp_path / "new.csv").write_text("\n".join(["age,dose,sex,job", *rows]))
    told = (
        "cells of these rows: blank: 1 of 'age', 1 of 'dose', 1 of 'sex'; unfit: 1 of 'age'; "
        "unlisted level: 1 of 'sex', 1 of 'job'"
    )
    with pytest.warns(PrivacyUtilityWarning, match=told):
        made = Predictions.of(release, tmp_path / "new.csv", progress=False).frame()
    with pytest.warns(PrivacyUtilityWarning, match=told):
        again = release.predict_mean(pd.read_csv(tmp_path / "new.csv", keep_default_na=False))
    np.testing.assert_allclose(made["probability"], again, rtol=1e-12)
    logits = torch.logit(torch.tensor(made["probability"].to_numpy()))
    assert float((logits - logits[0]).abs().max()) < 1.0  # by noise alone 1.2 is usual
    bdpvi.save_release(release, tmp_path / "release.json")
    assert run("predict", tmp_path / "release.json", "--data", tmp_path / "new.csv") == 0
    assert f"for the owner only: {told}" in capsys.readouterr().err


def test_numbers_are_read_by_the_files_signs(release: Release, tmp_path: Path) -> None:
    known = strict(release, "refuse")
    (tmp_path / "a.csv").write_text("age,dose,sex,vip\n40.5,1200,F,True\n")
    (tmp_path / "b.csv").write_text("age;dose;sex;vip\n40,5;1.200;F;True\n")
    file = FileFormat(separator=";", decimal=",", thousands=".")
    one, other = (
        Predictions.of(known, tmp_path / name, file=form, progress=False).frame()
        for name, form in (("a.csv", None), ("b.csv", file))
    )
    assert one.equals(other)


def test_codes_are_read_as_the_encoding_spells_them() -> None:
    comma = ColumnType(kind="any", decimal=",")
    doses = Ordinal("dose", 0.0, 1.0, categories=("0.5", "1"))
    found, blank = doses.encode(pd.Series(["0,5", "1,0", "", "x"]), comma)
    assert found[:2].tolist() == [[0.0], [1.0]]
    assert np.isnan(found[2:]).all()
    assert blank.tolist() == [False, False, True, False]
