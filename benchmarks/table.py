"""Speed and memory of reading a table: this reader, plain pandas, and the reader before it.

    OMP_NUM_THREADS=1 nice python benchmarks/table.py [--rows 2e5 2e6]

A table of an id, 9 floats, 4 whole numbers and 6 texts is written as CSV and as Parquet to a folder
that is removed at the end. Each is read by a process of its own: block by block to the declared
types, whose rows they are included (:mod:`bdpvi.datasets.identity`); by pandas, whole; and by the
reader of an earlier version, taken from the repository, which knew of no identity. Seconds are
those of the processor, without imports, whose memory is printed beside the peak.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from printed import command

BEFORE = "1385fe4f"
"""The last version before one table's reader."""
GROUP, SEED = 200_000, 0
LIMITS = {"csv": 5.0, "parquet": 0.8}
"""The least speed by that of the reader before."""
MEMORY = 300
"""The most MB of a process."""


def write(folder: Path, rows: int) -> None:
    """Write the table as CSV and as Parquet."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    random = np.random.default_rng(SEED)
    columns: dict[str, Any] = {"pid": np.arange(rows) + 10**15}
    columns |= {f"x{at}": random.normal(50, 12, rows).round(3) for at in range(9)}
    columns |= {f"k{at}": random.integers(0, 1000, rows) for at in range(4)}
    levels = np.array([f"level {at}" for at in range(8)])
    columns |= {f"c{at}": pa.array(levels[random.integers(0, 8, rows)]) for at in range(5)}
    columns["sick"] = pa.array(np.array(["no", "yes"])[random.integers(0, 2, rows)])
    table = pa.table(columns)
    csv.write_csv(table, folder / f"{rows}.csv", csv.WriteOptions(quoting_style="needed"))
    parquet.write_table(table, folder / f"{rows}.parquet", row_group_size=GROUP)


def types_of(kind: Any) -> dict[str, Any]:
    """Return the declared types of the columns."""
    levels = tuple(f"level {at}" for at in range(8))
    return {
        "pid": kind(kind="identifier"),
        **{f"x{at}": kind(kind="number") for at in range(9)},
        **{f"k{at}": kind(kind="integer") for at in range(4)},
        **{f"c{at}": kind(kind="category", levels=levels) for at in range(5)},
        "sick": kind(kind="boolean", levels=("no", "yes")),
    }


def cells_of(frame: Any, types: dict[str, Any]) -> int:
    """Read all columns of some rows but the id; return the number of rows."""
    from bdpvi.datasets.cells import read_columns

    found = read_columns(frame.drop(columns="pid"), types)
    for name, cells in found.items():
        assert len(cells.codes if name[0] in "cs" else cells.numbers) == len(frame)
    return len(frame)


def facts(frame: Any, types: dict[str, Any]) -> tuple[int, Any]:
    """Return the number of rows, and whose they are."""
    from bdpvi.datasets.identity import Identity

    return cells_of(frame, types), Identity.of(frame)


def now(path: str) -> int:
    """Read by this reader, and find whose rows they are; return their number."""
    from bdpvi.datasets.table import Table
    from bdpvi.datasets.types import ColumnType

    return int(Table.of(path).records().sum(facts, types_of(ColumnType))[0])


def plain(path: str) -> int:
    """Read by pandas."""
    import pandas as pd

    return len(pd.read_csv(path) if path.endswith("csv") else pd.read_parquet(path))


def before(path: str) -> int:
    """Read by the reader before."""
    from bdpvi.datasets.types import ColumnType

    blocks = import_module("bdpvi.datasets.blocks").Blocks.of(path)
    return int(blocks.records().sum(cells_of, types_of(ColumnType)))


READERS: dict[str, tuple[Callable[[str], int], str]] = {
    "bdpvi": (now, "bdpvi.datasets.table"),
    "pandas": (plain, "pandas"),
    "before": (before, "bdpvi.datasets.blocks"),
}
"""The readers, and what each imports."""


def measure(reader: str, path: str) -> dict[str, float]:
    """Read a table; return its rows, the seconds, and MB of imports and of the peak."""
    read, module = READERS[reader]
    for name in (module, "pyarrow.compute", "pyarrow.csv", "pyarrow.parquet"):
        import_module(name)
    if reader == "bdpvi":
        import_module("bdpvi.datasets.identity")
    import_module("pyarrow").set_cpu_count(1)
    imports, began = megabytes(), time.process_time()
    rows = read(path)
    seconds = time.process_time() - began
    return {"rows": rows, "seconds": seconds, "imports": imports, "peak": megabytes()}


def megabytes() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def measured(reader: str, path: Path, before: Path) -> dict[str, float]:
    """Do :func:`measure` in a process of its own."""
    paths = os.environ | ({"PYTHONPATH": str(before)} if reader == "before" else {})
    asked = [sys.executable, __file__, "--reader", reader, str(path)]
    return dict(json.loads(subprocess.run(asked, env=paths, check=True, stdout=-1).stdout))


def unpack(folder: Path) -> None:
    """Write the version before to a folder."""
    names, root = ("datasets", "guides"), Path(__file__).parents[1]
    archive = subprocess.run(
        ["git", "archive", BEFORE, "bdpvi", *names], cwd=root, check=True, stdout=-1
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    for name in names:
        (folder / name).rename(folder / "bdpvi" / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, nargs="+", default=[2e5, 2e6])
    parser.add_argument("--repeats", type=int, default=1, help="the fastest counts")
    parser.add_argument("--reader", nargs=2, help="for this script's own use")
    given = parser.parse_args()
    if given.reader:
        warnings.simplefilter("ignore")
        print(json.dumps(measure(*given.reader)))
        return
    print(command())
    packages = ", ".join(f"{name} {version(name)}" for name in ("pyarrow", "pandas", "numpy"))
    print(f"{platform.machine()}, Python {platform.python_version()}, {packages}")
    print(f"before: the version {BEFORE}\n")
    print("| file | rows | reader | rows a CPU second | by before | peak MB | of it imports |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    kept = True
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        unpack(folder)
        for rows in map(int, given.rows):
            writer = get_context("spawn").Process(target=write, args=(folder, rows))
            writer.start()
            writer.join()
            for kind, limit in LIMITS.items():
                path = folder / f"{rows}.{kind}"
                each = [
                    {one: measured(one, path, folder) for one in READERS}
                    for _ in range(given.repeats)
                ]
                found = {
                    one: min((run[one] for run in each), key=lambda run: run["seconds"])
                    for one in READERS
                }
                for one, run in found.items():
                    assert run["rows"] == rows
                    gain = found["before"]["seconds"] / run["seconds"]
                    print(
                        f"| {kind} | {rows} | {one} | {rows / run['seconds']:,.0f} | {gain:.2f} | "
                        f"{run['peak']:.0f} | {run['imports']:.0f} |",
                        flush=True,
                    )
                gain = found["before"]["seconds"] / found["bdpvi"]["seconds"]
                kept &= gain >= limit and found["bdpvi"]["peak"] <= MEMORY
    print(
        f"\nCSV at least {LIMITS['csv']} times and Parquet at least {LIMITS['parquet']} times as "
        f"fast as before, each within {MEMORY} MB: {'kept' if kept else 'NOT KEPT'}"
    )


if __name__ == "__main__":
    main()
