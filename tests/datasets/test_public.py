"""Public tables against scikit-learn's own preprocessing of the same raw rows."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import OrdinalEncoder, StandardScaler

from bdpvi.datasets import (
    LOADERS,
    Encoding,
    abalone,
    adult,
    load_breast_cancer,
    load_fair,
    loaders,
)
from bdpvi.datasets.abalone import load_abalone
from bdpvi.datasets.adult import load_adult
from bdpvi.datasets.dataset import Dataset, Split
from bdpvi.datasets.split import first_rows, permutation, shuffled

UCI = Path(__file__).resolve().parents[3] / "shared" / "data" / "uci"
needs_uci = pytest.mark.skipif(not UCI.is_dir(), reason="the raw UCI files are not at hand")


def rows(name: str) -> list[list[str]]:
    lines = (UCI / name).read_text().splitlines()
    return [[v.strip() for v in r] for r in csv.reader(lines) if len(r) > 1]


def whole(split: Split) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features and targets in the order of the ids."""
    ids = torch.cat([split.train.ids, split.test.ids])
    assert sorted(ids.tolist()) == list(range(len(ids)))
    order = torch.argsort(ids)
    x, y = torch.cat([split.train.x, split.test.x]), torch.cat([split.train.y, split.test.y])
    return x[order], y[order]


def assert_explains_itself(split: Split, raw: pd.DataFrame) -> None:
    """The preprocessing survives JSON and makes the same features of the raw rows."""
    notes = json.loads(json.dumps(split.train.preprocessing))
    assert split.test.preprocessing == split.train.preprocessing
    assert re.fullmatch(
        r"Means, standard deviations and categories are computed from all rows of the published "
        r"[\w-]+ table, training and test\.",
        notes["encoding"]["source"],
    )
    assert "are for training" in notes["split"]
    again = Encoding.from_dict(notes["encoding"])
    assert again.feature_names == split.train.feature_names
    for part in (split.train, split.test):
        assert torch.equal(again.apply(raw.iloc[part.ids.numpy()]), part.x)
        assert part.x.dtype == part.y.dtype == torch.float64


@needs_uci
def test_abalone() -> None:
    split = load_abalone(UCI)
    assert (len(split.train), len(split.test)) == (3341, 836)
    assert split.train.ids.tolist() == list(range(3341))
    raw = rows("abalone.data")
    sexes = {"I": 0.0, "F": 1.0, "M": 2.0}
    table = np.array([[sexes[r[0]], *map(float, r[1:8])] for r in raw])
    x, y = whole(split)
    np.testing.assert_allclose(x, StandardScaler().fit_transform(table), atol=1e-12)
    assert y.tolist() == [float(int(r[8]) > 9) for r in raw]
    assert round(float(y.mean()), 4) == 0.4982
    frame = pd.DataFrame(raw, columns=["sex", *abalone.MEASURES, "rings"])
    assert_explains_itself(split, frame)


def adult_rows() -> pd.DataFrame:
    frame = pd.DataFrame(rows("adult.data") + rows("adult.test"), columns=[*adult.NAMES, "income"])
    return frame.astype({name: float for name in adult.NUMBERS})


@needs_uci
def test_adult() -> None:
    split = load_adult(UCI)
    raw = adult_rows()
    assert (len(split.train), len(split.test)) == (39_073, 9_769)
    assert split.train.ids.tolist() == list(range(39_073))
    table = raw[list(adult.NAMES)].copy()
    names = [n for n in adult.NAMES if n not in adult.NUMBERS]
    table[names] = OrdinalEncoder().fit_transform(table[names])
    x, y = whole(split)
    np.testing.assert_allclose(x, StandardScaler().fit_transform(table.to_numpy(float)), atol=1e-9)
    assert y.tolist() == [float(">50K" in income) for income in raw["income"]]
    assert_explains_itself(split, raw)
    onehot = load_adult(UCI / "adult.data", encoding="onehot")  # adult.test lies beside it
    assert onehot.train.x.shape == (39_073, 108)
    assert "native-country=?" in onehot.train.feature_names
    assert_explains_itself(onehot, raw)


def test_breast_cancer() -> None:
    split = load_breast_cancer()
    table = sklearn.datasets.load_breast_cancer()
    x, y = whole(split)
    np.testing.assert_allclose(x, StandardScaler().fit_transform(table.data), atol=1e-9)
    assert y.tolist() == [float(table.target_names[t] == "malignant") for t in table.target]
    assert (len(split.train), len(split.test)) == (455, 114)
    raw = pd.DataFrame(table.data, columns=[str(n) for n in table.feature_names])
    assert_explains_itself(split, raw)
    # The published order would put 41 % and 23 % on the two sides.
    assert abs(split.train.y.mean() - split.test.y.mean()) < 0.05


def test_fair() -> None:
    fair = pytest.importorskip("statsmodels.datasets").fair
    split = load_fair()
    raw = fair.load_pandas().data
    x, y = whole(split)
    table = StandardScaler().fit_transform(raw.drop(columns="affairs"))
    np.testing.assert_allclose(x, table, atol=1e-12)
    assert y.tolist() == [float(affairs > 0) for affairs in raw["affairs"]]
    assert (len(split.train), len(split.test), int(y.sum())) == (5092, 1274, 2053)
    assert_explains_itself(split, raw)
    assert LOADERS["fair"]().train.name == "fair"
    # The published order would put all affairs on one side.
    assert abs(split.train.y.mean() - split.test.y.mean()) < 0.05


def stored(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("file", "measures", "classes", "positive"),
    [
        ("MAGIC", loaders.MAGIC_MEASURES, ["g"] * 26 + ["h"] * 14, "g"),
        ("SPAMBASE", loaders.SPAMBASE_MEASURES, ["1"] * 20 + ["0"] * 30, "1"),
    ],
)
def test_tables_of_one_file(
    file: str, measures: tuple[str, ...], classes: list[str], positive: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    table = np.random.default_rng(0).normal(size=(len(classes), len(measures))).round(4)
    lines = [",".join([*map(str, row), one]) for row, one in zip(table, classes, strict=True)]
    raw = getattr(loaders, file)
    digest = stored(tmp_path / raw.name, lines)
    monkeypatch.setattr(loaders, file, replace(raw, sha256=digest))
    split = getattr(loaders, f"load_{file.lower()}")(tmp_path)
    x, y = whole(split)
    np.testing.assert_allclose(x, StandardScaler().fit_transform(table), atol=1e-12)
    assert y.tolist() == [float(class_ == positive) for class_ in classes]
    assert 0 < split.test.y.sum() < len(split.test) == len(classes) // 5
    assert_explains_itself(split, pd.DataFrame(table, columns=list(measures)))


@given(length=st.integers(0, 200), seed=st.integers(0, 2**32))
def test_a_permutation_holds_every_row_once(length: int, seed: int) -> None:
    assert sorted(permutation(length, seed).tolist()) == list(range(length))


@given(length=st.integers(2, 300), percent=st.integers(1, 99))
def test_a_split_keeps_every_record_once(length: int, percent: int) -> None:
    data = Dataset(torch.arange(float(length))[:, None], torch.zeros(length))
    cut = length * (100 - percent) // 100
    if cut == 0:
        with pytest.raises(ValueError, match=r"test_fraction=0\.\d+ leaves one side"):
            first_rows(data, percent / 100)
        return
    for split in (first_rows(data, percent / 100), shuffled(data, percent / 100, seed=3)):
        assert (len(split.train), len(split.test)) == (cut, length - cut)
        assert torch.equal(whole(split)[0], data.x)
        assert torch.equal(split.train.x[:, 0], split.train.ids.double())
