"""Time of a sum with secret noise on a lattice compared with torch.normal, which is not secret.

    python benchmarks/noise.py [--largest 100000000] [--device cuda]

Processor time on one thread, on a device wall time; the minimum of several rounds in which both
take turns; float64.
"""

from __future__ import annotations

import argparse
import platform
import resource
import sys
from collections.abc import Callable
from importlib.metadata import version

import torch
from clock import seconds
from printed import command

from bdpvi.noise.secure import gaussian_sum, sum_rounding

ROUNDS = 5
MOST = 5.0
"""How many times torch.normal's time a sum may take."""


def taken(run: Callable[[], object], times: int, device: str) -> float:
    """Return the seconds of one call."""
    start = seconds(device)
    for _ in range(times):
        run()
    return (seconds(device) - start) / times


def measured(weights: int, device: str) -> tuple[float, float]:
    """Return the seconds of a sum and of torch.normal, for so many weights."""
    total = torch.zeros(weights, device=device)

    def plain() -> object:
        return torch.normal(0.0, 1.0, (weights,), dtype=torch.float64, device=device)

    times = max(1, 1_000_000 // weights)
    rounds = ROUNDS if weights <= 10_000_000 else 1
    gaussian_sum(total[:1000], 1.0)  # makes the table
    own, other = [], []
    for _ in range(rounds):
        own.append(taken(lambda: gaussian_sum(total, 1.0), times, device))
        other.append(taken(plain, times, device))
    return min(own), min(other)


def main() -> None:
    """Print the ratios; exit with 1 if one is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--largest", type=int, default=100_000_000)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "cryptography"))
    print(command())
    print(
        f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}, {packages}"
    )
    print(f"{'weights':>12} {'sum (ms)':>10} {'torch.normal':>13} {'ratio':>6} {'θ of a sum':>11}")
    late = False
    for weights in (10**k for k in range(5, 9)):
        if weights > given.largest:
            break
        own, other = measured(weights, given.device)
        late |= own > MOST * other
        row = f"{weights:12,} {1e3 * own:10.1f} {1e3 * other:13.1f} {own / other:6.2f}"
        print(f"{row} {sum_rounding(weights):11.1e}", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"memory at most {peak:.1f} GiB")
    sys.exit(late)


if __name__ == "__main__":
    main()
