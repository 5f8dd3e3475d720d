"""Time and memory of `bdpvi.private` for a table in blocks, by the number of workers.

The table has 20 columns: 16 numbers, 4 categories of five names each, and a yes/no target. It is
written once, as Parquet files with row groups of 131,072 rows. Memory is the peak of each process.
The releases must be equal to the bit.
"""

from __future__ import annotations

import argparse
import platform
import resource
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import torch
from printed import command

import bdpvi
from bdpvi.datasets.blocks import Blocks
from bdpvi.noise.keys import Key

GROUP = 1 << 17
FILE = 8 * GROUP
NUMBERS, CATEGORIES = 16, 4


def rows_of(number: int, rows: int) -> pd.DataFrame:
    """Return the rows of one file, a function of its number."""
    generator = np.random.default_rng(number)
    x = generator.normal(size=(rows, NUMBERS))
    levels = generator.integers(0, 5, size=(rows, CATEGORIES))
    logit = x[:, :4] @ [1.0, -0.5, 0.25, 0.1] + 0.3 * levels[:, 0] - 1
    frame = pd.DataFrame(x * 12 + 50, columns=[f"x{j}" for j in range(NUMBERS)])
    for j in range(CATEGORIES):
        frame[f"c{j}"] = np.array(list("abcde"))[levels[:, j]]
    frame["sick"] = np.where(generator.random(rows) < 1 / (1 + np.exp(-logit)), "yes", "no")
    return frame


def written(folder: Path, rows: int) -> None:
    """Write the table unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, rows, FILE)):
        file = folder / f"{number:04d}.parquet"
        if not file.exists():
            made = rows_of(number, min(FILE, rows - start))
            made.to_parquet(file, index=False, row_group_size=GROUP)


def mebibytes() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def peak(_: int) -> float:
    """Return the peak memory of a worker, late enough that every worker is asked."""
    import_module("bdpvi.tables.private")
    time.sleep(1)
    return mebibytes()


def runs(folder: Path, most: int) -> Iterator[tuple[int, float, float, torch.Tensor]]:
    """Yield workers (0 for this process alone), seconds, MiB of the largest, and the release."""
    for workers in range(most + 1):
        pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn")) if workers else None
        if pool is not None:
            list(pool.map(peak, range(2 * workers)))  # they start before the clock does
        start = time.perf_counter()
        with mock.patch.object(Key, "fresh", staticmethod(lambda: Key.of_seed(0))):
            made = bdpvi.private(
                folder, target="sick", positive="yes", epsilon=1.0, one_row_per_person=True,
                ledger=bdpvi.Ledger(), executor=pool, progress=False,
            )  # fmt: skip
        seconds = time.perf_counter() - start
        memory = max(pool.map(peak, range(2 * workers))) if pool is not None else mebibytes()
        yield workers, seconds, memory, made.samples
        if pool is not None:
            pool.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for the table, which is written once")
    parser.add_argument("--rows", type=float, default=2e6)
    parser.add_argument("--workers", type=int, default=2, help="the most workers")
    given = parser.parse_args()
    writer = get_context("spawn").Process(target=written, args=(given.folder, int(given.rows)))
    writer.start()  # in a process of its own, whose memory does not count
    writer.join()
    print(command())
    print(f"{platform.platform()}, {platform.processor() or platform.machine()}")
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"pyarrow {version('pyarrow')}, pandas {version('pandas')}"
    )
    print(f"{given.rows:g} rows, {len(Blocks.of(given.folder).parts)} blocks\n")
    print("| workers | seconds | MiB, caller | MiB, largest worker | equal to the bit |")
    print("| --- " * 5 + "|")
    first = None
    for workers, seconds, worker, found in runs(given.folder, given.workers):
        first = found if first is None else first
        print(
            f"| {workers} | {seconds:.1f} | {mebibytes():.0f} | {worker:.0f} | "
            f"{'yes' if torch.equal(found, first) else 'NO'} |",
            flush=True,
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
