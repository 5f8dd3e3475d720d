"""Processor time of ``fit_private`` on the nine examples, beside as many steps of Pyro's SVI.

    python benchmarks/example_times.py [--steps 1000] [--only NAME ...]

Both take batches of 256 of the same records, on one thread, after a first run of each. Ratios are
those of a whole call: trial runs of model and guide before the charge, records that are counted
and draws are part of ``fit_private``, and so is the recording of a step.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from importlib import import_module

import torch
from guide_coverage import NAMES
from printed import command
from pyro.infer import ELBO

import bdpvi

RECORDS, BATCH = 10_000, 256


def seconds(call: Callable[[], object]) -> float:
    begun = time.process_time()
    call()
    return time.process_time() - begun


def main() -> None:
    """Print a line for each example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES, metavar="NAME")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    from _example import DELTA, non_private

    print("command:", command())
    print("| example | SVI, s | fit_private / SVI |\n| --- | --- | --- |")
    for name in given.only:
        example = import_module(name)

        def private(loss: ELBO, steps: int) -> float:
            (model, guide), data = example.fresh(), example.simulated(RECORDS, 0)  # noqa: B023
            route = bdpvi.DPVI(
                rows=RECORDS, batch=BATCH, steps=steps, loss=loss, draws=100, progress=False
            )
            return seconds(
                lambda: bdpvi.fit_private(
                    model, data, epsilon=1.0, delta=DELTA, guide=guide, route=route
                )
            )

        def plain(steps: int) -> float:
            data = example.simulated(RECORDS, 0)  # noqa: B023
            return seconds(lambda: non_private(example, data, steps=steps))  # noqa: B023

        plain(10), private(example.LOSS, 10)
        svi = plain(given.steps)
        ratio = private(example.LOSS, given.steps) / svi
        print(f"| {name} | {svi:.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
