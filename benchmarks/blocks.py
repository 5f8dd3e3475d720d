"""Time and memory of a release of a table in blocks, by the number of workers.

The route is `private` or `synthesize`, with bounds and levels estimated privately; or `train`, with
public ones: logistic regression by `fit_private` and `DPVI`, in as many steps as --steps says. The
table has 16 numbers, or as many as --numbers says, 4 categories of five names each, and a yes/no
target. It is written once, as Parquet files with row groups of 131,072 rows. Memory is the peak of
each process. The releases must be equal to the bit.
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
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import torch
from printed import command

import bdpvi
from bdpvi.datasets.blocks import Blocks
from bdpvi.noise.keys import Key
from bdpvi.releases.transaction import Transaction

GROUP = 1 << 17
FILE = 8 * GROUP
NUMBERS, CATEGORIES = 16, 4
ROUTES = ("private", "synthesize", "train")


def rows_of(number: int, rows: int, numbers: int = NUMBERS) -> pd.DataFrame:
    """Return the rows of one file, a function of its number."""
    generator = np.random.default_rng(number)
    x = generator.normal(size=(rows, numbers))
    levels = generator.integers(0, 5, size=(rows, CATEGORIES))
    logit = x[:, :4] @ [1.0, -0.5, 0.25, 0.1] + 0.3 * levels[:, 0] - 1
    frame = pd.DataFrame(x * 12 + 50, columns=[f"x{j}" for j in range(numbers)])
    for j in range(CATEGORIES):
        frame[f"c{j}"] = np.array(list("abcde"))[levels[:, j]]
    frame["sick"] = np.where(generator.random(rows) < 1 / (1 + np.exp(-logit)), "yes", "no")
    return frame


def written(folder: Path, rows: int, numbers: int) -> None:
    """Write the table unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, rows, FILE)):
        file = folder / f"{number:04d}.parquet"
        if not file.exists():
            made = rows_of(number, min(FILE, rows - start), numbers)
            made.to_parquet(file, index=False, row_group_size=GROUP)


def mebibytes() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def peak(_: int) -> float:
    """Return the peak memory of a worker, late enough that every worker is asked."""
    import_module("bdpvi.tables.private")
    time.sleep(1)
    return mebibytes()


def trained(folder: Path, steps: int, pool: ProcessPoolExecutor | None) -> bytes:
    """Return the draws of a training."""
    table = Blocks.of(folder)
    columns = [name for name in table.header if name != "sick"]
    bounds: dict[str, Any] = {
        name: list("abcde") if name[0] == "c" else [0, 100] for name in columns
    }
    data = bdpvi.datasets.from_blocks(
        table,
        "sick",
        positive="yes",
        constants=bdpvi.datasets.constants_of({"source": "Made up.", **bounds}),
        executor=pool,
        progress=False,
    )
    model = bdpvi.BayesianLogisticRegression.unweighted(intercept=True)
    route = bdpvi.DPVI(rows=len(data), steps=steps)
    made = bdpvi.fit_private(model, data, epsilon=1.0, route=route, ledger=bdpvi.Ledger())
    return bytes(made.samples.numpy().tobytes())


def released(route: str, folder: Path, steps: int, pool: ProcessPoolExecutor | None) -> bytes:
    """Return a release."""
    given: dict[str, Any] = {"target": "sick", "epsilon": 1.0, "one_row_per_person": True}
    given |= {"ledger": bdpvi.Ledger(), "executor": pool, "progress": False}
    with (
        mock.patch.object(Key, "fresh", staticmethod(lambda: Key.of_seed(0))),
        mock.patch.object(Transaction, "_key", lambda work, _, one: work.secret.child(one.purpose)),
    ):
        if route == "train":
            return trained(folder, steps, pool)
        if route == "synthesize":
            table = bdpvi.synthesize(folder, **given)
            return b"".join(one.tobytes() for one in table.counts.joint.values())
        made = bdpvi.private(folder, positive="yes", **given)
        return bytes(made.samples.numpy().tobytes())


def runs(
    route: str, folder: Path, steps: int, most: int
) -> Iterator[tuple[int, float, float, bytes]]:
    """Yield workers (0 for this process alone), seconds, MiB of the largest, and the release."""
    for workers in range(most + 1):
        pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn")) if workers else None
        if pool is not None:
            list(pool.map(peak, range(2 * workers)))  # they start before the clock does
        start = time.perf_counter()
        made = released(route, folder, steps, pool)
        seconds = time.perf_counter() - start
        memory = max(pool.map(peak, range(2 * workers))) if pool is not None else mebibytes()
        yield workers, seconds, memory, made
        if pool is not None:
            pool.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for the table, which is written once")
    parser.add_argument("--rows", type=float, default=2e6)
    parser.add_argument("--workers", type=int, default=2, help="the most workers")
    parser.add_argument("--route", choices=ROUTES, default=ROUTES[0])
    parser.add_argument("--steps", type=int, default=1000, help="of a training")
    parser.add_argument(
        "--numbers", type=int, default=NUMBERS, help="columns of numbers, at least 4"
    )
    given = parser.parse_args()
    asked = (given.folder, int(given.rows), given.numbers)
    writer = get_context("spawn").Process(target=written, args=asked)
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
    for workers, seconds, worker, found in runs(
        given.route, given.folder, given.steps, given.workers
    ):
        first = found if first is None else first
        print(
            f"| {workers} | {seconds:.1f} | {mebibytes():.0f} | {worker:.0f} | "
            f"{'yes' if found == first else 'NO'} |",
            flush=True,
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
