"""Time of a sum with secret noise on a lattice compared with torch.normal, which is not secret.

    python benchmarks/noise.py [--largest 100000000]

Processor time on one thread, the minimum of several rounds in which both take turns; float64.
"""

from __future__ import annotations

import argparse
import platform
import resource
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

import torch
from printed import command

from bdpvi.noise.secure import gaussian_sum, sum_rounding

ROUNDS = 5
MOST = 5.0
"""How many times torch.normal's time a sum may take."""


def processor_time(run: Callable[[], object], times: int) -> float:
    """Return the seconds of one call."""
    start = time.process_time()
    for _ in range(times):
        run()
    return (time.process_time() - start) / times


def measured(weights: int) -> tuple[float, float]:
    """Return the seconds of a sum and of torch.normal, for so many weights."""
    total = torch.zeros(weights)

    def plain() -> object:
        return torch.normal(0.0, 1.0, (weights,), dtype=torch.float64)

    times = max(1, 1_000_000 // weights)
    rounds = ROUNDS if weights <= 10_000_000 else 1
    gaussian_sum(total[:1000], 1.0)  # makes the table
    own, other = [], []
    for _ in range(rounds):
        own.append(processor_time(lambda: gaussian_sum(total, 1.0), times))
        other.append(processor_time(plain, times))
    return min(own), min(other)


def main() -> None:
    """Print the ratios; exit with 1 if one is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--largest", type=int, default=100_000_000)
    largest = parser.parse_args().largest
    torch.set_num_threads(1)
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "cryptography"))
    print(command())
    print(
        f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}, {packages}"
    )
    print(f"{'weights':>12} {'sum (ms)':>10} {'torch.normal':>13} {'ratio':>6} {'θ of a sum':>11}")
    late = False
    for weights in (10**k for k in range(5, 9)):
        if weights > largest:
            break
        own, other = measured(weights)
        late |= own > MOST * other
        row = f"{weights:12,} {1e3 * own:10.1f} {1e3 * other:13.1f} {own / other:6.2f}"
        print(f"{row} {sum_rounding(weights):11.1e}", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"memory at most {peak:.1f} GiB")
    sys.exit(late)


if __name__ == "__main__":
    main()
