"""Tables in blocks: every row is read once, and sums are those of the whole table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import reduce
from itertools import chain
from multiprocessing import get_context
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bdpvi.datasets import exact
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.records import Spread, depth, in_pairs
from bdpvi.datasets.stored import Stored
from bdpvi.datasets.table import Table
from bdpvi.noise.keys import Key

TEXT = 'age,name\n1,"a, b"\n2,c\n\n3,"open\n4,d,e\n5,f\n6,' + "long" * 30 + "\n7,é\n8,last"


def rows_of(blocks: Table) -> pd.DataFrame:
    """Return all rows, block by block."""
    frames: list[pd.DataFrame] = [*chain.from_iterable(part.read() for part in blocks.parts)]
    return pd.concat(frames, ignore_index=True)


@pytest.mark.parametrize("charset", ["utf-8", "latin-1", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
@pytest.mark.filterwarnings("ignore::bdpvi._ground.types.PrivacyUtilityWarning")
def test_each_line_is_in_one_block(tmp_path: Path, charset: str, end: str, size: int) -> None:
    path, file = tmp_path / "a.csv", FileFormat(charset=charset)
    path.write_bytes(TEXT.replace("\n", end).encode(charset))
    whole = Table.of(path, file=FileFormat(charset=charset)).frame(text=True)
    found = rows_of(Table.of(path, file=file, size=size))
    assert found.to_numpy().tolist() == whole.to_numpy().tolist()
    assert list(found) == list(whole)


def test_values_across_lines_keep_a_file_together(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('age,name\n1,"a\nb"\n2,c\n')
    blocks = Table.of(path, file=FileFormat(multiline=True), size=4)
    assert len(blocks.parts) == 1
    assert rows_of(blocks)["name"].tolist() == ["a b", "c"]


def test_row_groups_are_blocks_and_columns_are_by_name(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": range(10), "sex": list("FM") * 5})
    frame[:6].to_parquet(tmp_path / "a.parquet", row_group_size=4, index=False)
    frame.loc[6:, ["sex", "age"]].to_parquet(tmp_path / "b.parquet", index=False)
    (tmp_path / "_SUCCESS").touch()
    for path in (tmp_path, f"{tmp_path}/*.parquet", f"file://{tmp_path}/*.parquet"):
        blocks = Table.of(path)
        assert len(blocks.parts) == 3
        assert rows_of(blocks).astype({"sex": object}).equals(frame.astype({"sex": object}))


def test_rows_are_numbered_and_names_are_printable_in_each_block(tmp_path: Path) -> None:
    rows = 20_000
    frame = pd.DataFrame({"a\x07": range(rows)})
    frame.to_parquet(tmp_path / "a.parquet")
    frame[:9].to_csv(tmp_path / "a.csv", index=False)
    (block,) = Table.of(tmp_path / "a.parquet").parts
    parts = list(block.read())
    assert len(parts) == 2
    assert [*chain.from_iterable(part.index for part in parts)] == [*range(rows)]
    for name in ("a.csv", "a.parquet"):
        assert Table.of(tmp_path / name).header == ("a\ufffd",)
    assert rows_of(Table.of(tmp_path / "a.csv"))["a\ufffd"].tolist() == [*map(str, range(9))]


def test_a_dask_data_frame_has_partitions() -> None:
    dataframe = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame({"age": range(10)})
    blocks, other = (Table.of(dataframe.from_pandas(frame, npartitions=3)) for _ in range(2))
    assert len(blocks.parts) == 3
    assert blocks.records().sum(total, "age") == 45
    assert blocks.fingerprint() == other.fingerprint()


def total(frame: pd.DataFrame, name: str) -> int:
    return int(frame[name].sum())


def test_files_with_other_columns_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,sex\n1,F\n")
    (tmp_path / "b.csv").write_text("age,weight\n1,60\n")
    with pytest.raises(
        ValueError, match=r"b\.csv has other columns than .*: 'weight' is not in .*a"
    ):
        Table.of(tmp_path)
    (tmp_path / "b.csv").write_text("age\n1\n")
    with pytest.raises(ValueError, match=r"b\.csv has other columns than .*: 'sex' is not in .*b"):
        Table.of(tmp_path)
    with pytest.raises(ValueError, match="neither a file nor a folder or glob"):
        Table.of(f"{tmp_path}/*.pq")


class Late(Executor):
    """An executor that completes its work in the reverse order, or loses it."""

    def __init__(self, error: Exception | None = None, after: int = 0) -> None:
        self.held: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.error, self.after = error, after

    def submit(self, f: Any, /, *given: Any, **named: Any) -> Future[Any]:
        """Hand work in."""
        future: Future[Any] = Future()
        future.result = lambda timeout=None: self._done(future)  # type: ignore[method-assign]
        self.held.append((future, lambda: f(*given, **named)))
        return future

    def _done(self, wanted: Future[Any]) -> Any:
        result = None
        for future, work in reversed(self.held):
            self.after -= 1
            if self.error is not None and self.after < 0:
                raise self.error
            value = work()
            if future is wanted:
                result = value
        return result


class Few:
    """Some numbers as a block."""

    def __init__(self, *numbers: float) -> None:
        self.numbers, self.name = numbers, f"block {numbers[0]}"

    def read(self) -> Iterator[float]:
        """Yield them."""
        yield from self.numbers


def same(number: float) -> float:
    return number


def test_sums_are_in_the_order_of_blocks_whatever_ends_first() -> None:
    numbers = np.random.default_rng(0).lognormal(sigma=3, size=128).tolist()
    blocks = [Few(*two) for two in zip(numbers[::2], numbers[1::2], strict=True)]
    here = Spread(blocks).sum(same)
    assert here == halves(numbers)
    assert here != reduce(add, numbers)
    assert Spread(blocks, executor=Late()).sum(same) == here


def halves(numbers: list[float]) -> float:
    middle = len(numbers) // 2
    return halves(numbers[:middle]) + halves(numbers[middle:]) if middle else numbers[0]


@given(st.integers(1, 200))
def test_no_number_is_in_more_additions_than_said(count: int) -> None:
    assert max(in_pairs([Added({at: 0}) for at in range(count)]).times.values()) <= depth(count)


class Added:
    """How many additions each number was in."""

    def __init__(self, times: dict[int, int]) -> None:
        self.times = times

    def __add__(self, other: Added) -> Added:
        return Added({at: n + 1 for at, n in (self.times | other.times).items()})


def test_what_goes_wrong_with_workers_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [Few(1.0), Few(2.0)]
    lost = Late(BrokenProcessPool("A process in the process pool was terminated abruptly"))
    with pytest.raises(ValueError, match=r"a worker ended while block 1\.0 was summed"):
        Spread(blocks, executor=lost).sum(same)
    lacking = Late(ModuleNotFoundError("No module named 'bdpvi'"))
    with pytest.raises(ValueError, match=r"a worker lacks a module: No module named 'bdpvi'"):
        Spread(blocks, executor=lacking).sum(same)
    with pytest.raises(ValueError, match=r"block 2\.0: (float )?division"):
        Spread(blocks).sum(lambda number: 1 / (number - 2))
    versions = iter(["1.0", "1.0", "0.9", "0.9"])
    monkeypatch.setattr("bdpvi.datasets.records.version", lambda _: next(versions))
    with pytest.raises(ValueError, match=r"a worker has bdpvi 0\.9 and this process 1\.0; install"):
        Spread(blocks, executor=Late()).sum(same)


def test_a_function_that_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age\n1\n")
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(ValueError, match="function or its arguments cannot be sent to a worker"),
    ):
        Table.of(tmp_path).records(pool).sum(lambda frame: 1)


def test_a_store_says_when_a_file_has_changed(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    path = tmp_path / "a.csv"
    path.write_text("age\n1\n")
    url = f"file://{path}"
    one = Stored.of(url)
    assert one == Stored.of(url)
    path.write_text("age\n12\n")
    assert one != Stored.of(url)
    with pytest.raises(ValueError, match="has changed"):
        one.open()


def values() -> Iterator[NDArray[np.float64]]:
    random = np.random.default_rng(0)
    for n in (0, 1, 2, 7, 1000, 5000):
        yield random.normal(50, 10, n)
        yield random.normal(size=n)
        yield random.integers(0, 5, n).astype(float)
        yield np.where(random.random(n) < 0.6, 0.0, random.normal(size=n))
        yield np.repeat([-1.0, 1.0], [n // 2, n - n // 2])


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("distance", [0.003, 0.05, 1.0, 50.0])
def test_a_median_of_blocks_is_that_of_all_numbers(distance: float, positive: bool) -> None:
    for at, numbers in enumerate(values()):
        some = np.abs(numbers) if positive else numbers
        parts, key = np.array_split(exact.keys(some), 5), Key.of_seed(at)
        rough = reduce(add, [exact.Tally.of_coarse(part) for part in parts])
        window = rough.window(distance)
        found = reduce(add, [exact.Tally.of(part, window) for part in parts])
        whole = exact.median_of(exact.Tally.of(exact.keys(some)), distance, key, positive=positive)
        assert exact.median_of(found, distance, key, positive=positive) == whole


def test_texts_that_are_not_utf_8_are_refused_in_memory_and_in_blocks(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    offsets = pa.array(["yes", "no"]).buffers()[1]
    texts = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"yesn\xff")])
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"sick": texts}), path)
    with pytest.raises(ValueError, match=r"t\.parquet is not a readable .*UTF8"):
        Table.of(path).frame()
    with pytest.raises(ValueError, match=r"t\.parquet, row group 0: .*UTF8"):
        Table.of(str(tmp_path / "*.parquet")).records(None).sum(len)
