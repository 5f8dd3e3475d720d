"""A look at a table names what is read otherwise than meant, and the option that changes it."""

from __future__ import annotations

import json
import shlex
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest

from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi.datasets import constants_of
from bdpvi.datasets import table as tables
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.guess import date_formats, numbers_in, seems, shapes, sign_options
from bdpvi.datasets.schema import Schema
from bdpvi.datasets.types import ColumnType
from bdpvi.tables import TableLook
from bdpvi.tables.looking import look_at_frame

USUAL = (".", "")


def looked(frame: pd.DataFrame, file: FileFormat | None = None, **asked: Any) -> TableLook:
    usual: dict[str, Any] = {"positive": "", "one_row_per_person": "unit" not in asked}
    return look_at_frame(frame, flat.request(**{**usual, **asked}), file)


def options(found: TableLook) -> list[str]:
    return [finding.option for finding in found.findings]


def types(name: str, **entry: Any) -> Schema:
    return Schema({name: ColumnType(**entry)}, "form")


def texts(*values: str, rows: int = 60) -> list[str]:
    return [values[at % len(values)] for at in range(rows)]


@pytest.mark.parametrize(
    ("values", "separator", "signs"),
    [
        ({"27,3": 5, "30": 2}, ",", (",", "")),
        ({"1.234,5": 5, "30,25": 2}, ",", (",", ".")),
        ({"1,234": 5, "30": 2}, ",", (".", ",")),
        ({"1,234": 5, "30": 2}, ";", (",", "")),
        ({"1 234.5": 5, "30": 2}, ",", (".", " ")),
        ({"27.3": 5, "1.5": 2}, ",", None),
        ({"a,b": 5, "1,5": 2}, ",", None),  # most cells are no numbers by any signs
        ({"1,5": 3, "2.5": 4}, ",", None),  # it would lose more than it reads
    ],
)
def test_signs_are_suggested_only_if_they_read_more(
    values: dict[object, int], separator: str, signs: tuple[str, str] | None
) -> None:
    assert sign_options([(values, USUAL)], separator) == signs
    assert sign_options([(shapes(values), USUAL)], separator) == signs
    if signs is not None:
        assert numbers_in(values, *signs) > numbers_in(values, *USUAL)


def test_a_shape_is_a_number_where_its_text_is_one() -> None:
    some = ["1", " 2.5", "1,234.5", "12,34", "-3e5", "1 000", "1e", "e", "7.", ".5", "--1", "x1"]
    for signs in (USUAL, (",", ""), (".", ","), (",", "."), (".", " ")):
        for one in some:
            (shape,) = shapes({one: 1})
            assert numbers_in({one: 1}, *signs) == numbers_in({shape: 1}, *signs), (one, signs)


def test_dates_have_their_formats() -> None:
    assert date_formats({"31.12.2001": 3, "?x": 0}) == ("%d.%m.%Y",)
    assert date_formats({"01/02/2001": 3}) == ("%d/%m/%Y", "%m/%d/%Y")
    assert date_formats({"01/02/2001": 3, "01/31/2001": 1}) == ("%m/%d/%Y",)
    assert date_formats({"ward": 3, "31.12.2001": 1}) == ()


@pytest.mark.parametrize(
    ("content", "given", "charset", "separator"),
    [
        ("ä,b\n1,2\n", {}, "utf-8", ","),
        ("ä;b\n1,5;2\n3;4\n", {}, "utf-8", ";"),
        ("ä;b\n1;2\n", {"charset": "latin-1"}, "utf-8", ";"),
        ("a;b, c;d\n1;2;3\n", {}, "utf-8", ";"),
        ("a\tb\n1\t2\n", {"separator": "tab"}, "utf-8", "tab"),
        ("a\tb\n1\t2\n", {}, "utf-8", "tab"),
        ("a\nx,y\n", {}, "utf-8", ","),
    ],
)
def test_how_a_file_seems_to_be_written(
    content: str, given: dict[str, Any], charset: str, separator: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode())
    found = seems(path, FileFormat(**given))
    assert (found.charset, found.separator) == (charset, separator)


@pytest.mark.parametrize(
    ("text", "charset"),
    [("größe", "latin-1"), ("größe €", "cp1252"), ("größe", "utf-16"), ("size", "latin-1")],
)
def test_character_sets(text: str, charset: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(f"{text},b\n1,2\n".encode(charset))
    assert seems(path, FileFormat()).charset == ("utf-8" if text == "size" else charset)
    assert seems(path, FileFormat(charset=charset)).charset == charset
    found = flat.look(path, one_row_per_person=True)
    costs = [finding.option for finding in found.findings if finding.costly]
    assert (f'declare {{"file": {{"charset": "{charset}"}}}}' in costs) == (text != "size")


def test_numbers_with_other_signs_have_one_option_for_the_file() -> None:
    frame = pd.DataFrame({"kg": texts("70,5", "81,2", "9"), "cm": texts("1,7", "1,85", "1,60")})
    assert options(looked(frame)) == ['declare {"file": {"decimal": ","}}'] * 2
    assert str(looked(frame).findings[0]).startswith("column 'kg': 33 % of its cells are numbers")
    assert not options(looked(frame, FileFormat(decimal=",")))
    odd = frame.assign(lab=texts("1.25", "2.5", "3.75"))
    (one,) = options(looked(odd, FileFormat(decimal=",")))
    assert json.loads(one.partition(" ")[2])["columns"] == {
        "lab": {"kind": "number", "decimal": "."}
    }
    own = types("lab", kind="number", decimal=".")
    assert not options(looked(odd, FileFormat(decimal=","), types=own))


def test_words_among_numbers_may_be_declared_blank() -> None:
    frame = pd.DataFrame({"lab": texts("1.5", "2.5", "4", "unknown")})
    (one,) = looked(frame).findings
    entry = {"kind": "number", "blank": ["unknown"]}
    assert json.loads(one.option.partition(" ")[2])["columns"] == {"lab": entry}
    assert "75 % of its cells are numbers, 25 % are not, such as 'unknown'" in one.words
    found = looked(frame, types=types("lab", kind="number"))
    assert (found.columns[0].unread, found.columns[0].blank, found.costly) == (15, 0, False)
    assert "15 of 60 cells do not fit" in str(found.findings[0])
    found = looked(frame, types=types("lab", kind="number", blank=("unknown",)))
    assert (found.columns[0].unread, found.columns[0].blank, found.findings) == (0, 15, ())
    mostly = pd.DataFrame({"lab": texts("low", "high", "4")})
    assert looked(mostly, types=types("lab", kind="number")).costly
    assert looked(mostly, numeric=["lab"]).columns[0].unread == 40


def test_codes_days_and_identifiers_have_their_options() -> None:
    rows = 200
    frame = pd.DataFrame(
        {
            "plz": texts("01067", "1067", "80331", rows=rows),
            "born": texts("31.12.1960", "01.02.1990", rows=rows),
            "visit": [f"V{at:04d}" for at in range(rows)],
            "number": list(map(str, range(1000, 1000 + rows))),
            "age": texts(*map(str, range(20, 80)), rows=rows),
            "flat": ["x"] * rows,
            "none": [""] * rows,
        }
    )
    found = looked(frame)
    kinds = {column.name: column.kind for column in found.columns}
    assert kinds == {
        "plz": "code", "born": "date", "visit": "identifier", "number": "identifier",
        "age": "integer", "flat": "category", "none": "blank",
    }  # fmt: skip
    assert [column.levels for column in found.columns] == [2, 2, 200, 200, 60, 1, 0]
    day = 'declare {"columns": {"born": {"kind": "date", "date_format": "%d.%m.%Y"}}}'
    assert options(found) == [
        "--categorical plz", f"{day}, or --drop born", "--drop visit", "--drop number",
        "--drop flat", "--drop none",
    ]  # fmt: skip
    left = ["visit", "number", "flat", "none"]
    born = types("born", kind="date", date_format="%d.%m.%Y")
    assert not options(looked(frame, drop=left, categorical=["plz"], types=born))
    assert not options(  # also where the file has signs of its own
        looked(frame, FileFormat(decimal=","), drop=left, categorical=["plz"], types=born)
    )
    found = looked(frame, drop=left, categorical=["plz"], types=types("born", kind="date"))
    assert options(found) == [day]
    assert found.costly


@pytest.mark.parametrize(
    ("values", "option"),
    [
        (
            ["mild", "very ill", "well"],
            "--positive VALUE, or --model multinomial --classes mild --classes well "
            "--classes 'very ill'",
        ),
        (["0", "1", "2", "3"], "--model poisson --largest N"),
        (["1.5", "0", "-2", "3"], "--model linear --target-bounds LOW HIGH"),
        ([str(n) for n in range(60)], "--model poisson --largest N"),
        ([f"person {n}" for n in range(60)], "--positive VALUE"),
    ],
)
def test_a_target_of_several_values_names_its_model(values: list[str], option: str) -> None:
    frame = pd.DataFrame({"target": texts(*values, rows=60), "age": texts("1", "2", rows=60)})
    found = options(looked(frame, target="target"))
    assert {*shlex.split(found[0])} == {*shlex.split(option)}


def test_spellings_of_the_target_are_counted() -> None:
    frame = pd.DataFrame({"sick": texts("yes", "Yes", "YES", "no", "yes ", "no", rows=60)})
    found = looked(frame, target="sick", positive="yes")
    assert found.target is not None
    assert found.target.counts == {"yes": 20, "no": 20, "Yes": 10, "YES": 10}
    assert found.costly
    (one,) = found.findings
    assert "not 'yes': 'no' (20), 'Yes' (10), 'YES' (10)" in one.words
    entry = json.loads(one.option.partition("declare ")[2])["columns"]["sick"]
    assert entry == {"kind": "category", "spellings": {"yes": ["Yes", "YES"]}}
    good = types("sick", kind="category", spellings={"yes": ("Yes", "YES")})
    found = looked(frame, target="sick", positive="yes", types=good)
    assert found.target is not None
    assert (found.target.counts, found.findings) == ({"yes": 40, "no": 20}, ())
    two = frame.replace(["Yes", "YES", "yes "], "yes")
    assert options(looked(two, target="sick")) == ["--positive VALUE"]
    assert looked(frame, target="sick", positive=None).findings == ()  # several classes
    assert "No cell is 'ill'" in str(looked(frame, target="sick", positive="ill").findings[0])


def test_persons_are_said_and_their_rows_are_counted() -> None:
    rows = [name for at in range(90) for name in [f"p{at}"] * (1 if at < 50 else 3)]
    rows += ["p90"] * 9
    frame = pd.DataFrame({"patient_id": rows, "sex": texts("F", "M", rows=len(rows))})
    found = looked(frame, one_row_per_person=False)
    (one,) = found.persons
    assert (one.persons, one.median, one.usual, one.most, one.rows) == (91, 1, 3, 9, 179)
    assert options(found) == ["--unit patient_id --rows-per-unit 3"]
    assert found.costly
    assert options(looked(frame)) == options(found)  # though one row each was declared
    assert not looked(frame, unit="patient_id", rows_per_unit=3).findings
    assert options(looked(frame, unit="patient_id", rows_per_unit=20)) == ["--rows-per-unit 9"]
    alone = pd.DataFrame({"age": texts(*map(str, range(20, 60)))})
    assert options(looked(alone, one_row_per_person=False)) == ["--one-row-per-person"]
    assert not looked(alone).findings


def test_what_epsilon_pays_for_and_needs() -> None:
    frame = pd.DataFrame({"age": texts(*map(str, range(20, 60))), "sick": texts("yes", "no")})
    asked: dict[str, Any] = {"target": "sick", "positive": "yes"}
    found = looked(frame, **asked, epsilon=0.1)
    assert found.price is not None
    assert found.price.columns == {"age": "undeclared"}
    assert found.price.refused_below == round(0.5 * found.price.needed)
    assert "about 60 records are too few" in str(found.findings[-1])
    assert found.costly
    many = pd.concat([frame] * (found.price.needed // 60 + 1))
    assert not looked(many, **asked, epsilon=0.1).findings
    public = constants_of({"source": "By law.", "age": [0, 110]})
    free = looked(frame, **asked, epsilon=0.1, constants=public)
    assert free.price is not None
    assert (free.price.needed, free.findings) == (0, ())
    assert looked(frame, **asked).price is None


def test_columns_that_an_option_names_must_be_there() -> None:
    frame = pd.DataFrame({"age": texts("1", "2")})
    wrong: dict[str, Any] = {"target": "x", "unit": "x", "drop": ["x"], "numeric": ["x"]}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=f"{name}='x' must be a column"):
            looked(frame, None, **{name: value})


def test_a_long_table_is_counted_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random, rows = np.random.default_rng(0), 900
    frame = pd.DataFrame({"who": range(rows), "kg": random.normal(70, 9, rows).round(1)})
    frame["sick"] = random.choice(["yes", "no"], rows)
    frame["year"] = np.repeat(["2022", "2023", "2024"], rows // 3)
    frame["note"] = ["", *["late"] * (rows - 1)]
    texts = frame.astype(str)
    texts.loc[[5, 700], "kg"] = "heavy"
    texts.loc[rows - 1, "sick"] = "Yes"
    (tmp_path / "t").mkdir()
    for year, part in texts.groupby("year"):
        part.to_csv(tmp_path / "t" / f"{year}.csv", index=False)
    with (tmp_path / "t" / "2024.csv").open("a") as file:
        file.write("1,2\n")
    declared = types("kg", kind="number")
    given: dict[str, Any] = {"target": "sick", "positive": "yes", "types": declared}
    given |= {"one_row_per_person": True}
    with pytest.warns(PrivacyUtilityWarning, match="1 line left out"):
        whole = flat.look(tmp_path / "t", **given)
    assert (whole.first, whole.rows) == (0, rows)
    seen_at_once = look_at_frame(texts, flat.request(**given))
    assert replace(whole, file=seen_at_once.file) == seen_at_once

    monkeypatch.setattr(tables, "MOST", 100)
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    with pool, pytest.warns(PrivacyUtilityWarning, match="1 line left out"):
        some = flat.look(tmp_path / "t", executor=pool, **given)
    assert some.first == 100
    assert "from its first 100 rows" in str(some)
    assert some.target == whole.target
    for one, other in zip(some.columns, whole.columns, strict=True):
        cells = ("numbers", "names", "blank", "unread")
        assert [getattr(one, name) for name in cells] == [getattr(other, name) for name in cells]
    assert some.columns[1].unread == 2
    assert some.columns[3].levels == 3  # it varies, though not in the first rows
    assert options(some) == options(whole)


def test_a_wrong_option_is_refused_before_all_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age\n1\n")
    with pytest.raises(ValueError, match="target='sick' must be a column"):
        flat.look(f"{tmp_path}/*.csv", target="sick")
