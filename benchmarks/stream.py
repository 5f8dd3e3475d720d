"""Fit, neighbours and ε of a table on disk: seconds, rows a second and memory.

    OMP_NUM_THREADS=1 nice python benchmarks/stream.py [--rows 20000000] [--guide full-rank]

Writes a Parquet file of rows × features in float32 to a folder that is removed at the end (or kept
with ``--file``), and runs :func:`bdpvi.fit` on the :class:`bdpvi.Table`.
"""

from __future__ import annotations

import argparse
import platform
import resource
import tempfile
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from printed import command

import bdpvi
from bdpvi import BayesianLogisticRegression, Optimum, Table
from bdpvi._ground import progress
from bdpvi.bayesian import Remove
from bdpvi.guides import FullRank, MeanField
from bdpvi.privacy import Charge

GUIDES = {"full-rank": FullRank, "mean-field": MeanField}
CHUNK = 1 << 18


def write(path: Path, rows: int, features: int) -> None:
    """Write records of a logistic regression with weights from -1 to 1."""
    random = np.random.default_rng(0)
    weights = np.linspace(-1, 1, features)
    names = [f"x{j}" for j in range(features)]
    schema = pa.schema([*((name, pa.float32()) for name in names), ("y", pa.int8())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, CHUNK):
            x = random.standard_normal((min(CHUNK, rows - start), features), dtype=np.float32)
            y = random.random(len(x)) < 1 / (1 + np.exp(-(x @ weights)))
            columns = [*x.T, y.astype(np.int8)]
            writer.write_table(pa.table([pa.array(c) for c in columns], schema=schema))


class Clock:
    """A tracker that adds up the seconds of every kind of pass."""

    def __init__(self, quiet: bool) -> None:
        self.seconds: dict[str, float] = {}
        self.passes: dict[str, int] = {}
        self.track = progress.silent if quiet else progress.bar

    def __call__(self, items: Sequence[Any], description: str) -> Iterable[Any]:
        """Iterate over the items and note the time."""
        kind = description.split()[0]
        began = time.perf_counter()
        yield from self.track(items, description)
        spent = time.perf_counter() - began
        self.seconds[kind] = self.seconds.get(kind, 0.0) + spent
        self.passes[kind] = self.passes.get(kind, 0) + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--guide", choices=GUIDES, default="mean-field")
    parser.add_argument("--noise-scale", type=float, default=0.001, help="0: the guide's own")
    parser.add_argument("--clip", type=float, default=1.0, help="inf for none")
    parser.add_argument("--delta", type=float, default=1e-8)
    parser.add_argument("--temperature", type=float, default=1e6)
    parser.add_argument("--precision", type=float, default=1e-5)
    parser.add_argument("--worst-case", action="store_true", help="leave out no record")
    parser.add_argument("--file", type=Path, help="table to use, written if it is not there")
    parser.add_argument("--checkpoint", type=Path, help="folder to go on from after a kill")
    parser.add_argument("--quiet", action="store_true")
    arguments = parser.parse_args()
    print(command())
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "pyarrow", "numpy"))
    threads = torch.get_num_threads()
    pa.set_cpu_count(threads)
    print(
        f"{platform.machine()}, {threads} threads, Python {platform.python_version()}, {packages}"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.file or Path(folder) / "table.parquet"
        if not path.exists():
            write(path, arguments.rows, arguments.features)
        print(f"{path.stat().st_size / 1e9:.2f} GB of Parquet")
        measure(path, arguments)


def measure(path: Path, arguments: argparse.Namespace) -> None:
    """Fit, account for one draw, and print what it took."""
    model = BayesianLogisticRegression.unweighted(
        clip=arguments.clip if arguments.clip < np.inf else None
    )
    guide = GUIDES[arguments.guide](model, noise_scale=arguments.noise_scale or None)
    print(f"{model}, {arguments.guide} guide, noise scale {guide.noise_scale}")
    clock = Clock(arguments.quiet)
    progress.bar, began = clock, time.perf_counter()
    kinds = [Remove(0)] if arguments.worst_case else []
    route = Optimum(*kinds, precision=arguments.precision, checkpoint=arguments.checkpoint)
    fitted = bdpvi.fit(model, guide, Table.of(path).numbers("y"), neighbours=route)
    fitting = time.perf_counter() - began
    total = bdpvi.cost(fitted, planned=Charge(1, arguments.temperature), delta=arguments.delta)
    seconds = time.perf_counter() - began
    print(f"N = {fitted.records:,}, d = {len(fitted.feature_names)}")
    print(f"  fit and derivatives {clock.seconds['pass']:.0f} s in {clock.passes['pass']} passes")
    if "neighbours" in clock.seconds:
        one = clock.seconds["neighbours"]
        print(f"  neighbours {one:.0f} s, {fitted.records / one:,.0f} rows/s")
    print(f"  accounting and exposure {seconds - fitting:.1f} s")
    print(f"  in all {seconds:.0f} s, {fitted.records / seconds:,.0f} rows/s")
    print(f"  gradient norm {float(fitted.convergence.gradient_norm[-1]):.1e}")
    (panel,) = fitted.panels
    print(f"  panel: {panel.records:,} records, {len(panel.ids):,} pairs")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"  peak memory {peak / 2**20:.2f} GiB")
    print(f"  {total}")
    print(f"  {total.exposure}")


if __name__ == "__main__":
    main()
