"""People's own tables: what each defect leads to, and that nothing happens silently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from bdpvi import PrivacyUtilityWarning
from bdpvi.datasets import Encoding, dataset_from_frame, from_csv, from_frame
from bdpvi.datasets.columns import Numeric, OneHot
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.split import first_rows, folds
from bdpvi.datasets.table import Table
from bdpvi.noise.keys import Key
from bdpvi.privacy.assumptions import Assumption
from bdpvi.releases.basis import assumptions_of

TABLE = pd.DataFrame(
    {
        "age": [20.0, 30.0, 40.0, 50.0, 60.0],
        "sex": ["F", "M", "M", "F", "F"],
        "smokes": [True, False, True, False, False],
        "sick": ["no", "yes", "no", "yes", "yes"],
    }
)


def changed(**columns: Any) -> pd.DataFrame:
    return TABLE.assign(**columns)


def test_features_targets_and_notes() -> None:
    data = dataset_from_frame(TABLE, "sick", name="clinic")
    assert data.feature_names == ("age", "sex=F", "sex=M", "smokes=False", "smokes=True")
    root = 2**0.5
    expected = [
        [-root, 1, 0, 0, 1],
        [-root / 2, 0, 1, 1, 0],
        [0, 0, 1, 0, 1],
        [root / 2, 1, 0, 1, 0],
        [root, 1, 0, 1, 0],
    ]
    torch.testing.assert_close(data.x, torch.tensor(expected, dtype=torch.float64))
    assert data.y.tolist() == [0, 1, 0, 1, 1]
    assert data.name == "clinic"
    notes = json.loads(json.dumps(data.preprocessing))
    assert notes["target"] == {"column": "sick", "positive": "yes", "negative": "no"}
    assert notes["encoding"]["source"] == "Computed from the rows of the data; treated as public."
    assert notes["encoding"]["origin"] == "from this table"


@pytest.mark.parametrize(
    ("values", "given_", "positive"),
    [
        ([0, 1], None, "1"), ([1, -1], None, "1"), ([9, 10], None, "10"), ([1.0, 0.0], None, "1"),
        ([False, True], None, "True"), (["<=50K", ">50K"], None, ">50K"),
        ([0, 1], 0, "0"), ([0, 1], 0.0, "0"), ([0, 1], "0", "0"),
    ],
)  # fmt: skip
def test_the_later_value_is_positive_unless_another_is_chosen(
    values: list[Any], given_: object, positive: str
) -> None:
    column = [values[0], values[1], values[0], values[1], values[0]]
    data = dataset_from_frame(changed(sick=column), "sick", positive=given_)
    assert data.preprocessing["target"]["positive"] == positive
    assert data.y.tolist() == [float(str(v).removesuffix(".0") == positive) for v in column]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"sick": ["no"] * 5}, {}, "target='sick' must have two different values, it has 1: 'no'"),
        ({"sick": [1, 2, 3, 1, 2]}, {}, "two different values, it has 3: '1', '2', '3'"),
        ({}, {"target": "ill"}, "target: no column 'ill' among 'age', 'sex', 'smokes', 'sick'"),
        ({}, {"drop": ["id"]}, "drop: no column 'id'"),
        ({}, {"categorical": ["id"]}, "categorical: no column 'id'"),
        ({}, {"missing": "mean"}, r"missing must be one of .*, got 'mean'"),
        ({}, {"unknown": "mean"}, r"unknown must be one of .*, got 'mean'"),
        ({}, {"encoding": "binary"}, r"encoding must be one of .*, got 'binary'"),
        ({"age": ["1,234", "5,678.9", "12,000", "1,000", "2,000"]}, {}, "thousands separators"),
        ({"age": ["2020-01-02", "2021-03-04", "2020-01-03", "1/2/2020", "3.4.21"]}, {}, "dates"),
    ],
)
def test_a_table_or_an_option_that_is_refused(
    columns: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        dataset_from_frame(changed(**columns), **{"target": "sick", **options})
    if "age" in columns:
        found = dataset_from_frame(changed(**columns), "sick", categorical=["age"])
        assert found.x.shape[1] == 9


def test_missing_values_are_an_error_by_default() -> None:
    frame = changed(age=[20.0, np.nan, np.nan, 50.0, 60.0], sex=["F", "M", None, "F", "F"])
    with pytest.raises(ValueError, match="'age' has 2 missing values, the first in row 1") as found:
        dataset_from_frame(frame, "sick")
    assert "'sex' has 1 missing value, the first in row 2" in str(found.value)
    assert "--missing drop" in str(found.value)
    target = changed(sick=["no", None, "no", "yes", "yes"])
    for missing in ("refuse", "level"):
        with pytest.raises(ValueError, match=r"'sick' has 1 missing .* in row 1; missing='drop'"):
            dataset_from_frame(target, "sick", missing=missing)


def test_rows_with_blanks_are_left_out_and_the_others_keep_their_ids() -> None:
    frame = changed(
        age=[20.0, np.nan, 40.0, 50.0, 60.0], sick=["no", "yes", "no", None, "yes"], note=None
    )
    data = dataset_from_frame(frame, "sick", missing="drop", drop=["note"])
    assert data.ids.tolist() == [0, 2, 4]
    assert data.y.tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match="no rows without a blank"):
        dataset_from_frame(frame, "sick", missing="drop")
    # What remains counts: the mean is that of the rows that are used.
    assert data.preprocessing["encoding"]["columns"][0]["mean"] == 40.0


@pytest.mark.parametrize("encoding", ["onehot", "ordinal"])
def test_a_blank_can_be_a_value_of_its_own(encoding: str) -> None:
    frame = changed(age=[20.0, np.nan, 40.0, 50.0, 70.0], sex=["F", None, "M", "F", "F"])
    data = dataset_from_frame(frame, "sick", missing="level", encoding=encoding, drop=["smokes"])
    sexes = ("sex=F", "sex=M") if encoding == "onehot" else ("sex",)
    assert data.feature_names == ("age", "age is missing", *sexes, "sex is missing")
    blank = [0.0, 1.0, *([0.0] * len(sexes)), 1.0]
    assert data.x[1].tolist() == blank
    assert not data.x[[0, 2, 3, 4]][:, [1, -1]].any()
    age = torch.tensor([20.0, 40.0, 50.0, 70.0], dtype=torch.float64)
    expected = (age - age.mean()) / age.std(correction=0)
    torch.testing.assert_close(data.x[[0, 2, 3, 4], 0], expected)
    # New rows follow, through the text that is published.
    again = Encoding.from_dict(json.loads(json.dumps(data.preprocessing["encoding"])))
    assert again.apply(pd.DataFrame({"age": [None], "sex": [None]})).tolist() == [blank]
    with pytest.raises(ValueError, match=r"no column \('sex'\)"):
        again.apply(pd.DataFrame({"age": [None]}))


def test_all_problems_are_listed_at_once() -> None:
    rows = 200
    frame = pd.DataFrame(
        {
            "who": [f"SSN-{i}" for i in range(rows)],
            "id": range(rows),
            "age": [*[50.0] * 10, np.inf, *np.linspace(20, 60, rows - 11)],
            "dose": [1.0, np.nan, *np.linspace(0, 1, rows - 2)],
            "flat": 3,
            "even": "x",
            "number": ["1", "2", "3", "?"] * (rows // 4),
            "town": [f"t{i}" for i in range(rows - 99)] + ["t0"] * 99,
            "when": pd.date_range("2020-01-01", periods=rows),
            "several": [[1], [2]] * (rows // 2),
            "sick": np.arange(rows) % 3,
        }
    )
    with pytest.raises(ValueError, match="who") as found:
        dataset_from_frame(frame, "sick")
    lines = str(found.value).splitlines()
    for number, part in enumerate(
        (
            "'dose' has 1 missing value, the first in row 1; missing='drop'",
            "target='sick' must have two different values",
            "'who' has 200 different values",
            "'id' has 200 different integers",
            "'age' has 1 value no finite number, the first is 'inf' in row 10",
            "'number' is text with 3 different numbers, but also '?'",
            "'town' has 101 different values",
            "'when' has values of type datetime64",
            "'several' has values that are neither numbers nor texts",
        )
    ):
        assert part in lines[number]
        if number > 1:
            assert "--drop" in lines[number] or "--categorical" in lines[number]
    assert len(lines) == 9


@pytest.mark.parametrize(
    ("encoding", "rows", "distinct"), [("onehot", 90, 90), ("ordinal", 90, 45), ("onehot", 11, 11)]
)
def test_identifiers_are_not_categories(encoding: Any, rows: int, distinct: int) -> None:
    names = [f"SSN-{i % distinct:03d}-44" for i in range(rows)]
    frame = pd.DataFrame({"x": np.linspace(0, 1, rows), "who": names, "y": np.arange(rows) % 2})
    with pytest.raises(ValueError, match=rf"'who' has {distinct} different .*drop=\['who'\]"):
        dataset_from_frame(frame, "y", encoding=encoding)
    assert dataset_from_frame(frame, "y", drop=["who"]).feature_names == ("x",)
    listed = dataset_from_frame(frame, "y", encoding=encoding, categorical=["who"])
    assert len(listed.feature_names) == 1 + (distinct if encoding == "onehot" else 1)


def integers(low: int, high: int, rows: int = 200, seed: int = 0) -> list[int]:
    """Return different integers in no order."""
    random = np.random.default_rng(seed)
    return [int(i) for i in low + random.choice(high - low, rows, replace=False)]


IDENTIFIERS = {
    "row numbers": ("row", list(range(200))),
    "permuted": ("row", integers(5_000, 5_200)),
    "with gaps": ("row", integers(5_000, 5_390)),
    "a few of them twice": ("row", [*range(192), *range(8)]),
    "in the order of the rows": ("when", sorted(integers(0, 10**6))),
    "the last first": ("when", sorted(integers(0, 10**6), reverse=True)),
    "of equally many digits": ("number", integers(10**8, 10**9)),
    "by name": ("patient_id", integers(0, 10**6)),
    "by a name in one word": ("PatientID", integers(0, 10**6)),
}


@pytest.mark.parametrize("kind", IDENTIFIERS)
def test_identifiers_are_not_numbers(kind: str) -> None:
    name, values = IDENTIFIERS[kind]
    dtypes: tuple[Any, ...] = ("int64", "Int64", "uint32")
    for dtype in dtypes:
        column = pd.Series(values).astype(dtype)
        frame = pd.DataFrame({"x": np.linspace(0, 1, 200), name: column, "y": np.arange(200) % 2})
        with pytest.raises(ValueError, match=rf"'{name}' has .* integers .*drop=\['{name}'\]"):
            dataset_from_frame(frame, "y")
    assert dataset_from_frame(frame, "y", drop=[name]).feature_names == ("x",)
    measured = dataset_from_frame(frame.astype({name: float}), "y")
    assert measured.feature_names == ("x", name)


def test_what_is_published_does_not_say_how_many_rows_there_are() -> None:
    rows = 457  # 365 of them for training
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(50, 10, rows), "sick": np.arange(rows) % 2})
    fewer, constants = frame.iloc[1:], Encoding((Numeric("age", 45.0, 15.0),), "Census tables.")

    def notes(table: pd.DataFrame, **options: Any) -> list[Any]:
        whole = dataset_from_frame(table, "sick", **options)
        splits = [from_frame(table, "sick", **options), first_rows(whole), *folds(whole)]
        parts = [part for split in splits for part in (split.train, split.test)]
        return [part.preprocessing for part in (whole, *parts)]

    public: dict[str, Any] = {"positive": 1, "constants": constants}
    assert notes(frame, **public) == notes(fewer, **public)
    written = json.dumps([{**n, "encoding": n["encoding"]["source"]} for n in notes(frame)])
    assert written == json.dumps([{**n, "encoding": n["encoding"]["source"]} for n in notes(fewer)])


@pytest.mark.parametrize("unit", [None, "who"])
@pytest.mark.parametrize("key", [Key.of_seed(3), Key.of_int(3), None])
def test_a_split_by_the_key_of_a_seed_is_an_experiment(unit: str | None, key: Key | None) -> None:
    frame = pd.concat([TABLE] * 20, ignore_index=True)
    people: Any = {} if unit is None else {"unit": unit, "rows_per_unit": 1}
    frame = frame if unit is None else frame.assign(who=range(len(frame)))
    split = from_frame(frame, "sick", seed=key, **people)
    seeded = key is not None and key.experiment
    assert (Assumption.SEEDED_EXPERIMENT in assumptions_of(split.train.preprocessing, ())) == seeded


@pytest.mark.parametrize("fraction", [0.0, 1.0, float("nan")])
def test_a_split_needs_two_sides(fraction: float) -> None:
    with pytest.raises(ValueError, match="test_fraction must lie strictly between 0 and 1"):
        from_frame(TABLE, "sick", test_fraction=fraction)
    with pytest.raises(ValueError, match=r"test_fraction=0\.9 leaves one side of 5 rows empty"):
        from_frame(TABLE, "sick", test_fraction=0.9, seed=0)


PUBLIC = Encoding((Numeric("age", 45.0, 15.0), OneHot("sex", ("F", "M", "X"))), "Census tables.")


def test_public_constants_are_used_as_they_are() -> None:
    data = dataset_from_frame(TABLE, "sick", positive="yes", constants=PUBLIC)
    assert data.feature_names == ("age", "sex=F", "sex=M", "sex=X")
    assert data.x[4].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert data.preprocessing["encoding"] == PUBLIC.to_dict()
    # One record more or less changes no other record's features.
    assert torch.equal(
        dataset_from_frame(TABLE.iloc[1:], "sick", positive="yes", constants=PUBLIC).x, data.x[1:]
    )


def test_public_constants_that_do_not_fit() -> None:
    odd = changed(sex=["F", "M", "D", "F", "F"], age=[20, "x", 40, np.inf, 60])
    with pytest.warns(PrivacyUtilityWarning, match="only: 3 records left out: a blank"):
        data = dataset_from_frame(odd, "sick", positive="yes", constants=PUBLIC)
    assert data.ids.tolist() == [0, 4]
    with pytest.raises(ValueError, match="positive: say which value of target 'sick' counts as 1"):
        dataset_from_frame(TABLE, "sick", constants=PUBLIC)
    with pytest.raises(ValueError, match=r"the table has no column \('sex'\)"):
        dataset_from_frame(TABLE.drop(columns="sex"), "sick", positive="yes", constants=PUBLIC)
    with pytest.raises(ValueError, match="target='sex' is among the columns of constants"):
        dataset_from_frame(TABLE, "sex", constants=PUBLIC)
    with pytest.raises(ValueError, match="drop='sex' is among the columns of constants"):
        dataset_from_frame(TABLE, "sick", positive="yes", constants=PUBLIC, drop=["sex"])


def test_the_features_by_public_constants_do_not_depend_on_which_values_are_blank() -> None:
    blank = changed(age=[20.0, np.nan, 40.0, 50.0, 60.0])
    one = dataset_from_frame(blank, "sick", positive="yes", constants=PUBLIC, missing="level")
    other = dataset_from_frame(TABLE, "sick", positive="yes", constants=PUBLIC, missing="level")
    assert one.preprocessing == other.preprocessing
    assert one.x.shape == other.x.shape == (5, 6)


def test_a_csv_file_is_its_frame(tmp_path: Path) -> None:
    TABLE.to_csv(tmp_path / "clinic.csv", index=False)
    split = from_csv(tmp_path / "clinic.csv", "sick", test_fraction=0.4, seed=2)
    expected = from_frame(TABLE, "sick", test_fraction=0.4, seed=2)
    assert split.train.name == "clinic"
    for part, whole in ((split.train, expected.train), (split.test, expected.test)):
        assert part.fingerprint() == whole.fingerprint()
        assert part.preprocessing == whole.preprocessing


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"a,y\n", "has a header but no rows"),
        (b'a,"y\n1,0\n', "its first line, the header, has a quote that is not closed"),
        (b"a,a\n1,0\n", "the column name 'a' occurs more than once"),
        (b"a,\xff\xfe\n1,0\n", "its header is not UTF-8"),
    ],
)
def test_a_file_that_is_no_table(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        from_csv(path, "y")
    assert str(path) in str(refused.value)


GOOD = b"a,b,y\n" + b"1,u,0\n" * 50


def test_a_line_is_a_record_and_an_odd_one_is_left_out_alone(tmp_path: Path) -> None:
    """One unclosed quote once made one row of all up to the next stray quote."""
    path, stray = tmp_path / "t.csv", b'7,x",0\n' * 101
    path.write_bytes(GOOD + stray)
    usual = Table.of(path).frame()
    assert len(usual) == 151
    for odd in (
        b'5,"oops,1',
        b"1,2",
        b"1,2,3,4",
        b'"',
        b'1,"a"b,0',
        b'"' + b"9" * 200_000 + b'",u,0',
    ):
        path.write_bytes(GOOD + odd + b"\n" + stray)
        with pytest.warns(PrivacyUtilityWarning, match="owner only: 1 line left out: .* values"):
            found = Table.of(path).frame()
        pd.testing.assert_frame_equal(found, usual)
    for odd in (b'"1","a, ""b""",0', b"\xff,\x00,0", b"1,\r2,0", b"9e999,\x1f\xe2\x80\xa8,0"):
        path.write_bytes(GOOD + odd + b"\n" + stray)
        found = Table.of(path).frame(text=True)
        path.write_bytes(GOOD + stray)
        less = found.drop(index=50).reset_index(drop=True)
        pd.testing.assert_frame_equal(less, Table.of(path).frame(text=True))


def test_quotes_go_over_lines_where_that_is_declared(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(GOOD.replace(b"\n", b"\r\n") + b'2,"two\r\nlines",1\r\n3,u,1\r\n')
    with pytest.warns(PrivacyUtilityWarning, match="2 lines"):
        assert len(Table.of(path).frame()) == 51
    found = Table.of(path, file=FileFormat(multiline=True)).frame()
    assert found.iloc[-2:].to_dict("list") == {"a": [2, 3], "b": ["two lines", "u"], "y": [1, 1]}
    split = from_csv(path, "y", multiline=True, seed=0)
    assert Assumption.RECORDS_ACROSS_LINES in assumptions_of(split.train.preprocessing)
    assert Assumption.RECORDS_ACROSS_LINES not in assumptions_of({})


@pytest.mark.parametrize("separator", [";", "tab", "\\t", "\t", "|"])
def test_other_separators(tmp_path: Path, separator: str) -> None:
    path, file = tmp_path / "t.csv", FileFormat(separator=separator)
    TABLE.to_csv(path, index=False, sep={"tab": "\t", "\\t": "\t"}.get(separator, separator))
    with pytest.raises(ValueError, match=r"(?s)the header has no ',' but.*separator="):
        Table.of(path).frame()
    pd.testing.assert_frame_equal(Table.of(path, file=file).frame(), TABLE)
    assert len(from_csv(path, "sick", separator=separator, seed=0).train) == 4
