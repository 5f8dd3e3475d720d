"""A model, a certified posterior and synthetic rows from a table of millions of rows, by Dask.

    python examples/larger/dask_cluster.py FOLDER [--rows 5e6] [--workers 2] [--address ADDRESS]

Without an address it starts a cluster on this machine. The workers write the table, as Parquet
files in FOLDER/claims, and read it for every sum.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
from distributed import Client, LocalCluster

import bdpvi
from bdpvi import datasets, guides
from bdpvi.tables import Machine, Public, Unit

GROUP, GROUPS = 1 << 17, 8
"""Rows of a row group, and row groups of a file."""
DELTA = 1e-7
PUBLIC = datasets.constants_of(
    {
        "source": "The claims handbook.",
        "age": [18, 100],
        "visits": [0, 40],
        "kind": ["a", "b", "c", "d"],
    }
)
SCHEMA = datasets.Schema(
    {
        "age": datasets.ColumnType(low=18, high=100),
        "visits": datasets.ColumnType(kind="integer", low=0, high=40),
        "kind": datasets.ColumnType(levels=("a", "b", "c", "d")),
        "sick": datasets.ColumnType(levels=("no", "yes")),
    },
    source="The claims handbook.",
)


def write(folder: Path, number: int, rows: int) -> None:
    """Write file ``number`` of the table."""
    random = np.random.default_rng(number)
    age, visits = random.uniform(18, 100, rows), random.poisson(6, rows)
    kind = random.choice(list("abcd"), rows)
    logit = (age - 60) / 15 + (visits - 6) / 8 + 0.5 * (kind == "d")
    sick = np.where(random.random(rows) < 1 / (1 + np.exp(-logit)), "yes", "no")
    frame = pd.DataFrame({"age": age, "visits": visits, "kind": kind, "sick": sick})
    frame.to_parquet(folder / f"{number:05}.parquet", index=False, row_group_size=GROUP)


@contextmanager
def cluster(address: str, workers: int) -> Iterator[Client]:
    """Give a client of a scheduler, of a new one on this machine without an address."""
    if address:
        with Client(address) as client:
            yield client
        return
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as local,
        Client(local) as client,
    ):
        yield client


def main() -> None:
    """Write the table, then release from it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="new folder for the table and what is released")
    parser.add_argument("--rows", type=float, default=5e6)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--address", default="", help="of a Dask scheduler that is there already")
    given = parser.parse_args()
    table, rows = given.folder / "claims", int(given.rows)
    table.mkdir(parents=True)
    with cluster(given.address, given.workers) as client:
        executor, began = client.get_executor(), time.perf_counter()

        def tell(what: object) -> None:
            print(f"{time.perf_counter() - began:6.1f} s  {what}", flush=True)

        sizes = [min(GROUPS * GROUP, rows - at) for at in range(0, rows, GROUPS * GROUP)]
        list(executor.map(write, [table] * len(sizes), range(len(sizes)), sizes))
        tell(f"{rows:,} rows in {len(sizes)} files")
        whole = {"executor": executor, "progress": False}
        ledger = bdpvi.Ledger.at(given.folder / "ledger.jsonl", budget=bdpvi.Budget(5.0, DELTA))
        release = bdpvi.private(
            table, target="sick", positive="yes", epsilon=1.0, delta=DELTA, unit=Unit(),
            public=Public(constants=PUBLIC), ledger=ledger, out=given.folder / "model",
            machine=Machine(**whole),
        )  # fmt: skip
        tell(f"model: {release.receipt}")
        shared = bdpvi.synthesize(
            table, SCHEMA, "sick", epsilon=1.0, delta=DELTA, unit=Unit(), ledger=ledger,
            machine=Machine(**whole),
        )  # fmt: skip
        shared.sample(1000).to_csv(given.folder / "synthetic.csv", index=False)
        tell(f"synthetic rows: {shared.receipt}")
        data = datasets.from_blocks(table, "sick", positive="yes", constants=PUBLIC, **whole)
        model = bdpvi.BayesianLogisticRegression()
        fit = bdpvi.fit(model, guides.Laplace(model), data, ledger=ledger, progress=False)
        drawn = bdpvi.release(fit, draws=10, temperature=9.0, delta=DELTA)
        tell(f"ten draws: {drawn.receipt}")


if __name__ == "__main__":
    main()
