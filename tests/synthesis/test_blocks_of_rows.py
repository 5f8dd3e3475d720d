"""``bdpvi.synthesize`` of a table in blocks: the release of the same table in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
from in_blocks import ROWS, SECRET, Dying, Seen, in_files
from test_cli import run

from bdpvi import Ledger
from bdpvi.datasets import ColumnType, Schema, partition
from bdpvi.datasets.table import Table
from bdpvi.releases.transaction import Transaction
from bdpvi.synthesis import Counts, Synthetic

DECLARED = Schema({"dose": ColumnType(low=0, high=3), "ward": ColumnType(kind="code")}, "By law.")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # for the owner


def patients() -> pd.DataFrame:
    """Return a table with blanks, texts among numbers, codes, and a value far off."""
    generator = np.random.default_rng(3)
    age = generator.normal(50, 12, ROWS)
    frame = pd.DataFrame({"age": age, "dose": generator.normal(2, 1, ROWS).round(2)})
    frame["sex"] = generator.choice(["F", "M", ""], ROWS)
    frame["ward"] = generator.choice(["01", "1", "007"], ROWS)
    frame["mixed"] = generator.choice(["7", "7.0", "x", "1e3"], ROWS)
    frame["sick"] = np.where(generator.random(ROWS) < 1 / (1 + np.exp(5 - age / 10)), "yes", "no")
    frame.loc[1, "age"], frame.loc[2, "age"] = np.nan, 1e9
    return frame


@pytest.fixture
def folder(tmp_path: Path, known_keys: None) -> Path:
    """Return a folder with the table as a file, and as a folder of files; keys are known."""
    return in_files(patients(), tmp_path)


def made(table: Any, **more: Any) -> Synthetic:
    given: dict[str, Any] = {"epsilon": 2.0, "target": "sick", "one_row_per_person": True}
    given["ledger"] = Ledger()
    settings = Counts(categorical=("mixed",), also=(("sex", "ward", "sick"),))
    if not isinstance(table, pd.DataFrame):
        given["progress"] = False
    short = {"sex": ColumnType(levels=("F", "M")), "sick": ColumnType(levels=("no", "yes"))}
    schema = Schema(
        {**DECLARED.columns, **short, "ward": ColumnType(levels=("01", "1"))}, "By law."
    )
    return flat.synthesize(table, **{"schema": schema, "settings": settings, **given, **more})


OPTIONS: dict[str, dict[str, Any]] = {
    "declared": {},
    "estimated": {"schema": None, "settings": None},
    "typed": {"schema": DECLARED, "settings": Counts(categorical=("mixed",))},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_table_in_blocks_has_the_release_of_the_table(name: str, folder: Path) -> None:
    whole = made(patients(), **OPTIONS[name]).to_bytes()
    for table in (
        folder / "parts",
        folder / "all.csv",
        Table.of(folder / "all.csv", size=20_000),
        Table.of(folder / "parts" / "*.parquet"),
    ):
        assert made(table, **OPTIONS[name]).to_bytes() == whole


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing_and_see_no_key(folder: Path, workers: int) -> None:
    here = made(folder / "parts", schema=None, settings=None).to_bytes()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        found = made(folder / "parts", schema=None, settings=None, executor=Seen(pool))
    assert found.to_bytes() == here


def test_a_block_that_is_lost_is_named_and_the_same_call_goes_on(folder: Path) -> None:
    """In each of the six passes: before the charge, then after it; it is charged once."""
    options: dict[str, Any] = {"schema": None, "settings": None}
    whole = made(folder / "parts", ledger=Ledger(), **options).to_bytes()
    all_of_them = Dying(math.inf)
    made(folder / "parts", executor=all_of_them, **options)
    blocks = len(Table.of(folder / "parts").parts)
    assert all_of_them.done == 6 * blocks
    for passes in range(6):
        ledger = Ledger()
        work = Transaction(ledger, SECRET, alone=True)
        lost = Dying(passes * blocks + 2)
        with pytest.raises(ValueError, match=r"parts/\d\.parquet.*: disk lost"):
            made(folder / "parts", work=work, executor=lost, **options)
        assert len(ledger.entries()) == (passes > 0)
        assert made(folder / "parts", work=work, **options).to_bytes() == whole
        assert len(ledger.entries()) == 1


def refused(**more: Any) -> Callable[[Path], Any]:
    return lambda path: made(path / "parts", ledger=Ledger(path / "ledger.jsonl"), **more)


REFUSED: dict[str, Callable[[Path], Any]] = {
    "the rows of .* may be of the same persons": refused(one_row_per_person=False),
    "target='ill' must be a column": refused(target="ill"),
    "schema: its column 'pay' must be": refused(
        schema=Schema({"pay": ColumnType(low=0, high=1)}, "By law.")
    ),
    "executor: a table in memory": lambda _: made(patients(), executor=Dying(1)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_wrong_is_refused_before_any_charge(message: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=message):
        REFUSED[message](folder)
    assert not (folder / "ledger.jsonl").exists()


def lost(*_: object) -> None:
    raise ValueError("parts/1.parquet: disk lost")


def visits(folder: Path, persons: int = 700) -> tuple[pd.DataFrame, Path]:
    """Return a table with several rows of each person, and a folder in which they lie together."""
    frame = patients().drop(columns="mixed")
    frame.insert(
        0, "who", [f"p{one}" for one in np.random.default_rng(1).integers(persons, size=ROWS)]
    )
    frame.loc[7, "who"] = ""
    frame.to_csv(folder / "visits.csv", index=False)
    partition(folder / "visits.csv", by="who", out=folder / "visits", progress=False)
    return frame, folder / "visits"


@pytest.mark.parametrize("rows", [2, 30])
def test_persons_of_a_table_in_blocks_have_the_release_of_their_first_rows(
    rows: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bdpvi.datasets.objects.ROWS", 900)
    frame, parts = visits(folder)
    assert len(Table.of(parts).parts) > 3
    named = frame[frame["who"] != ""]
    first = named.groupby("who").head(rows)
    given: dict[str, Any] = {
        "schema": None, "settings": Counts(unit="who", rows_per_unit=rows), "delta": 1e-7,
        "one_row_per_person": False,
    }  # fmt: skip
    books = Ledger(), Ledger()
    with pytest.warns(UserWarning, match="for the owner only") as said:
        found = made(parts, ledger=books[0], **given)
    lost = [str(one.message) for one in said if "with more than" in str(one.message)]
    assert [one.split()[4] for one in lost] == [str(len(frame) - len(first))]
    whole = made(first.astype(str), ledger=books[1], **given)
    assert found.to_bytes() == whole.to_bytes()
    assert "'who'" in str(found.receipt)
    one, two = (book.book() for book in books)
    assert (one.unit, one.rows) == (two.unit, two.rows) == ("who", rows)
    assert [entry.events for entry in one.charges] == [entry.events for entry in two.charges]


def test_a_person_in_two_blocks_is_refused_uncharged(folder: Path) -> None:
    _, parts = visits(folder)
    pd.read_parquet(next(parts.glob("*.parquet")))[:1].to_parquet(parts / "more.parquet")
    ledger = Ledger()
    given: dict[str, Any] = {"settings": Counts(unit="who"), "one_row_per_person": False}
    with pytest.raises(ValueError, match=r"several blocks; `bdpvi partition TABLE --by who "):
        made(parts, ledger=ledger, schema=None, **given)
    assert not ledger.entries()


def command(folder: Path, name: str, *more: object) -> list[object]:
    return [
        "synthesize", "--data", folder / "parts", "--target", "sick", "--epsilon", 2, "--drop",
        "mixed", "--one-row-per-person", "--quiet", "--out", folder / name, *more,
    ]  # fmt: skip


def test_what_needs_rows_in_memory_is_left_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = command(folder, "out")
    assert run(*given, "--groups", "sex") == 2
    assert "leave --groups out" in capsys.readouterr().err
    assert run(*[one for one in given if one != "--one-row-per-person"], "--unit", "sex") == 2
    assert "`bdpvi partition TABLE --by sex --out FOLDER`" in capsys.readouterr().err
    assert not (folder / "parts.ledger.jsonl").exists()
    assert run(*given) == 0
