"""What can fail without noise fails before a charge, and each pass reads the same rows."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
import torch
from doors import people
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from program import run

import bdpvi
from bdpvi import Ledger, TooFewRecordsError
from bdpvi.datasets import Schema, digests, made_up
from bdpvi.datasets.table import BYTES, Table
from bdpvi.datasets.types import ColumnType
from bdpvi.synthesis import synthetic
from bdpvi.tables import reading

ROWS = 2000
DELTA = 1e-5


def table() -> pd.DataFrame:
    """Return a table of numbers and names."""
    frame = people(ROWS)[["age", "sick"]]
    return frame.assign(sex=np.random.default_rng(1).choice(["F", "M"], ROWS))


def private(frame: Any, ledger: Any = None, **more: Any) -> bdpvi.Release:
    given = {"target": "sick", "positive": "yes", "epsilon": 5.0, "progress": False, **more}
    return flat.private(frame, ledger=ledger, one_row_per_person=True, **given)


def synthesize(frame: Any, ledger: Any = None, **more: Any) -> bdpvi.synthesis.Synthetic:
    given: dict[str, Any] = {"epsilon": 5.0, "delta": DELTA, "progress": False, **more}
    return flat.synthesize(frame, ledger=ledger, one_row_per_person=True, **given)


# --- the law --------------------------------------------------------------------------------------


def commands(folder: Path, *words: object) -> None:
    file = folder / "people.csv"
    table().to_csv(file, index=False)
    places = ("--out", folder / "out", "--ledger", folder / "people.jsonl", "--quiet")
    given = ("--data", file, "--one-row-per-person", "--target", "sick", "--epsilon", 5)
    run(words[0], *given, *words[1:], *places)


def of_file(call: Callable[..., object], **more: Any) -> Callable[[Path], object]:
    return lambda folder: call(table(), Ledger.at(folder / "people.jsonl"), **more)


MODEL = bdpvi.BayesianLinearRegression.of_bounds(0, 100)
DOORS: dict[str, Callable[[Path], object]] = {
    "private": of_file(private),
    "private, intervals": of_file(private, intervals=True),
    "private, linear": of_file(private, target="age", positive=None, model=MODEL),
    "private, to a file": lambda folder: private(
        table(), folder / "people.jsonl", out=folder / "out"
    ),
    "command private": lambda folder: commands(
        folder, "private", "--positive", "yes", "--no-scores"
    ),
    "synthesize": of_file(synthesize),
    "command synthesize": lambda folder: commands(folder, "synthesize", "--no-report"),
}
STAGES = {
    "private": (
        "bdpvi.datasets.estimates._categories",
        "bdpvi.datasets.estimates.scales",
        "bdpvi.datasets.encoding.Encoding.to_dict",
        "bdpvi.datasets.columns.OneHot.encode_cells",
        "bdpvi.tables.prepared.with_history",
        "bdpvi.releases.content.Shared.of",
        "bdpvi.releases.released.predictive_means",
    ),
    "synthesize": (
        "bdpvi.datasets.bounds._levels",
        "bdpvi.datasets.schema.encode",
        "bdpvi.datasets.schema.decode",
        "bdpvi.synthesis.content.File.of",
        "bdpvi.synthesis.content.File.counts",
    ),
}
"""What is done after a charge alone."""


@pytest.mark.parametrize("door", DOORS)
def test_what_fails_without_noise_fails_before_a_charge(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = STAGES["synthesize" if "synthesize" in door else "private"]
    for at, stage in enumerate(stages):
        if "linear" in door and ("categories" in stage or "OneHot" in stage):
            continue
        (folder := tmp_path / str(at)).mkdir()

        def broken(*arguments: object, **options: object) -> None:
            raise ValueError("column 'sex' cannot be done")

        with monkeypatch.context() as patched, warnings.catch_warnings():
            patched.setattr(stage, broken)
            warnings.simplefilter("ignore")
            with pytest.raises(ValueError, match=r"'sex' cannot be done.*nothing was charged"):
                DOORS[door](folder)
        assert not Ledger.at(folder / "people.jsonl").entries(), stage
        assert not (folder / "out").exists()
        assert not (folder / "out.secret").exists()


def test_made_up_rows_follow_from_header_and_options_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of another table with the same header give the same rehearsal, and no other coins."""
    seen: list[list[str]] = []
    usual = made_up.frames

    def watched(*given: Any) -> Iterator[pd.DataFrame]:
        made = [*usual(*given)]
        seen.append([one.to_json(default_handler=str) for one in made])
        return iter(made)

    monkeypatch.setattr(made_up, "frames", watched)
    other = table().assign(age=7, sex="a stray text", sick="yes")
    for frame in (table(), other.astype({"age": object})):
        torch.manual_seed(0)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            work = flat.work(frame, target="sick", positive="yes", epsilon=1.0, progress=False)
            reading.rehearse(work)
        assert not [one for one in said if "records are few" in str(one.message)]
        assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(0))
        synthesize(frame, epsilon=1.0)
    half = len(seen) // 2
    assert seen[:half] == seen[half:]
    assert half > 1


# --- kinds of tables that were charged and then refused -------------------------------------------


@pytest.mark.parametrize("name", ["sex=F", "sex#1", "sex is missing"])
def test_a_column_with_the_name_of_a_feature_is_told_apart(name: str) -> None:
    names = private(table().assign(**{name: 1.0}), Ledger()).feature_names
    assert name in names
    assert len({*names}) == len(names)


NAMES = st.sampled_from(
    ["a", "b", "ü é", "a=b", "line\nend", "a is missing", "other", "sick ", "x" * 300, "1", "'"]
)
CELLS = st.sampled_from(
    [
        "1", "1.0", "01", "1e3", "1E400", "12345678901234567", "12345678901234568", "", "NA", " ",
        "other", "blank", "yes", "no", "\n", "\ud800", "é", "=1", 0, 1, -1, 2.5, 1e308, -1e308,
        5e-324, float("inf"), float("nan"), None, True, False, 2**70, 10**400, date(1, 1, 1),
        date(9999, 12, 31), pd.Timestamp("2001-01-01"), pd.NaT, pd.NA, [1], {"a": 1}, b"yes",
    ]
)  # fmt: skip
KINDS = st.sampled_from(
    ["any", "category", "code", "boolean", "ordered", "number", "integer", "date", "text"]
)
COLUMNS = st.dictionaries(NAMES, st.lists(CELLS, min_size=1, max_size=4), min_size=1, max_size=4)


def whole_or_nothing(call: Callable[[Ledger], Any], read: Callable[[Any], object]) -> None:
    """Assert that a call refuses without a charge, or gives a release that can be used."""
    ledger = Ledger()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = call(ledger)
        except TooFewRecordsError:  # by a noisy count, which says what it cost
            return
        except ValueError:
            assert not ledger.entries()
            return
        read(made)


def odd(columns: dict[str, list[object]], kinds: dict[str, str], typed: bool) -> Any:
    frame = pd.DataFrame({"sick": ["yes", "no"] * 300})
    for name, some in columns.items():
        cells = pd.Series((some * 600)[:600], dtype=object)
        with suppress(UnicodeEncodeError, OverflowError):  # of pandas, on odd cells
            cells = cells.infer_objects() if typed else cells
        frame[name] = cells
    types = {
        name: ColumnType(kind=kind)
        for name, kind in kinds.items()
        if name in columns and name.strip() == name
    }
    return frame, Schema(types, "form") if types else None


@settings(max_examples=25, deadline=None, suppress_health_check=[*HealthCheck])
@given(COLUMNS, st.dictionaries(NAMES, KINDS, max_size=3), st.booleans())
def test_an_odd_table_is_refused_uncharged_or_synthesized(
    columns: dict[str, list[object]], kinds: dict[str, str], typed: bool
) -> None:
    def read(made: synthetic.Synthetic) -> None:
        again = synthetic.of_bytes(made.to_bytes())
        again.schema.encode(again.sample(20, seed=0))

    frame, types = odd(columns, kinds, typed)
    whole_or_nothing(lambda ledger: synthesize(frame, ledger, schema=types, epsilon=20.0), read)


@settings(max_examples=15, deadline=None, suppress_health_check=[*HealthCheck])
@given(COLUMNS, st.dictionaries(NAMES, KINDS, max_size=3), st.booleans())
def test_an_odd_table_is_refused_uncharged_or_released(
    columns: dict[str, list[object]], kinds: dict[str, str], typed: bool
) -> None:
    frame, types = odd(columns, kinds, typed)

    def read(made: bdpvi.Release) -> None:
        bytes_ = bdpvi.releases.shared_file.release_bytes(made)
        again = bdpvi.releases.received.release_of(bytes_)
        assert np.isfinite(again.predict_mean(frame)).all()

    whole_or_nothing(lambda ledger: private(frame, ledger, types=types, epsilon=20.0), read)


# --- passes over a table --------------------------------------------------------------------------


class Drawn:
    """A partition that changes after some passes."""

    def __init__(self, number: int, after: int, change: Any = None) -> None:
        self.number, self.after, self.change, self.passes = number, after, change, 0

    @property
    def name(self) -> str:
        """The block in words."""
        return f"partition {self.number}"

    def compute(self, **given: object) -> pd.DataFrame:
        """Return its rows."""
        self.passes += 1
        frame = table()[self.number :: 4]
        changed = self.change or (lambda one: one.assign(age=one["age"] + 1e-9))
        return changed(frame) if self.passes > self.after else frame


def partitions(after: int, change: Any = None) -> Table:
    """Return a table of which the third partition changes."""
    from bdpvi.datasets.openers import Partition

    each = [Drawn(at, after if at == 2 else 10**9, change) for at in range(4)]
    return Table(
        "", tuple(table().columns), tuple(Partition(at, one) for at, one in enumerate(each))
    )


@pytest.mark.parametrize("call", [private, synthesize])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_partition_that_changes_between_passes_is_refused_by_name(
    call: Any, workers: int
) -> None:
    ledger = Ledger()
    with ThreadPoolExecutor(workers or 1) as pool:
        executor = pool if workers else None
        with pytest.raises(ValueError, match="earlier pass") as refused:
            call(partitions(1), ledger, executor=executor)
    words = str(refused.value)
    assert words.startswith("partition 2: it has other rows than in an earlier pass")
    assert "ε = " in words
    assert "is spent on this table" in words
    assert ledger.entries()


@pytest.mark.parametrize("call", [private, synthesize])
def test_partitions_that_are_drawn_anew_are_refused_before_a_charge(call: Any) -> None:
    dask = pytest.importorskip("dask.dataframe")

    def part(at: int) -> pd.DataFrame:
        return table().sample(frac=0.9)

    drawn = dask.from_map(part, range(3), meta=table().iloc[:0])
    ledger = Ledger()
    with pytest.raises(ValueError, match="partition 0: it has other rows"):
        call(drawn, ledger)
    assert not ledger.entries()
    fixed = dask.from_map(lambda at: table().sample(500, random_state=at), range(3))
    call(fixed, ledger)  # the remedy
    assert ledger.entries()


def test_a_source_that_can_be_read_once_is_refused_before_a_charge() -> None:
    """An iterator yields its rows in the first pass alone."""

    class Once:
        name = "rows of an iterator"

        def __init__(self) -> None:
            self.rows = iter([table()])

        def read(self) -> Iterator[pd.DataFrame]:
            yield from self.rows

    for call in (private, synthesize):
        ledger = Ledger()
        with pytest.raises(ValueError, match="rows of an iterator"):
            call(Table("", tuple(table().columns), (Once(),)), ledger)
        assert not ledger.entries()


def test_another_order_of_a_partitions_rows_is_the_same_table() -> None:
    assert synthesize(partitions(1, lambda frame: frame.iloc[::-1])).rows > 0


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.iloc[:-1],
        lambda one: pd.concat([one, one.iloc[:1]]),
        lambda one: one.assign(sex=one["sex"].replace({"F": "f"})),
        lambda one: one.assign(sex=one["sex"].to_numpy()[::-1]),
        lambda one: one.assign(age=-one["age"]),
        lambda one: one.rename(columns={"age": "sex", "sex": "age"}),
        lambda one: one.assign(age=[*one["age"][1::-1], *one["age"][2:]]),
        lambda one: one.assign(sex=[*one["sex"][:-1], "f"]),
        lambda one: one.assign(sex=[*one["sex"][:-1], None]),
        lambda one: one.assign(age=[*one["age"][:-1], np.nan]),
    ],
)
def test_a_digest_shows_each_change(change: Any) -> None:
    assert digests.of_rows(table()) != digests.of_rows(change(table()))


@pytest.mark.parametrize("kind", ["object", "string[python]", "string[pyarrow]", "category"])
def test_cells_that_differ_have_other_digests(kind: Any) -> None:
    long = ["x" * count + end for count in (7, 8, 63, 64, 199) for end in "xy"]
    cells: list[Any] = ["", "a", "b", "a\0", "aa", *long, None, "\u00e9", "nan", "None"]
    made = [pd.DataFrame({"a": pd.Series([cell, "k"], dtype=kind)}) for cell in cells]
    found = [digests.of_rows(one) for one in made]
    assert len(set(found)) == len(cells)
    longer = pd.DataFrame({"a": pd.Series(cells, dtype=kind)})
    assert digests.of_rows(longer[2:]) == digests.of_rows(longer[2:].copy())
    assert digests.of_rows(longer[2:]) != digests.of_rows(longer[1:])


@pytest.mark.parametrize("kind", ["float64", "float32", "int64", "int8", "Int64", "datetime64[ns]"])
def test_numbers_that_differ_have_other_digests(kind: Any) -> None:
    cells = [0, 1, 2, 3, 64, 127, 0.5 if kind.startswith("float") else 4]
    blank = [] if kind in ("int64", "int8") else [None]
    made = [pd.DataFrame({"a": pd.Series([cell, 5]).astype(kind)}) for cell in [*cells, *blank]]
    assert len({digests.of_rows(one) for one in made}) == len(made)


@pytest.mark.parametrize("parquet", [False, True])
def test_a_file_that_changes_during_a_pass_is_refused(parquet: bool, tmp_path: Path) -> None:
    path = tmp_path / ("a.parquet" if parquet else "a.csv")
    write = pd.DataFrame.to_parquet if parquet else pd.DataFrame.to_csv
    write(table(), path, index=False)
    blocks = Table.of(str(path), size=BYTES)

    def changed(part: pd.DataFrame) -> int:
        os.utime(path, ns=(1, 1))
        return len(part)

    with pytest.raises(ValueError, match="the file has changed since the table was opened"):
        [*blocks.parts[0].read(), changed(table()), *blocks.parts[0].read()]


def test_a_csv_file_with_its_old_time_and_size_is_still_compared(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    table().to_csv(path, index=False)
    blocks, was = Table.of(str(path)), os.stat(path)
    assert blocks.records().sum(len) == ROWS
    path.write_bytes(path.read_bytes().replace(b"yes", b"Yes"))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    with pytest.raises(ValueError, match="it has other rows than in an earlier pass"):
        blocks.records().sum(len)
