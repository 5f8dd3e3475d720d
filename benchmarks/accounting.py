"""Time the accountant's building blocks: Rényi divergences of many pairs at many orders.

Run ``python benchmarks/accounting.py``; it prints its command, the machine and the versions, then
one row a measurement: the median of several runs after one to warm up.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from printed import command
from torch import Tensor
from torch.distributions import Independent, MultivariateNormal, Normal

from bdpvi.bayesian import cost_of
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs, summarise
from bdpvi.bayesian.accounting.panel import Panel


def pairs_like_neighbours(records: int, dimensions: int) -> GaussianPairs:
    """Return summaries as of leave-one-out neighbours: r near 1, small differences of means."""
    generator = torch.Generator().manual_seed(0)
    r = (0.01 * torch.randn(records, dimensions, generator=generator, dtype=torch.float64)).exp()
    b2 = 1e-3 * torch.rand(records, dimensions, generator=generator, dtype=torch.float64)
    return GaussianPairs(r, b2)


def neighbours(records: int, dimensions: int) -> tuple[MultivariateNormal, MultivariateNormal]:
    """Return one full-covariance posterior and its leave-one-out neighbours."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(records, dimensions, generator=generator, dtype=torch.float64)
    precision = 100 * torch.eye(dimensions, dtype=torch.float64)
    changed = precision + root.unsqueeze(-1) * root.unsqueeze(-2)
    many = MultivariateNormal(0.01 * root, precision_matrix=changed, validate_args=False)
    return MultivariateNormal(torch.zeros(dimensions).double(), precision_matrix=precision), many


def diagonal(records: int, dimensions: int) -> Independent[Normal]:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, records, dimensions, generator=generator, dtype=torch.float64)
    return Independent(Normal(0.01 * noise[0], (0.01 * noise[1]).exp()), 1)


def diagonal_costs(p: Independent[Normal], q: Independent[Normal], orders: Tensor) -> Tensor:
    return summarise(p, q).log_moment(orders)


def epsilon_of(pairs: GaussianPairs) -> float:
    event = GuideDraws((Panel("remove", torch.arange(len(pairs)), pairs),))
    found = cost_of([event], 1e-5).bayesian
    assert found is not None
    return found.epsilon


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def divergences(scale: float, repeats: int) -> list[tuple[str, float, str]]:
    """Return (what, seconds, target) for the divergences; ``scale`` shrinks the record counts."""
    adult, million = max(1, int(39_073 * scale)), max(1, int(1_000_000 * scale))
    full = pairs_like_neighbours(adult, 14)
    hundred = torch.logspace(-1, 3, 100, dtype=torch.float64)
    sixty_four = torch.logspace(-1, 3, 64, dtype=torch.float64)
    rows = [
        (
            f"{adult:,} full-covariance summaries, d = 14, 100 orders",
            median_seconds(lambda: full.log_moment(hundred), repeats),
            "1 s",
        )
    ]
    one, many = neighbours(adult, 14)
    rows.append(
        (
            f"{adult:,} eigenproblems that make such summaries",
            median_seconds(lambda: summarise(many, one), repeats),
            "",
        )
    )
    for d in (1, 2, 4):
        cost = partial(diagonal_costs, diagonal(million, d), diagonal(1, d), sixty_four)
        rows.append(
            (
                f"{million:,} diagonal pairs, d = {d}, 64 orders, summary included",
                median_seconds(cost, repeats),
                "3 s",
            )
        )
    rows.append(
        (
            f"{adult:,} records' ε of one draw by CKS, d = 14",
            median_seconds(lambda: epsilon_of(full), repeats),
            "",
        )
    )
    rows.append(
        (
            f"{adult:,} certified hockey-stick bounds, d = 14",
            median_seconds(lambda: full.hockey_stick(0.5), 1),
            "",
        )
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the record counts")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    print("command:", command())
    print("machine:", platform.platform(), platform.machine(), f"{arguments.threads} threads")
    print("versions: python", platform.python_version(), "torch", torch.__version__)
    print()
    print(f"{'seconds':>8}  {'target':>6}  what")
    for what, seconds, target in divergences(arguments.scale, arguments.repeats):
        print(f"{seconds:8.2f}  {target:>6}  {what}")


if __name__ == "__main__":
    main()
