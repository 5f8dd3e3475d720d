"""Time and memory of a release of a table in blocks, by the number of rows and of workers.

The route is `private`, `ordinal` (`private` of a trained model for one of the categories) or
`synthesize`, with bounds and levels estimated privately; or, with public ones, `fit`: a Laplace
fit, its certificate, and ten draws; or `train`: logistic regression by `fit_private` and `DPVI`, in
as many steps as --steps says. The table has 16 numbers, or as many as --numbers says, 4 categories
of five names each, and a yes/no target. It is written once for each size, as Parquet files with row
groups of 131,072 rows. CPU is the processor time of the caller. Memory is the peak of each process.
The releases must be equal to the bit. A pass reads the whole table once. With several sizes the
last lines are powers of the rows, by least squares of the logarithms of the CPU seconds of this
process alone, and what they say of 10⁹ rows.
"""

from __future__ import annotations

import argparse
import platform
import resource
import secrets
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
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
from bdpvi import datasets
from bdpvi.datasets.dataset import BlockData
from bdpvi.datasets.openers import Block
from bdpvi.datasets.table import Table
from bdpvi.noise.keys import Key
from bdpvi.releases.transaction import Transaction
from bdpvi.tables import Machine, Public, Unit

GROUP = 1 << 17
FILE = 8 * GROUP
NUMBERS, CATEGORIES = 16, 4
ROUTES = ("private", "ordinal", "synthesize", "fit", "train")
LIMITS = {"private": (300.0, 1536), "synthesize": (600.0, 1536), "fit": (360.0, 1536)}
"""Seconds that a route may take with two workers at ``FULL`` rows, and MiB of a process."""
FULL, SPEED_UP = 2e7, 1.7
"""Rows of the limits, and the least gain of two workers over one."""
LEVELS = list("abcde")
KEY = Key(bytes(range(32)))
_FEW = 20_000


def rows_of(number: int, rows: int, numbers: int = NUMBERS) -> pd.DataFrame:
    """Return the rows of one file, a function of its number."""
    generator = np.random.default_rng(number)
    x = generator.normal(size=(rows, numbers))
    levels = generator.integers(0, 5, size=(rows, CATEGORIES))
    logit = x[:, :4] @ [1.0, -0.5, 0.25, 0.1] + 0.3 * levels[:, 0] - 1
    frame = pd.DataFrame(x * 12 + 50, columns=[f"x{j}" for j in range(numbers)])
    for j in range(CATEGORIES):
        frame[f"c{j}"] = np.array(LEVELS)[levels[:, j]]
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


def encoded(folder: Path, pool: ProcessPoolExecutor | None) -> BlockData:
    """Return the table by public preprocessing."""
    names = [one for one in Table.of(folder).header if one != "sick"]
    bounds = {name: [0, 100] if name.startswith("x") else LEVELS for name in names}
    public = datasets.constants_of({"source": "The benchmark.", **bounds})
    given: dict[str, Any] = {"executor": pool, "progress": False}
    return datasets.from_blocks(folder, "sick", positive="yes", constants=public, **given)


def trained(folder: Path, steps: int, pool: ProcessPoolExecutor | None) -> bytes:
    """Return the draws of a training."""
    data = encoded(folder, pool)
    model = bdpvi.BayesianLogisticRegression.unweighted(intercept=True)
    route = bdpvi.DPVI(rows=len(data), steps=steps)
    made = bdpvi.fit_private(model, data, epsilon=1.0, route=route, ledger=bdpvi.Ledger())
    return bytes(made.samples.numpy().tobytes())


def fitted(folder: Path, pool: ProcessPoolExecutor | None) -> bytes:
    """Return ten draws of a certified Laplace fit."""
    data = encoded(folder, pool)
    model = bdpvi.BayesianLogisticRegression()
    fit = bdpvi.fit(model, bdpvi.guides.Laplace(model), data, progress=False)
    drawn = bdpvi.release(fit, draws=10, temperature=9.0, delta=1e-6)
    return bytes(drawn.samples.numpy().tobytes())


def released(route: str, folder: Path, steps: int, pool: ProcessPoolExecutor | None) -> bytes:
    """Return a release."""
    given: dict[str, Any] = {"target": "sick", "epsilon": 1.0, "ledger": bdpvi.Ledger()}
    with (
        mock.patch.object(Key, "fresh", staticmethod(lambda: KEY)),
        mock.patch.object(secrets, "token_hex", lambda size: "0f" * size),
        mock.patch.object(Transaction, "_key", lambda _, __, one: KEY.child(one.purpose)),
    ):
        if route == "fit":
            return fitted(folder, pool)
        if route == "train":
            return trained(folder, steps, pool)
        if route == "synthesize":
            table = bdpvi.synthesize(
                folder, **given, unit=Unit(), machine=Machine(executor=pool, progress=False)
            )
            return b"".join(one.tobytes() for one in table.counts.joint.values())
        given["positive"] = "yes"
        if route == "ordinal":
            model = bdpvi.BayesianOrdinalRegression(classes=len(LEVELS))
            public = Public(classes=LEVELS)
            given |= {"target": "c0", "positive": None, "model": model, "public": public}
        machine = Machine(executor=pool, progress=False)
        made = bdpvi.private(folder, unit=Unit(), machine=machine, **given)
        return bytes(made.samples.numpy().tobytes())


@dataclass(frozen=True)
class Run:
    """One release.

    Attributes:
        workers: their number, 0 for this process alone.
        seconds: by the clock.
        cpu: processor seconds of this process.
        mib: peak memory of the largest process.
        passes: over the table, counted in this process alone.
        made: the release.
    """

    workers: int
    seconds: float
    cpu: float
    mib: float
    passes: float
    made: bytes


@contextmanager
def reads() -> Iterator[list[str]]:
    """Note the blocks that are read in this process."""
    seen: list[str] = []
    usual = Block.read

    def noted(block: Block) -> Iterator[pd.DataFrame]:
        seen.append(block.name)
        return usual(block)

    with mock.patch.object(Block, "read", noted):
        yield seen


def run(route: str, folder: Path, steps: int, workers: int) -> Run:
    """Make a release by so many workers."""
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn")) if workers else None
    if pool is not None:
        list(pool.map(peak, range(2 * workers)))  # they start before the clock does
    start, cpu = time.perf_counter(), time.process_time()
    with reads() as seen:
        made = released(route, folder, steps, pool)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    mib = mebibytes()
    if pool is not None:
        mib = max(mib, *pool.map(peak, range(2 * workers)))
        pool.shutdown()
    return Run(workers, seconds, cpu, mib, len(seen) / len(Table.of(folder).parts), made)


def table(route: str, folder: Path, rows: int, steps: int, most: int) -> list[Run]:
    """Print and return the releases of a table by each number of workers."""
    size = sum(one.stat().st_size for one in folder.iterdir())
    print(f"\n{rows:g} rows, {len(Table.of(folder).parts)} blocks, {size / 2**20:.0f} MiB\n")
    print("| workers | seconds | CPU, caller | MiB, largest process | equal to the bit |")
    print("| --- " * 5 + "|")
    made: list[Run] = []
    for workers in range(most + 1):
        made.append(run(route, folder, steps, workers))
        one = made[-1]
        print(
            f"| {workers} | {one.seconds:.1f} | {one.cpu:.1f} | {one.mib:.0f} | "
            f"{'yes' if one.made == made[0].made else 'NO'} |",
            flush=True,
        )
    print(f"\n{made[0].passes:.0f} passes, {made[0].passes * size / 2**30:.1f} GiB read")
    return made


def limits(route: str, rows: int, made: list[Run]) -> None:
    """Print the limits, those of time in proportion to the rows, and whether they are kept."""
    if route not in LIMITS or len(made) < 3:
        return
    one, two, (most, most_mib) = made[1], made[2], LIMITS[route]
    most *= rows / FULL
    mib, gain = max(one.mib, two.mib), one.seconds / two.seconds
    for what, found, limit, kept in (
        ("seconds with two workers", two.seconds, f"at most {most:.0f}", two.seconds <= most),
        ("MiB of a process", mib, f"at most {most_mib}", mib <= most_mib),
        ("times as fast as one worker", gain, f"at least {SPEED_UP}", gain >= SPEED_UP),
    ):
        print(f"{what}: {found:.2f}, {limit}: {'kept' if kept else 'NOT KEPT'}")


def power(route: str, cpu: dict[int, float]) -> None:
    """Print the power of the rows in the processor time, and what it says of 10⁹ rows."""
    x, y = (np.log(np.array([*one], dtype=float)) for one in (cpu.keys(), cpu.values()))
    slope, at = np.polyfit(x, y, 1)
    hours = float(np.exp(at + slope * np.log(1e9))) / 3600
    print(f"\n{route}: CPU seconds grow as rows^{slope:.2f}; 10⁹ rows: {hours:.1f} CPU hours")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for the tables, which are written once")
    parser.add_argument("--rows", type=float, nargs="+", default=[2e6])
    parser.add_argument("--workers", type=int, default=2, help="the most workers")
    parser.add_argument("--route", choices=ROUTES, default="private")
    parser.add_argument(
        "--numbers", type=int, default=NUMBERS, help="columns of numbers, at least 4"
    )
    parser.add_argument("--steps", type=int, default=1000, help="of the route train")
    given = parser.parse_args()
    print(command())
    print(f"{platform.platform()}, {platform.processor() or platform.machine()}")
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"pyarrow {version('pyarrow')}, pandas {version('pandas')}"
    )
    cpu: dict[int, float] = {}
    for rows in (_FEW, *map(int, given.rows)):
        asked = (given.folder / f"{rows}x{given.numbers}", rows, given.numbers)
        writer = get_context("spawn").Process(target=written, args=asked)
        writer.start()  # in a process of its own, whose memory does not count
        writer.join()
        if rows == _FEW:
            released(
                given.route, asked[0], given.steps, None
            )  # what is done once a process does not count
            continue
        made = table(given.route, asked[0], rows, given.steps, given.workers)
        limits(given.route, rows, made)
        cpu[rows] = made[0].cpu
    if len(cpu) > 1:
        power(given.route, cpu)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
