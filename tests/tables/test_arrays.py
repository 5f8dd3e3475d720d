"""Arrays, frames, series, tensors and lists: in wherever data go in, and out the same way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from simulated import logistic_data

import bdpvi
from bdpvi import Dataset, PrivacyUtilityWarning, datasets
from bdpvi.guides import MeanField
from bdpvi.releases.shared_file import load_release, save_release

X = [[20.0, 1.0], [30.0, 0.0], [40.0, 1.0]]
Y = [True, False, True]
INDEX = ["p", "q", "r"]
FRAME = pd.DataFrame(X, columns=["age", " dose "], index=INDEX)
OF_ARROW = {
    "pyarrow": pa.Table.from_pandas(FRAME, preserve_index=False),
    "Polars": pl.DataFrame(FRAME.to_dict("list")),
    "lazy Polars": pl.LazyFrame(FRAME.to_dict("list")),
    "DuckDB": duckdb.from_arrow(pa.Table.from_pandas(FRAME, preserve_index=False)),
}
TABLES = {
    **OF_ARROW,
    "lists": X,
    "array": np.array(X),
    "float32": np.array(X, dtype=np.float32),
    "integers": np.array(X).astype(int),
    "fortran": np.asfortranarray(X),
    "tensor": torch.tensor(X, dtype=torch.float64),
    "gradient": torch.tensor(X, dtype=torch.float64, requires_grad=True),
    "long": torch.tensor(X).long(),
    "frame": FRAME,
    "nullable": FRAME.astype({"age": "Int64", " dose ": "boolean"}),
    "read-only": np.broadcast_to(np.array(X), (3, 2)),
}
TARGETS = {
    "lists": Y,
    "array": np.array(Y),
    "integers": np.array(Y).astype(np.int8),
    "tensor": torch.tensor(Y),
    "series": pd.Series(Y),
    "nullable": pd.Series(Y).astype("boolean"),
    "pyarrow": pa.array(Y),
    "Polars": pl.Series(Y),
}


@pytest.mark.parametrize("x", TABLES)
@pytest.mark.parametrize("y", TARGETS)
def test_every_container_is_the_same_data(x: str, y: str) -> None:
    target: Any = TARGETS[y]
    if hasattr(TABLES[x], "loc") and hasattr(target, "loc"):
        target = target.set_axis(INDEX)
    data = Dataset.of(TABLES[x], target, name="clinic")
    assert data.x.is_floating_point()
    assert not data.x.requires_grad
    assert data.x.tolist() == X
    assert data.y.tolist() == [1.0, 0.0, 1.0]
    assert data.name == "clinic"
    named = x in OF_ARROW or hasattr(TABLES[x], "loc")
    assert data.feature_names == (("age", "dose") if named else ("x0", "x1"))
    assert data.ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e39])
def test_of_tensors_a_record_that_is_not_finite_is_left_out(value: float) -> None:
    """Wherever it is, with its identity, and where a type with smaller numbers makes it so."""
    x, y = torch.tensor(X, dtype=torch.float64), torch.arange(6, dtype=torch.float64).reshape(3, 2)
    for at, place in (("x", (1, 0)), ("y", (1, 1))):
        given: dict[str, Any] = {"x": x.clone(), "y": y.clone()}
        given[at][place] = value
        with pytest.warns(PrivacyUtilityWarning, match="for the owner only: 1 record left out"):
            found = Dataset(**given, ids=torch.tensor([5, 6, 7])).to("cpu", torch.float32)
        assert found.ids.tolist() == [5, 7]
        assert torch.equal(found.x, x[[0, 2]].float())
        assert torch.equal(found.y, y[[0, 2]].float())


def test_a_record_too_large_for_the_type_of_a_fit_has_no_part_in_it() -> None:
    data = logistic_data(60, 2)
    odd = Dataset(torch.cat([data.x, data.x[:1] + 1e39]), torch.cat([data.y, data.y[:1]]))
    model = bdpvi.BayesianLogisticRegression(clip=0.5)
    training = bdpvi.Training(dtype=torch.float32, device="cpu")

    def fitted(some: Dataset) -> bdpvi.Fit:
        guide = MeanField(model, noise_scale=0.3)
        return bdpvi.fit(model, guide, some, training=training, progress=False)

    with pytest.warns(PrivacyUtilityWarning, match="for the owner only: 1 record left out"):
        found = fitted(odd)
    whole = fitted(data)
    assert (found.records, len(found.panels[0].ids)) == (60, 60)
    assert torch.equal(found.posterior.mean, whole.posterior.mean)
    marks, expected = found.panels[0].marks, whole.panels[0].marks
    assert marks is not None
    assert expected is not None
    assert torch.equal(marks, expected)


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (FRAME.assign(sex=["F", "M", "F"]), Y, {}, r"x has the column 'sex' of type .*from_frame"),
        (FRAME.assign(when=pd.Timestamp(0)), Y, {}, "x has the column 'when' of type datetime64"),
        (X, ["yes", "no", "yes"], {}, "y must be numbers, got list of <U3; .* == 'yes'"),
        (X, pd.Series(["yes", "no", "yes"]), {}, "y must be numbers, got Series of"),
        (X, np.array(["2020", "2021", "2022"], dtype="datetime64[Y]"), {}, "y must be numbers"),
        (X, [1j, 0, 1], {}, "y must be numbers"),
        (X, torch.tensor([1j, 0, 1]), {}, "y must be real numbers"),
        ([[1.0], [1.0, 2.0]], Y, {}, "x must be numbers in rows of equal length"),
        (X[0], Y, {}, r"x must have shape \(records, features\), got \(2,\); .* x\[:, None\]"),
        (X, [[1], [0], [1]], {}, r"y must have shape \(records,\), got \(3, 1\); .* y\[:, 0\]"),
        (X, [1, 0], {}, "y has 2 entries, x has 3"),
        (FRAME, pd.Series(Y), {}, "y has another index than x"),
        (FRAME.set_axis(["a", "a"], axis=1), Y, {}, "feature_names must differ, got 'a'"),
        (X, Y, {"feature_names": ["a"]}, "feature_names has 1 name for 2 columns"),
    ],
)
def test_what_is_no_data(x: Any, y: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dataset.of(x, y, **options)


def fitted(data: Any) -> bdpvi.Fit:
    model = bdpvi.BayesianLogisticRegression(clip=0.3)
    return bdpvi.fit(model, MeanField(model, noise_scale=0.1), data, progress=False)


def test_a_pair_is_fitted_like_its_data() -> None:
    data = logistic_data(60, 3)
    pair = pd.DataFrame(data.x.numpy(), columns=["a", "b", "c"]), pd.Series(data.y.numpy() > 0.5)
    fit = fitted(pair)
    assert fit.feature_names == ("a", "b", "c")
    assert torch.equal(fit.posterior.mean, fitted(data).posterior.mean)
    for wrong in (data.x, [data.x, data.y], (data.x,)):
        with pytest.raises(
            ValueError, match=r"data must be a Dataset, records in blocks or a pair \(x, y\)"
        ):
            fitted(wrong)


def test_predictions_come_in_the_container_that_records_come_in() -> None:
    data = replace(logistic_data(60, 3), feature_names=("a", "b", "c"))
    released = bdpvi.release(fitted(data), 3, epsilon=1.0)
    x = data.x[:5]
    tensor = released.predict_proba(x)
    assert isinstance(tensor, torch.Tensor)
    draws = released.predict_draws(x)
    by_hand = torch.sigmoid(released.samples @ x.T)
    torch.testing.assert_close(draws, by_hand)
    for other in (x.numpy(), x.tolist()):
        array = released.predict_proba(other)
        assert isinstance(array, np.ndarray)
        np.testing.assert_array_equal(array, tensor.numpy())
        assert isinstance(released.predict(other), np.ndarray)
    # Columns go by name, in any order, and others do not matter.
    frame = pd.DataFrame(x.numpy(), columns=["a", "b", "c"], index=list("vwxyz"))
    frame = frame.assign(note="text")[["note", "c", "a", "b"]]
    table = released.predict_proba(frame)
    assert list(table.index) == list("vwxyz")
    assert list(table.columns) == [0, 1]
    np.testing.assert_array_equal(table.to_numpy(), tensor.numpy())
    for values in (released.predict_mean(frame), released.predict(frame)):
        assert isinstance(values, pd.Series)
        assert list(values.index) == list("vwxyz")
    assert released.predict(frame).tolist() == (tensor[:, 1] > 0.5).long().tolist()
    with pytest.raises(ValueError, match="x must have the column 'a' once, it has 0 of them"):
        released.predict(frame.drop(columns="a"))
    with pytest.raises(ValueError, match=r"x must have shape \(records, 3\), got \(5, 2\)"):
        released.predict(x[:, :2])
    with pytest.raises(ValueError, match=r"x must be numbers"):
        released.predict([["a", "b", "c"]])


def test_raw_columns_are_encoded_by_the_release(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.uniform(20, 80, 60), "sex": rng.choice(["F", "M"], 60)})
    frame["sick"] = np.arange(60) % 2
    split = datasets.from_frame(frame, "sick", unknown="base")
    save_release(bdpvi.release(fitted(split.train), epsilon=1.0), tmp_path / "r.json")
    released = load_release(tmp_path / "r.json")
    ids = split.test.ids.numpy()
    rows = frame.iloc[ids].drop(columns="sick")
    expected = released.predict_mean(split.test.x)
    found = released.predict_mean(rows)
    np.testing.assert_array_equal(found.to_numpy(), expected.numpy())
    assert list(found.index) == ids.tolist()
    with pytest.warns(UserWarning, match="1 of 'sex'"):
        base = released.predict_mean(pd.DataFrame({"age": [50.0], "sex": ["X"]}))
    encoding = released.encoding
    assert encoding is not None
    age = encoding.columns[0]
    assert isinstance(age, datasets.columns.Numeric)
    by_hand = torch.tensor([[(50.0 - age.mean) / age.sd, 0.0, 0.0]], dtype=torch.float64)
    assert base.tolist() == released.predict_mean(by_hand).tolist()
