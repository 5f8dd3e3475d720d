"""The SELECT of a score, run by DuckDB and SQLite, gives what ``predict`` gives."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from score_releases import HASHED, MODELS, columns, encoding, release_of, saved, with_terms

import bdpvi
from bdpvi import score
from bdpvi.datasets.columns import Column, Numeric, OneHot
from bdpvi.datasets.types import ColumnType

TABLE = 'main.the "people"'
PEOPLE = pd.DataFrame(
    {
        'i"d': range(7),
        "years": [0.5, 2.5, None, 1e9, -1.0, 0.0, 1e-12],
        "sex": ["F", "female", "M", None, "X", " M ", ""],
        "paid": [1234.5, 9999.0, None, -1e15, 0.0, 17.0, 999.9],
        "smokes": ["True", "False", None, "N/A", "maybe", "True", "False"],
    }
)


def in_duckdb(sql: str, table: pd.DataFrame) -> pd.DataFrame:
    with duckdb.connect() as base:
        base.register("given", table)
        base.execute('CREATE TABLE main."the ""people""" AS SELECT * FROM given')
        made: pd.DataFrame = base.execute(sql).df()
        return made


def in_sqlite(sql: str, table: pd.DataFrame) -> pd.DataFrame:
    base = sqlite3.connect(":memory:")
    table.to_sql('the "people"', base, index=False)
    made = pd.read_sql_query(sql, base)
    base.close()
    return made


RUN = {"standard": in_duckdb, "sqlite": in_sqlite}


def held(path: Path, table: pd.DataFrame, dialect: str, **more: Any) -> pd.DataFrame:
    """Hold the database's predictions against those of the rows; return them."""
    scorer = score.load(path, **more)
    found = RUN[dialect](scorer.to_sql(TABLE, ids=['i"d'], dialect=dialect), table)
    found = found.sort_values('i"d', ignore_index=True)
    right = pd.DataFrame(scorer.predict(table.to_dict("records"))).drop(columns="spread")
    assert [*found] == ['i"d', *right]
    for name in right:
        if name == "class":
            assert found[name].tolist() == right[name].tolist()
        else:
            np.testing.assert_allclose(
                found[name].astype(float), right[name].astype(float), 1e-9, 1e-12
            )
    return found


@pytest.mark.parametrize("dialect", RUN)
@pytest.mark.parametrize("model", MODELS)
def test_every_likelihood_is_computed_in_a_database(
    tmp_path: Path, model: str, dialect: str
) -> None:
    if model == "correlated":  # its groups are no categories, but weights are transformed first
        assert MODELS[model].groups
    path = saved(tmp_path / "release.json", MODELS[model], draws=20)
    found = held(path, PEOPLE, dialect)
    last = found[[*found][-1]]
    assert last.nunique() >= (4 if model == "poisson of years" else 6)
    if model == "poisson of years":
        assert last.isna().tolist() == [False, False, True, False, True, True, False]


@pytest.mark.parametrize("dialect", RUN)
def test_a_cell_that_predict_refuses_is_null_and_with_base_adds_nothing(
    tmp_path: Path, dialect: str
) -> None:
    path = saved(tmp_path / "release.json", MODELS["unclipped"], "refuse")
    held(path, PEOPLE, dialect, unknown="base")
    scorer = score.load(path)
    sql = scorer.to_sql(TABLE, ids=['i"d'], dialect=dialect)
    found = RUN[dialect](sql, PEOPLE).sort_values('i"d', ignore_index=True)
    good = [0, 1]
    right = scorer.predict(PEOPLE.iloc[good].to_dict("records"))
    assert found["probability"].notna().tolist() == [at in (0, 1, 5) for at in range(7)]
    assert found["class"].notna().tolist() == found["probability"].notna().tolist()
    np.testing.assert_allclose(
        found["probability"][good], [one["probability"] for one in right], 1e-9
    )


@pytest.mark.parametrize("dialect", RUN)
@pytest.mark.parametrize("model", ["bounded score", "negative binomial"])
def test_a_formula_s_terms_are_computed_in_a_database(
    tmp_path: Path, model: str, dialect: str
) -> None:
    """The limits are 3 and 1: beyond and within the bounds of a term's numbers."""
    years = pd.Series([0.5, 1.7, np.nan, 1e9, -1.0, 0.25, -1.7])
    inside = PEOPLE.assign(years=years)
    for at, unknown in enumerate(("other", "refuse")):
        path = tmp_path / f"{at}.json"
        bdpvi.save_release(release_of(MODELS[model], with_terms(unknown), size=0.2), path)
        held(path, inside, dialect, **({"unknown": "base"} if at else {}))
    sql = score.load(path).to_sql(TABLE, ids=['i"d'], dialect=dialect)
    found = RUN[dialect](sql, PEOPLE).sort_values('i"d', ignore_index=True)
    right = score.load(path).predict(PEOPLE.iloc[[0, 1, 5]].to_dict("records"))
    name = [*right[0]][-2]
    assert found[name].notna().tolist() == [at in (0, 1, 5) for at in range(7)]
    np.testing.assert_allclose(found[name][[0, 1, 5]], [one[name] for one in right], 1e-9)


TYPED: tuple[Column, ...] = (
    Numeric("born", 0.0, 1000.0, type=ColumnType(kind="date", since="1980-01-01")),
    Numeric("rooms", 3.0, 2.0, type=ColumnType(kind="integer", missing={"-1": "refused"})),
    OneHot("ward", ("7", "12", "x'y"), type=ColumnType(kind="category", missing={"99": ""})),
    OneHot("smokes", ("False", "True"), type=ColumnType(kind="boolean")),
    OneHot("code", ("007", "7"), type=ColumnType(kind="code", blank=("none",))),
    OneHot("owner", ("False", "True")),
)
ROOMS: dict[str, list[Any]] = {
    'i"d': [*range(6)],
    "born": ["1980-01-01", "1999-12-31", "1950-02-28", None, "2000-02-29", "1980-01-02"],
    "rooms": [2, -1, 3, None, 2.5, 10],
    "ward": ["7", "12.0", "x'y", "99", "8", None],
    "smokes": ["yes", "NO", "maybe", "t", "0", None],
    "code": ["007", "7", "NA", "none", "None", None],
    "owner": [True, False, True, None, False, True],
}


@pytest.mark.parametrize("dialect", RUN)
def test_declared_types_are_kept_in_a_database(tmp_path: Path, dialect: str) -> None:
    path, table = tmp_path / "release.json", pd.DataFrame(ROOMS)
    bdpvi.save_release(release_of(MODELS["bounded score"], encoding(TYPED)), path)
    if dialect == "standard":
        table["born"] = pd.to_datetime(table["born"])
        table["owner"] = table["owner"].astype("boolean")
    else:  # SQLite has no Booleans
        table["owner"] = [None if one is None else str(one) for one in ROOMS["owner"]]
    found = held(path, table, dialect)
    assert found["probability"].nunique() == 6
    wards = pd.Series([7, 12, 99, None, 8, 7], dtype="Float64")
    numbers = table.assign(ward=wards, rooms=[2, -1, 3, 4, 5, 6])
    held(path, numbers.astype({"ward": "Int64"} if dialect == "standard" else {}), dialect)


def test_text_among_the_numbers_of_sqlite(tmp_path: Path) -> None:
    """A column made from a CSV file is text there: what is no number is no 0."""
    path = saved(tmp_path / "release.json", MODELS["bounded score"])
    text = PEOPLE.astype({"years": object})
    text["years"] = ["0.5", "2.50", None, "1e9", "-1", "N/A", ""]
    held(path, text, "sqlite")
    text.loc[0, "years"] = "much"
    with pytest.raises(pd.errors.DatabaseError, match="malformed JSON"):
        held(path, text, "sqlite")
    with pytest.raises(duckdb.BinderException, match="VARCHAR"):
        held(path, text, "standard")


def test_many_draws_and_columns_stay_within_the_databases_limits(tmp_path: Path) -> None:
    many = tuple(Numeric(f"x{at}", 0.0, 1.0) for at in range(300))
    release = release_of(MODELS["bounded score"], encoding(many), draws=60, size=0.05)
    bdpvi.save_release(release, tmp_path / "release.json")
    values = np.random.default_rng(1).normal(size=(3, 300))
    rows = pd.DataFrame(values, columns=[one.name for one in many])
    rows.insert(0, 'i"d', range(3))
    for dialect in RUN:
        held(tmp_path / "release.json", rows, dialect)


def test_what_a_database_cannot_compute_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "release.json", MODELS["logistic"])
    scorer = score.load(path)
    with pytest.raises(ValueError, match="dialect='oracle' must be one of"):
        scorer.to_sql("t", dialect="oracle")
    with pytest.raises(ValueError, match="ids has 'class', which is a column of the predictions"):
        scorer.to_sql("t", ids=["class"])
    moment = ColumnType(kind="datetime")
    german = ColumnType(kind="date", date_format="%d.%m.%Y")
    for column, dialect, words in (
        (HASHED, "standard", "column 'job' is hashed; use predict"),
        (Numeric("at", 0.0, 1.0, type=moment), "standard", "column 'at' is of kind datetime"),
        (Numeric("at", 0.0, 1.0, type=german), "sqlite", "has the date format '%d.%m.%Y'"),
        (OneHot("at", ("1",), type=ColumnType(kind="number")), "standard", "levels of kind number"),
    ):
        bdpvi.save_release(release_of(MODELS["bounded score"], encoding((column,))), tmp_path / "r")
        with pytest.raises(ValueError, match=words):
            score.load(tmp_path / "r").to_sql("t", dialect=dialect)
        (tmp_path / "r").unlink()
    odd = bdpvi.BayesianLogisticRegression.unweighted(limit=1.0, one_hot=((0, 1),))
    bdpvi.save_release(release_of(odd, encoding(columns())), tmp_path / "r")
    with pytest.raises(ValueError, match="features of several columns are scaled together"):
        score.load(tmp_path / "r").to_sql("t")
