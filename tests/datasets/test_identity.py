"""Whose rows a table holds is the same in any path, format, object and order."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pyarrow import feather, orc
from scipy import stats

from bdpvi.datasets import identity as identities
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.identity import Identity, Sealed
from bdpvi.datasets.table import Table

KEY = b"a ledger's"
RANDOM = np.random.default_rng(0)
ROWS = 3000
DAYS = pd.Timestamp("2020-01-01") + pd.to_timedelta(RANDOM.integers(0, 900, ROWS), "D")
FRAME = pd.DataFrame(
    {
        "id": [f"P{one:05d}" for one in RANDOM.permutation(ROWS)],
        "kg": np.where(RANDOM.random(ROWS) < 0.1, np.nan, RANDOM.normal(70, 9, ROWS)),
        "visits": RANDOM.integers(0, 9, ROWS),
        "big": RANDOM.integers(2**54, 2**60, ROWS),
        "sex": RANDOM.choice(["F", "M", "n/a"], ROWS),
        "code": RANDOM.choice(["007", "7", "012"], ROWS),
        "smokes": RANDOM.random(ROWS) < 0.3,
        "day": DAYS,
        "at": DAYS + pd.to_timedelta(RANDOM.integers(0, 86400, ROWS), "s"),
    }
)


def of(table: Any, file: FileFormat | None = None, **blocks: Any) -> Sealed:
    signs = (file or FileFormat()).signs[:2]
    found: Identity = Table.of(table, file=file, **blocks).records().sum(Identity.of, signs)
    return found.sealed(KEY)


def with_comma(folder: Path) -> Sealed:
    FRAME.to_csv(folder / "a.csv", index=False, sep=";", decimal=",")
    return of(folder / "a.csv", FileFormat(separator=";", decimal=","))


def written(
    write: Callable[[pd.DataFrame, Path], Any], name: str, **blocks: Any
) -> Callable[[Path], Sealed]:
    def made(folder: Path) -> Sealed:
        write(FRAME, folder / name)
        return of(folder / name, **blocks)

    return made


def in_parts(folder: Path) -> Sealed:
    for at in range(3):
        FRAME[at * 1000 : (at + 1) * 1000].to_csv(folder / f"p{at}.csv", index=False)
    assert of(folder).equals(of(f"{folder}/p*.csv"))
    return of(folder)


def queried(folder: Path) -> Sealed:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        return of(connection.from_df(FRAME))


def polars(folder: Path) -> Sealed:
    made = pytest.importorskip("polars").from_pandas(FRAME)
    made.write_csv(folder / "a.csv")
    assert of(made).equals(of(folder / "a.csv"))
    return of(made)


CARRIERS: dict[str, Callable[[Path], Sealed]] = {
    "CSV": written(lambda one, to: one.to_csv(to, index=False), "a.csv"),
    "small blocks": written(lambda one, to: one.to_csv(to, index=False), "a.csv", size=9000),
    "gzip": written(lambda one, to: one.to_csv(to, index=False), "a.csv.gz"),
    "decimal comma": with_comma,
    "a glob and a folder": in_parts,
    "Parquet": written(lambda one, to: one.to_parquet(to, row_group_size=700), "a.parquet"),
    "Feather": written(feather.write_feather, "a.feather"),
    "ORC": written(lambda one, to: orc.write_table(pa.Table.from_pandas(one), to), "a.orc"),
    "Arrow": lambda _: of(pa.Table.from_pandas(FRAME)),
    "DuckDB": queried,
    "Polars": polars,
    "pandas": lambda _: Identity.of(FRAME).sealed(KEY),
    "texts": lambda _: Identity.of(FRAME.astype(str)).sealed(KEY),
    "objects": lambda _: Identity.of(FRAME.astype(object)).sealed(KEY),
    "categories": lambda _: Identity.of(FRAME.astype("category")).sealed(KEY),
    "Arrow's dtypes": lambda _: Identity.of(FRAME.convert_dtypes(dtype_backend="pyarrow")).sealed(
        KEY
    ),
    "rows in another order": lambda _: Identity.of(FRAME.sample(frac=1, random_state=1)).sealed(
        KEY
    ),
    "columns in another order": lambda _: Identity.of(FRAME[FRAME.columns[::-1]]).sealed(KEY),
    "other names": lambda _: Identity.of(FRAME.add_suffix("2")).sealed(KEY),
}


@pytest.fixture(scope="module")
def one() -> Sealed:
    return Identity.of(FRAME).sealed(KEY)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_same_rows_have_one_identity(carrier: str, one: Sealed, tmp_path: Path) -> None:
    found = CARRIERS[carrier](tmp_path)
    assert found.equals(one)
    assert found.shares(one)
    assert found.samples[0] == one.samples[0]


def test_a_workbook_has_the_identity_of_its_numbers(tmp_path: Path) -> None:
    """A workbook holds 15 digits: other numbers are other rows, but the names of persons tell."""
    pytest.importorskip("python_calamine")
    pytest.importorskip("openpyxl")
    short = FRAME.assign(kg=FRAME["kg"].round(6), big=FRAME["big"] // 10**5)
    for frame, same in ((short, True), (FRAME, False)):
        frame.to_excel(tmp_path / "a.xlsx", index=False)
        found, right = of(tmp_path / "a.xlsx"), Identity.of(frame).sealed(KEY)
        assert found.equals(right) == same
        assert found.shares(right)


CHANGED: dict[str, Callable[[], pd.DataFrame]] = {
    "a row more": lambda: pd.concat([FRAME, FRAME[:1].assign(id="P9")]),
    "a row twice": lambda: pd.concat([FRAME, FRAME[:1]]),
    "a row less": lambda: FRAME[1:],
    "a cell": lambda: FRAME.assign(visits=[99, *FRAME["visits"][1:]]),
    "two thirds": lambda: FRAME[:2000],
    "a tenth": lambda: FRAME[:300],
    "twice as many": lambda: pd.concat([FRAME, FRAME.assign(id="Q" + FRAME["id"], kg=1.0)]),
    "a column more": lambda: FRAME.assign(x=RANDOM.normal(size=ROWS)),
    "a column less": lambda: FRAME.drop(columns="kg"),
    "ids alone": lambda: FRAME[["id"]],
    "a column less and a row more": lambda: pd.concat([FRAME, FRAME[:1]]).drop(columns="big"),
}


@pytest.mark.parametrize("change", CHANGED)
def test_a_changed_table_is_known_and_not_equal(change: str, one: Sealed) -> None:
    found = Identity.of(CHANGED[change]()).sealed(KEY)
    assert not found.equals(one)
    assert found.shares(one)
    assert one.shares(found)


def population(seed: int, rows: int = 2000, kinds: int = 3) -> pd.DataFrame:
    """Return a table whose only numbers are whole, small, or of the rows' places."""
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "nr": random.permutation(rows) + 1,
            "age": random.integers(18, 90, rows),
            **{f"x{at}": random.integers(0, 4, rows) for at in range(kinds)},
        }
    )


@pytest.mark.parametrize("seed", range(1, 6))
def test_other_people_of_the_same_population_are_others(seed: int) -> None:
    for frames in (
        (population(0), population(seed)),
        *((population(0, kinds=k).drop(columns="nr"), population(seed, kinds=k).drop(columns="nr"))
          for k in (0, 1, 3)),
    ):  # fmt: skip
        first, other = (Identity.of(each).sealed(KEY) for each in frames)
        assert not first.equals(other)
        assert not first.shares(other)


def test_the_chance_of_agreement_is_that_of_pearson() -> None:
    random = np.random.default_rng(1)
    kinds, found = random.dirichlet(np.full(30, 5.0)), []
    for at in range(2000):
        pairs = random.poisson(3000 * kinds, (2, 30)).T.astype(float)
        found.append(identities.chance(pairs))
        if at < 20:  # of equal totals it is the statistic of a contingency table
            pairs[0] += np.maximum(pairs.sum(0)[::-1] - pairs.sum(0), 0)
            right = stats.chi2_contingency(pairs.T, correction=False).statistic
            assert identities.chance(pairs) == pytest.approx(stats.chi2.cdf(right, 30), rel=1e-9)
    assert stats.kstest(found, "uniform").pvalue > 1e-3


def test_half_of_the_rows_are_too_few() -> None:
    numbers = np.random.default_rng(3).normal(size=(3000, 2))
    for shared, known in ((0.3, False), (0.7, True)):
        cut = int(2000 * shared)
        first = Identity.of(pd.DataFrame(numbers[:2000])).sealed(KEY)
        others = np.vstack([numbers[:cut], np.random.default_rng(4).normal(size=(2000 - cut, 2))])
        assert first.shares(Identity.of(pd.DataFrame(others)).sealed(KEY)) is known


@pytest.mark.parametrize("kinds", [0, 1, 3])
def test_categories_with_a_row_more_are_known(kinds: int) -> None:
    """Rows that are equal by nature are known when they agree more than chance would let them."""
    frame = population(0, 5000, kinds).drop(columns="nr")
    first = Identity.of(frame).sealed(KEY)
    more = Identity.of(pd.concat([frame, frame[:1]])).sealed(KEY)
    assert not first.equals(more)
    assert first.shares(more)


def test_places_of_rows_name_nobody() -> None:
    def table(places: NDArray[Any], seed: int) -> Sealed:
        more = np.random.default_rng(seed).normal(size=len(places))
        return Identity.of(pd.DataFrame({"nr": places, "x": more})).sealed(KEY)

    ordered, mixed = np.arange(1, 1001), np.random.default_rng(0).permutation(1000) + 1
    assert not table(ordered, 1).shares(table(mixed, 2))
    names = np.random.default_rng(0).integers(10**8, 10**9, 1000)
    assert table(names, 1).shares(table(names[::-1].astype(str), 2))


def test_persons_of_several_rows_are_known_by_their_names_alone() -> None:
    random = np.random.default_rng(0)

    def visits(persons: NDArray[Any], unit: str = "person") -> Sealed:
        frame = pd.DataFrame({"person": np.repeat(persons, 3), "x": random.normal(size=600)})
        return Identity.of(frame, unit=unit).sealed(KEY)

    names = random.permutation(10**6)[:400]
    first = visits(names[:200])
    assert first.shares(visits(names[20:220]))
    assert first.shares(visits(names[:200].astype(str)))
    assert not first.shares(visits(names[150:350]))
    assert not first.shares(visits(names[200:]))
    assert not first.shares(visits(names[:200], unit=""))  # whose the numbers are is not said
    assert not visits(np.arange(200)).shares(visits(np.arange(200)))  # places, as above


def test_a_table_of_nobody_is_no_table() -> None:
    assert not Identity.of(FRAME[:0]).sealed(KEY).equals(Identity.of(FRAME[:0]).sealed(KEY))


CELLS = st.one_of(
    st.floats().map(repr), st.integers().map(str), st.text(max_size=8), st.sampled_from(
        ["", "nan", "inf", "1e999", "+5", " 7 ", "1_0", "0x1", "1e5", "True", "2020-01-02", ".",
         "infinity"]
    ),
)  # fmt: skip


@given(st.lists(CELLS, min_size=1, max_size=12))
def test_a_cell_s_hash_depends_on_it_alone(cells: list[str]) -> None:
    texts = [cell.encode(errors="replace").decode() for cell in cells]
    together = identities._hashes(pa.array(texts, pa.large_string()), ".", "")[0]
    alone = [
        identities._hashes(pa.array([text], pa.large_string()), ".", "")[0][0] for text in texts
    ]
    assert together.tolist() == alone


def test_fractions_that_parsers_round_otherwise_are_known() -> None:
    """Whole numbers are compared to the last digit, as they may name persons."""
    x = np.random.default_rng(0).normal(size=1000)
    one, other = (
        Identity.of(pd.DataFrame({"x": each})).sealed(KEY) for each in (x, np.nextafter(x, 9))
    )
    assert one.shares(other)
    assert not one.equals(Identity.of(pd.DataFrame({"x": x * (1 + 1e-12)})).sealed(KEY))
    ids = np.arange(2.0**52, 2.0**52 + 99)
    assert len({*identities._doubles(ids).tolist()}) == 99


def test_what_is_kept_says_nothing_without_the_key(one: Sealed) -> None:
    other = Identity.of(FRAME).sealed(b"another's")
    assert not other.equals(one)
    assert not other.shares(one)
    kept = json.dumps(asdict(one))
    assert not any(name in kept for name in ("P00001", "kg", "sex"))
    assert Sealed(**json.loads(kept)).shares(one)
