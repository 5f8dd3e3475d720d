"""A table written anew has the same rows, and each person's in one block."""

from __future__ import annotations

import os
import stat
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from test_cli import run

from bdpvi.datasets import Schema, buckets, partition
from bdpvi.datasets.table import Table
from bdpvi.datasets.types import ColumnType
from bdpvi.datasets.units import persons_of

CELLS = st.sampled_from(["ada", "bob", "7", "007", " 7", "7.0", "", "?", "é\N{PILE OF POO}", "1e3"])


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    """Return all rows."""
    parts = (part for block in table.parts for part in block.read())
    return [row for part in parts for row in part.itertuples(index=False, name=None)]


def parts_of(table: Table, by: str, type: ColumnType | None = None) -> list[set[str]]:
    """Return the persons of every part."""
    parts = (part for block in table.parts for part in block.read())
    return [set(persons_of(part[by], type)) - {""} for part in parts]


def ordered(table: Table, type: ColumnType | None) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of each person in their order."""
    rows = rows_of(table)
    result: dict[str, list[tuple[Any, ...]]] = {}
    for name, row in zip(
        persons_of(pd.Series([who for who, _ in rows], dtype=object), type), rows, strict=True
    ):
        if name:
            result.setdefault(name, []).append(row)
    return result


def apart(sets: list[set[str]]) -> bool:
    """Return whether no person is in two of them."""
    return max(Counter(one for some in sets for one in some).values(), default=1) == 1


@settings(max_examples=30, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    rows=st.lists(st.tuples(CELLS, st.integers(0, 9)), max_size=80),
    most=st.integers(20, 40),
    size=st.sampled_from([60, 10_000]),
    kind=st.sampled_from(["", "integer"]),
)
def test_the_rows_are_those_of_the_table_and_each_persons_lie_together(
    rows: list[tuple[str, int]], most: int, size: int, kind: str
) -> None:
    """Files of a few rows, blocks of a few bytes, two bits a time: all paths are taken."""
    type = ColumnType(kind=kind) if kind else None
    types = None if type is None else Schema({"who": type}, "Form 7")
    persons = persons_of(pd.Series([who for who, _ in rows], dtype=object), type)
    largest = max(Counter(person for person in persons if person).values(), default=0)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr("bdpvi.datasets.objects.ROWS", most)
        patch.setattr(buckets, "_BITS", 2)
        patch.setattr(buckets, "_JOINED", 300)
        folder = Path(name)
        text = "".join(f'"{who}",{number}\n' for who, number in rows)
        (folder / "a.csv").write_text(f"who,n\n{text}", encoding="utf-8")
        table = Table.of(folder / "a.csv", size=size)
        given: dict[str, Any] = {"by": "who", "out": folder / "out", "progress": False}
        if largest > most:
            with pytest.raises(ValueError, match=f"by='who': a person has more than {most} rows"):
                partition(table, types=types, **given)
            assert not (folder / "out").exists()
            return
        made = partition(table, types=types, **given)
        assert Counter(rows_of(made)) == Counter(rows_of(table))
        assert apart(parts_of(made, "who", type))
        for file in (folder / "out").iterdir():
            found = parquet.ParquetFile(file).metadata
            assert found.num_row_groups <= 1
            assert found.num_rows <= most
        before, after = (ordered(each, type) for each in (table, made))
        assert before == after  # the first rows of a person stay the first
        assert sorted(one.name for one in folder.iterdir()) == ["a.csv", "out"]


def frame(rows: int = 4_000) -> pd.DataFrame:
    """Return a table with columns of many types."""
    random = np.random.default_rng(0)
    made = pd.DataFrame(
        {
            "patient": random.integers(0, 900, rows) + 2**60,  # no floats are as exact
            "age": random.normal(50, 12, rows),
            "sex": pd.Categorical(random.choice(["F", "M"], rows)),
            "seen": pd.Timestamp("2024-01-01", tz="UTC") + pd.to_timedelta(np.arange(rows), "h"),
            "note": random.choice(np.array(["a", "b", None]), rows),
            "doses": pd.array(random.integers(0, 9, rows), dtype="Int16"),
        }
    )
    made.loc[::7, "doses"] = pd.NA
    return made


def test_columns_of_parquet_keep_their_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bdpvi.datasets.objects.ROWS", 1_000)
    whole = frame()
    (tmp_path / "in").mkdir()
    for number, start in enumerate(range(0, len(whole), 1_500)):
        part = whole[start : start + 1_500].copy()
        if number == 1:
            part["sex"] = part["sex"].cat.add_categories(["X"])
        part.to_parquet(tmp_path / "in" / f"{number}.parquet", index=False, row_group_size=700)
    made = partition(tmp_path / "in", by="patient", out=tmp_path / "new" / "out", progress=False)
    assert 4 <= len(made.parts) <= 8
    assert apart(parts_of(made, "patient"))
    found = pd.concat([pd.read_parquet(one) for one in sorted((tmp_path / "new/out").iterdir())])
    found["sex"] = found["sex"].astype(whole["sex"].dtype)  # another order of the levels
    pd.testing.assert_frame_equal(found.sort_values("seen", ignore_index=True), whole)
    if os.name == "posix":
        assert stat.S_IMODE((tmp_path / "new" / "out").stat().st_mode) == 0o700


def test_numbers_beside_blanks_name_exact_persons(tmp_path: Path) -> None:
    """As a float 2**60 + 1 is 2**60: in a block with a blank it would be another person."""
    who = pa.array([2**60 + 1, None, 2**60, 2**60 + 1], type=pa.int64())
    parquet.write_table(pa.table({"who": who}), tmp_path / "a.parquet", row_group_size=2)
    seen: list[str] = []
    work = buckets._Work("who", None, pa.schema([("who", pa.int64())]))
    for batch in work._with_hashes(Table.of(tmp_path / "a.parquet").parts):
        seen += batch.column(1).to_pylist()
    assert seen[0] == seen[3]
    assert len(set(seen)) == 3


def test_rows_without_a_person_are_spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bdpvi.datasets.objects.ROWS", 100)
    pd.DataFrame({"who": [""] * 1_000, "n": range(1_000)}).to_csv(tmp_path / "a.csv", index=False)
    made = partition(tmp_path / "a.csv", by="who", out=tmp_path / "out", progress=False)
    assert {int(n) for _, n in rows_of(made)} == set(range(1_000))


def test_what_cannot_be_partitioned_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("who,n\nada,1\nbob\nada,2\n")
    (tmp_path / "in").mkdir()
    pd.DataFrame({"who": ["a"]}).to_parquet(tmp_path / "in" / "a.parquet")
    pd.DataFrame({"who": [pd.Timestamp(0)]}).to_parquet(tmp_path / "in" / "b.parquet")
    for table, by, said in (
        ("a.csv", "patient", "by='patient' must be a column of the table"),
        ("in", "who", r"b\.parquet has other types than .*a\.parquet"),
    ):
        with pytest.raises(ValueError, match=said):
            partition(tmp_path / table, by=by, out=tmp_path / "out", progress=False)
        assert not (tmp_path / "out").exists()
    with pytest.warns(UserWarning, match="1 line left out"):
        partition(tmp_path / "a.csv", by="who", out=tmp_path / "out", progress=False)
    with pytest.raises(ValueError, match="exists already"):
        partition(tmp_path / "a.csv", by="who", out=tmp_path / "out", progress=False)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text("who;n\n007;1\n7;2\n8;3,5\n")
    declared = tmp_path / "declared.json"
    declared.write_text(
        '{"source": "Form 7", "columns": {"who": {"kind": "integer"}}, "file": {"separator": ";"}}'
    )
    given = ("--by", "who", "--out", tmp_path / "out", "--table", declared)
    assert run("partition", tmp_path / "a.csv", *given, "--quiet") == 0
    assert "1 file, each with all rows of its persons" in capsys.readouterr().out
    assert Counter(rows_of(Table.of(tmp_path / "out"))) == Counter(
        [("007", "1"), ("7", "2"), ("8", "3,5")]
    )
    assert run("partition", tmp_path / "no.csv", *given) == 2
    assert "is neither a file nor a folder" in capsys.readouterr().err


def test_memory_does_not_grow_with_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 16 MB of rows less than a twentieth is sorted into files at once."""
    monkeypatch.setattr("bdpvi.datasets.objects.ROWS", 5_000)
    monkeypatch.setattr(buckets, "_JOINED", 1 << 18)
    rows = 200_000
    made = {f"x{n}": np.arange(rows, dtype=float) for n in range(9)}
    table = pa.table({"who": np.arange(rows) // 3, **made})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=5_000)
    held, joined = [], buckets._rebatch

    def watched(batches: Any) -> Any:
        for batch in joined(batches):
            held.append(batch.nbytes)
            yield batch

    monkeypatch.setattr(buckets, "_rebatch", watched)
    partition(tmp_path / "a.parquet", by="who", out=tmp_path / "out", progress=False)
    files = [parquet.ParquetFile(one).metadata for one in (tmp_path / "out").iterdir()]
    assert sum(file.num_rows for file in files) == rows
    assert max(held) < table.nbytes / 20
    assert max(file.num_rows for file in files) <= 5_000
    assert rows / len(files) > 2_500
