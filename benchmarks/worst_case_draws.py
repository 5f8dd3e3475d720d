"""What draws of a posterior cost in the worst case, behind a gate, and what they keep.

    python benchmarks/worst_case_draws.py [--names simulated5_1e4 … adult …] [--data FILE …]
        [--draws 1 10] [--seeds 3] [--delta 1e-5]
    python benchmarks/worst_case_draws.py --plan | --curve adult

One row a table, as ``certified.py`` has them: N, d, the directions kept and M after coordinates
released with noise; the total ε, coordinates included, from which on the draws are released with a
chance of .95, for each number of draws; the worst case of one draw that holds for all tables,
without a gate; its certified Bayesian ε; and the share of the gain in log score over the base rate
that one draw keeps (mean of 100, held-out rows) of that of logistic regression, as there. Each
number is the mean over the seeds of the coordinates' noise. ε is found from the records, so it is
an experiment: an owner fixes it beforehand.

``--curve`` prints ε and log score of one draw at public temperatures. ``--plan`` prints the ε that
a table of N rows and d columns needs, by public numbers alone.
"""

from __future__ import annotations

import argparse
import math
from functools import cache
from statistics import fmean

import torch
from certified import NAMES, Table, fitted, for_all_tables, levels, price, table
from printed import command

from bdpvi import PosteriorDraws
from bdpvi.bayesian.gated import route as gated
from bdpvi.bayesian.gated.coordinates import Coordinates, norm
from bdpvi.bayesian.gated.gate import curvature
from bdpvi.bayesian.mode.objective import Peak
from bdpvi.datasets.records import Held
from bdpvi.noise.keys import Key
from bdpvi.privacy.gaussian_dp import gaussian_epsilon

CHANCE = 0.95


def settings(
    data: Table, draws: int, noise: float, delta: float, temperature: float = 1.0
) -> gated.GatedPlan:
    """Return the settings of a release with noise 1/μ."""
    route = PosteriorDraws(rows=len(data[1]), draws=draws, temperature=temperature)
    return route._settings(data[0].shape[1], noise, gated.SPARE * delta)


def released(data: Table, noise: float, seed: int) -> tuple[float, Coordinates, Peak]:
    """Return M, the coordinates and the mode, for noise 1/μ of the whole."""
    parts = Held((data[0].double(), data[1].double()))
    multiplier = settings(data, 1, noise, 1e-5).multiplier
    made = Coordinates.released(parts, data[0].shape[1], multiplier, Key.of_seed(seed))
    peak = gated._mode(parts, made, len(data[1]), 0.0)
    found = curvature(peak.root, norm(made.columns), made.longest)
    return max(found, 4.0), made, peak


def needed(data: Table, draws: int, seed: int, delta: float, temperature: float = 1.0) -> float:
    """Return the noise 1/μ at which the draws are released with the chance."""

    @cache
    def chance(noise: float) -> float:
        found, made, _ = released(data, noise, seed)
        return settings(data, draws, noise, delta, temperature).gate(made).chance(found)

    low = 0.25
    while chance(2 * low) >= CHANCE:
        low *= 2
    high = 2 * low
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if chance(middle) >= CHANCE else (low, middle)
    return low


def score(data: Table, peak: Peak, made: Coordinates, temperature: float = 1.0) -> float:
    """Return the mean log score of a draw on the held-out rows."""
    sign = 2 * data[3].double() - 1
    noise = torch.randn(100, len(peak.point), generator=torch.Generator().manual_seed(1)).double()
    w = made.weights(peak.point + temperature**0.5 * noise @ peak.root.T)
    x = torch.cat([data[2].double().clamp(-2, 2), torch.ones(len(sign), 1).double()], 1)
    return float(torch.nn.functional.logsigmoid(sign * (w @ x.T)).mean())


def gain(data: Table, peak: Peak, made: Coordinates) -> float:
    """Return the share of the gain in log score that a draw keeps."""
    base, best = levels(data)
    return (score(data, peak, made) - base) / (best - base)


def row(name: str, draws: list[int], seeds: int, delta: float) -> None:
    """Print the row of one table."""
    data = table(name)
    n, d = data[0].shape
    before, bayesian = for_all_tables(d + 1, delta), price(fitted(data), 1, delta)
    totals, kept, curved, shares = [], [], [], []
    for k in draws:
        each = []
        for seed in range(seeds):
            noise = needed(data, k, seed, delta)
            each.append(gaussian_epsilon(noise**-2, delta * (1 - gated.SPARE)))
            if k == draws[0]:
                found, made, peak = released(data, noise, seed)
                kept.append(made.columns)
                curved.append(found)
                shares.append(gain(data, peak, made))
        totals.append(f"{fmean(each):.3g}")
    shown = name.rsplit("/", 1)[-1].removesuffix(".csv")
    print(
        f"| {shown} | {n} | {d} | {fmean(kept):.3g} | {fmean(curved):.3g} | {' | '.join(totals)} | "
        f"{before:.3g} | {bayesian:.3g} | {fmean(shares):.3f} |",
        flush=True,
    )


def curve(name: str, delta: float) -> None:
    """Print ε and log score by temperature."""
    data = table(name)
    print("| temperature | ε of one draw | log score |\n| --- | --- | --- |")
    for tau in (1.0, 3.0, 10.0, 30.0, 100.0):
        noise = needed(data, 1, 0, delta, tau)
        _, made, peak = released(data, noise, 0)
        epsilon = gaussian_epsilon(noise**-2, delta * (1 - gated.SPARE))
        print(f"| {tau:g} | {epsilon:.3g} | {score(data, peak, made, tau):.4f} |", flush=True)


def plan() -> None:
    """Print the ε by N and d."""
    columns = (3, 5, 10, 20, 50)
    print(f"| N | {' | '.join(f'd = {d}' for d in columns)} |")
    print("| --- " * (1 + len(columns)) + "|")
    for rows in (1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6):
        found = [PosteriorDraws(rows=rows).needed(d) for d in columns]
        print(f"| {rows:,.0f} | {' | '.join(f'{one:.2g}' for one in found)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", nargs="*", default=list(NAMES))
    parser.add_argument("--data", nargs="*", default=[])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--draws", nargs="+", type=int, default=[1, 10])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--curve", metavar="NAME")
    given = parser.parse_args()
    print(command())
    if given.plan:
        plan()
        return
    if given.curve:
        curve(given.curve, given.delta)
        return
    names = " | ".join(f"ε of {k}" for k in given.draws)
    print(f"| table | N | d | kept | M | {names} | without a gate | Bayesian | share |")
    print("| --- " * (8 + len(given.draws)) + "|")
    for name in [*given.names, *given.data]:
        row(name, given.draws, given.seeds, given.delta)


if __name__ == "__main__":
    main()
