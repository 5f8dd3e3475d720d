"""Check that an ε chosen to be reliable holds, with panels drawn from known populations.

    python benchmarks/only_reliable.py [--panels 40] [--records 2000] [--mean 0.005]

The squared distance between the means of neighbours has a known distribution, the covariances are
equal, so every record's own δ at an ε is known in closed form and its mean over the population by
quadrature. It should be within 1e-5 at the ε that the accountant gives, in each panel.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from printed import command
from scipy import stats

from bdpvi.bayesian import Accounting, cost_of
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.privacy.gaussian import equal_covariance

DELTA, RARE = 1e-5, 100.0
SMALLEST = Accounting(failure_probability=1e-30)
RELIABLE = Accounting(failure_probability=1e-30, only_reliable=True)
Quantile = Callable[[NDArray[np.float64]], NDArray[np.float64]]
POPULATIONS = {
    "Beta(1, 3)": stats.beta(1, 3),
    "χ² with 5 degrees of freedom": stats.chi2(5),
    "exponential": stats.expon(),
    "χ² with 1 degree of freedom": stats.chi2(1),
    "log-normal, σ = 0.5": stats.lognorm(0.5),
    "log-normal, σ = 1": stats.lognorm(1.0),
    "Weibull, shape 0.5": stats.weibull_min(0.5),
    "Pareto, shape 3": stats.lomax(3),
}


def quadrature() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return probabilities of exceeding the nodes, and the weights: fine far out in the tail."""
    edges = np.concatenate([np.linspace(1, 1e-3, 20_001), np.logspace(-3, -14, 20_001)[1:]])
    return np.sqrt(edges[1:] * edges[:-1]), edges[:-1] - edges[1:]


def rarely_large(upper: Quantile, records: int) -> Quantile:
    """Return upper quantiles where one value in ``records`` is :data:`RARE` instead."""
    rare = 1 / records
    return lambda u: np.where(u < rare, RARE, upper(np.clip((u - rare) / (1 - rare), 0, 1)))


def row(name: str, upper: Quantile, mean: float, panels: int, records: int) -> str:
    """Return a line of the table for one population."""
    nodes, weights = quadrature()
    unit = float((upper(nodes) * weights).sum()) / mean
    values = torch.from_numpy(upper(nodes) / unit)
    found, usual = [], 0
    for seed in range(panels):
        drawn = upper(1 - np.random.default_rng(seed).random(records)) / unit
        distances = torch.from_numpy(drawn)[:, None]
        pairs = GaussianPairs(torch.ones_like(distances), distances)
        event = GuideDraws((Panel("remove", torch.arange(records), pairs),))
        for rule in (SMALLEST, RELIABLE):
            try:
                bound = cost_of([event], DELTA, rule).bayesian
            except ValueError:
                continue
            assert bound is not None
            if rule is SMALLEST:
                usual += bound.reliable
                continue
            delta = float(equal_covariance(values, bound.epsilon) @ torch.from_numpy(weights))
            found.append((delta, bound.epsilon))
    if not found:
        return f"| {name} | {usual} | 0 | — | — |"
    deltas, prices = zip(*found, strict=True)
    return (
        f"| {name} | {usual} | {len(found)} | {min(prices):.3g} to {max(prices):.3g} | "
        f"{max(deltas):.1e} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--panels", type=int, default=40)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--mean", type=float, default=0.005)
    options = parser.parse_args()
    print("$", command())
    print(f"{options.panels} panels of {options.records}; mean squared distance {options.mean:g}\n")
    print("| squared distance | smallest ε reliable | some ε reliable | that ε | largest true δ |")
    print("| --- " * 5 + "|")
    populations: dict[str, Quantile] = {name: one.isf for name, one in POPULATIONS.items()}
    for name, one in (("uniform", stats.uniform(0, 2)), ("exponential", stats.expon())):
        upper = rarely_large(one.isf, options.records)
        populations[f"{name}, but 1 in {options.records} is {RARE:g} means"] = upper
    for name, upper in populations.items():
        print(row(name, upper, options.mean, options.panels, options.records), flush=True)


if __name__ == "__main__":
    main()
