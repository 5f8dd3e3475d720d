"""Effect of each setting on one draw's accuracy on held-out training rows at one ε.

    python benchmarks/levers.py [--data abalone] [--epsilon 0.05]

ε is that of a release from a fit to all training rows, at the first temperature of the public grid
that reaches it; the accuracy at this temperature is the mean over fits to four fifths of those
rows, each on the fifth that it did not see. Test rows are not used. "Floor" is the ε at an infinite
temperature, which the covariances give away; the raw files are found as ``bdpvi compare`` finds
them.
"""

from __future__ import annotations

import argparse
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from main_job import expected_accuracy
from printed import command

import bdpvi
from bdpvi import BayesianLogisticRegression, Dataset, Optimum, datasets
from bdpvi.bayesian import Remove
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.bench.methods.temperature import HOTTEST, bayesian, coldest
from bdpvi.datasets import abalone
from bdpvi.guides import FullRank, GaussianGuide, MeanField
from bdpvi.privacy.ledger import Charge

CKS = Accounting(conversion="cks", failure_probability=1e-15)
TIGHT = Accounting(conversion="hockey-stick", failure_probability=1e-15)
SMALL = Accounting(conversion="hockey-stick", failure_probability=1e-30)
RANGE = Accounting(conversion="hockey-stick", failure_probability=1e-10)


@dataclass(frozen=True)
class Lever:
    """A row: what it changes, and all settings with the change."""

    words: str
    model: Mapping[str, Any]
    accounting: Accounting = SMALL
    guide: type[GaussianGuide] = FullRank
    released: Mapping[str, Any] = field(default_factory=dict)


PLAIN = {"clip": 0.25, "prior_scale": 1.0}
PUBLIC = {"noise_scale": 1.0}
TOGETHER = {"clip": 0.2, "prior_scale": 0.15, "correlation": 0.9}
GROUPED = {
    "clip": 0.1,
    "prior_scale": 0.3,
    "limit": 1.0,
    "correlation": 0.95,
    "groups": abalone.GROUPS,
    "intercept": True,
}
OUTLIERS = {"clip": 0.5, "prior_scale": 0.3}
LEVERS: Mapping[str, Sequence[Lever]] = {
    "abalone": (
        Lever("start", PLAIN, CKS),
        Lever("mean-field guide", PLAIN, CKS, MeanField),
        Lever("hockey-stick conversion", PLAIN, TIGHT),
        Lever("γ = 1e-30", PLAIN),
        Lever("lower clip", {**PLAIN, "clip": 0.05}),
        Lever("and a stronger prior", {"clip": 0.05, "prior_scale": 0.6}),
        Lever("and a ridge", {"clip": 0.05, "prior_scale": 0.6}, released={"ridge": 3.0}),
        Lever("correlation 0.9, C and s for it", TOGETHER),
        Lever("and a public noise scale", TOGETHER, released=PUBLIC),
        Lever("γ = 1e-10: the range is known", TOGETHER, RANGE, released=PUBLIC),
        Lever("correlation 0.95 within groups", GROUPED, RANGE, released=PUBLIC),
    ),
    "adult": (
        Lever("start", {**PLAIN, "clip": 0.5}),
        Lever("stronger prior", OUTLIERS),
        Lever("and features within ±1", {**OUTLIERS, "limit": 1.0}),
        Lever("and an intercept", {**OUTLIERS, "limit": 1.0, "intercept": True}),
        Lever(
            "and a public noise scale",
            {**OUTLIERS, "limit": 1.0, "intercept": True},
            released=PUBLIC,
        ),
    ),
}


def fitted(lever: Lever, data: Dataset, records: int | None) -> bdpvi.Fit:
    model = BayesianLogisticRegression.unweighted(**lever.model)
    guide = lever.guide(model, **lever.released)
    return bdpvi.fit(model, guide, data, neighbours=Optimum(Remove(records)), progress=False)


def row(lever: Lever, train: Dataset, epsilon: float, folds: int) -> str:
    """Return a line of the table: what the lever changes, and what a release is then worth."""
    accounting, whole = lever.accounting, fitted(lever, train, None)

    def price(temperature: float) -> bdpvi.Bound:
        planned = Charge(1, temperature)
        return bayesian(bdpvi.cost(whole, planned=planned, accounting=accounting))

    settings = ", ".join(f"{k}={v}" for k, v in {**lever.model, **lever.released}.items())
    about = (
        f"| {lever.words} | {lever.guide.__name__} | {settings} | {accounting.conversion} | "
        f"{accounting.failure_probability:g} | {price(HOTTEST).epsilon:.3f} | "
    )
    try:
        temperature = coldest(price, epsilon)
    except ValueError:
        return about + "— | — | — | not reached |"
    bound = price(temperature)
    assert bound.evidence is not None
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    found = []
    for fold in order.chunk(5)[:folds]:
        kept = torch.ones(len(train), dtype=torch.bool)
        kept[fold] = False
        part = fitted(lever, train.select(kept.nonzero()[:, 0]), 3)
        held_out = train.select(fold)
        found.append(expected_accuracy(part, held_out, 1, temperature, repeats=300, seed=0))
    error = torch.tensor(found).std() / math.sqrt(len(found)) if len(found) > 1 else 0.0
    return (
        f"{about}{temperature:.3g} | {bound.evidence.skewness:.1f} | "
        f"{'yes' if bound.reliable else 'no'} | {fmean(found):.4f} ± {error:.4f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="abalone", choices=sorted(LEVERS))
    parser.add_argument("--epsilon", type=float, default=0.05)
    parser.add_argument("--folds", type=int, default=5)
    options = parser.parse_args()
    print("$", command())
    print(
        f"{platform.machine()}, {torch.get_num_threads()} threads, Python "
        f"{platform.python_version()}, torch {torch.__version__}"
    )
    print(
        f"{options.data}: Bayesian-DP ε = {options.epsilon:g} at δ = 1e-5, every record left out\n"
    )
    print("| lever | guide | model, released | conversion | γ | floor | τ | skewness | ok | acc. |")
    print("| --- " * 10 + "|")
    train = datasets.LOADERS[options.data]().train
    for lever in LEVERS[options.data]:
        print(row(lever, train, options.epsilon, options.folds), flush=True)


if __name__ == "__main__":
    main()
