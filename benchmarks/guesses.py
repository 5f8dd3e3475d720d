"""How often an attacker who knows all else guesses right who is in the table: certified, attacked.

    python benchmarks/guesses.py [--names fair adult simulated5_1e5 …] [--draws 1 10]
    python benchmarks/guesses.py --small 800

One row a table and number of draws from ``guides.Laplace``: guesses that are right of 100, by the
certified (ε, δ) alone, as certified (``bdpvi.bayesian.membership``), as a likelihood-ratio attack
on the draws reaches them (with its standard error), and for any conceivable record; and members
found at 1 % and 0.1 % of outsiders wrongly accused, certified and by the attack, which has one
threshold for all records. ``--small`` fits that many tables of 200 records, some correlated, some
with heavy tails, and attacks 300 fresh records added to each: how many certified averages are below
the fresh records' own, and the largest ratio of the two.
"""

from __future__ import annotations

import argparse
import math
from unittest.mock import patch

import numpy as np
import torch
from certified import fitted, table
from printed import command
from torch import Tensor

import bdpvi
from bdpvi import Dataset, guides
from bdpvi.bayesian.accounting import membership
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.mode.route import Mode
from bdpvi.bayesian.neighbours.route import Add
from bdpvi.privacy import Charge
from bdpvi.privacy.membership import RATES

NAMES = ("fair", "adult", "simulated5_1e4", "simulated5_1e5")
_SAMPLES, _RECORDS = 4_000_000, 5_000
"""Likelihood ratios in each world; most records that are attacked."""


def ratios(pairs: GaussianPairs, draws: int, added: bool, samples: int) -> tuple[Tensor, Tensor]:
    """Return log likelihood ratios of releases with each record and without, (records, samples)."""
    some = torch.arange(0, len(pairs.r), max(1, len(pairs.r) // _RECORDS))
    each, generator = max(1, samples // len(some)), torch.Generator().manual_seed(0)
    found: tuple[list[Tensor], list[Tensor]] = ([], [])
    for at in some.split(256):
        r, b = pairs.r[at, None].double(), (pairs.b2 / pairs.r)[at, None].double().sqrt()
        for totals, inside in zip(found, (True, False), strict=True):
            total = torch.zeros(len(at), each, dtype=torch.float64)
            for _ in range(draws):
                x = torch.randn(
                    len(at), each, r.shape[-1], generator=generator, dtype=torch.float64
                )
                if inside == added:  # the neighbour's law
                    x = b + x / r.sqrt()
                of = (r * (x - b).square() - x.square() - r.log()).sum(-1) / 2
                total += -of if added else of  # the law with the record over that without
            totals.append(total)
    return torch.cat(found[0]), torch.cat(found[1])


def attacked(member: Tensor, outsider: Tensor) -> tuple[float, float, list[float]]:
    """Return the accuracy, its standard error, and the true-positive rates at one threshold."""
    hits = ((member > 0).double() + (outsider <= 0).double()) / 2
    error = 0.5 / math.sqrt(2 * hits.numel())
    flat, found = outsider.flatten().sort(descending=True).values, []
    for rate in RATES:
        found.append(float((member > flat[int(rate * len(flat))]).double().mean()))
    return float(hits.mean()), error, found


def row(name: str, draws: int) -> None:
    fit = fitted(table(name))
    planned = Charge(draws, 1.0)
    told = bdpvi.bayesian.membership(fit, planned=planned)
    bound = bdpvi.cost(fit, planned=planned).bayesian
    assert bound is not None
    (panel,) = fit.panels
    right, error, found = attacked(*ratios(panel.pairs, draws, False, _SAMPLES))
    rates = " | ".join(
        f"{100 * most:.{digits}f} ({100 * true:.{digits}f})"
        for (_, most), true, digits in zip(told.rates, found, (2, 3), strict=True)
    )
    print(
        f"| {name} | {draws} | {100 * bound.attack_success:.1f} | {100 * told.accuracy:.2f} | "
        f"{100 * right:.2f} ({100 * error:.2f}) | {100 * told.anyone:.1f} | {rates} |",
        flush=True,
    )


def people(random: np.random.Generator, rows: int, kind: int, w: np.ndarray) -> Dataset:
    x = random.standard_normal((rows, len(w)))
    if kind % 2:
        x = 0.5 * x + 0.85 * random.standard_normal((rows, 1))
    if kind > 1:
        x = x / np.sqrt(random.chisquare(3, (rows, 1)) / 3)
    y = random.random(rows) < 1 / (1 + np.exp(-x @ w - 0.5))
    return Dataset(torch.tensor(x), torch.tensor(y.astype(float)))


def small(count: int) -> None:
    """Print how often a certified average is below that of an attack on fresh records."""
    model = bdpvi.BayesianLogisticRegression()
    below, ratio, attack = 0, [], []
    for seed in range(count):
        random = np.random.default_rng(seed)
        w = random.standard_normal(int(random.integers(1, 6)))
        data, fresh = (people(random, n, seed % 4, w) for n in (200, 300))
        fit = bdpvi.fit(model, guides.Laplace(model), data, progress=False)
        with patch.object(membership, "_EPSILONS", (0.0,)):
            told = bdpvi.bayesian.membership(fit, planned=Charge(1, 1.0)).accuracy
        fresh = Dataset(fresh.x, fresh.y, ids=torch.arange(300) + 10_000)
        added = bdpvi.fit(
            model, guides.Laplace(model), data, neighbours=Mode(Add(fresh)), progress=False
        )
        right, error, _ = attacked(*ratios(added.panels[0].pairs, 1, True, 300_000))
        below += right - 3 * error > told
        ratio.append((right - 0.5) / (told - 0.5))
        attack.append(right)
    print(
        f"{count} tables of 200 records: the attack on fresh records is right in "
        f"{100 * float(np.mean(attack)):.2f} of 100 cases on average (a table's standard error "
        f"{100 * 0.5 / math.sqrt(600_000):.2f}), and above the certified average in {below} tables;"
        f" its advantage over the certified: at most {max(ratio):.3f}, mean {np.mean(ratio):.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--names", nargs="+", default=list(NAMES))
    parser.add_argument("--draws", nargs="+", type=int, default=[1, 10])
    parser.add_argument("--small", type=int)
    given = parser.parse_args()
    print(f"$ {command()}")
    if given.small:
        small(given.small)
        return
    print(
        "| table | draws | right by (ε, δ) | certified | attack (s.e.) | any record | found at 1 % "
        "(attack) | at 0.1 % (attack) |\n" + "| --- " * 8 + "|"
    )
    for name in given.names:
        for draws in given.draws:
            row(name, draws)


if __name__ == "__main__":
    main()
