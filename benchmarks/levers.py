"""What each lever buys: one draw's accuracy on held-out training rows at one ε, lever by lever.

    python benchmarks/levers.py [--data abalone] [--epsilon 0.05]

ε is that of a release from a fit to all training rows, at the temperature that reaches it; the
accuracy at this temperature is the mean over fits to four fifths of those rows, each on the fifth
that it did not see. Test rows are not used. "Floor" is the ε at an infinite temperature, which the
covariances give away; the raw files are found as ``bdpvi compare`` finds them.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
from statistics import fmean

import torch

import bdpvi
from bdpvi import BayesianLogisticRegression, Dataset, Optimum, Remove, datasets
from bdpvi.evaluate import expected_accuracy
from bdpvi.guides import FullRank, MeanField
from bdpvi.ledger import Charge
from bdpvi.methods.accounting import Accounting
from bdpvi.methods.temperature import HOTTEST, TemperatureSearch

CKS, TIGHT = Accounting(), Accounting(conversion="hockey-stick")
SMALL = Accounting(conversion="hockey-stick", failure_probability=1e-30)

# What changes, guide, clip, prior scale, ridge, accountant.
LEVERS = (
    ("start", FullRank, 0.25, 1.0, 0.0, CKS),
    ("mean-field guide", MeanField, 0.25, 1.0, 0.0, CKS),
    ("hockey-stick conversion", FullRank, 0.25, 1.0, 0.0, TIGHT),
    ("γ = 1e-30", FullRank, 0.25, 1.0, 0.0, SMALL),
    ("lower clip", FullRank, 0.05, 1.0, 0.0, SMALL),
    ("lower clip, stronger prior", FullRank, 0.05, 0.6, 0.0, SMALL),
    ("and a ridge", FullRank, 0.05, 0.6, 3.0, SMALL),
    ("stronger prior alone", FullRank, 0.25, 0.3, 0.0, SMALL),
    ("and a ridge", FullRank, 0.25, 0.3, 10.0, SMALL),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="abalone", choices=sorted(datasets.LOADERS))
    parser.add_argument("--epsilon", type=float, default=0.05)
    parser.add_argument("--folds", type=int, default=5)
    options = parser.parse_args()
    print("$ python", " ".join(sys.argv))
    print(
        f"{platform.machine()}, {torch.get_num_threads()} threads, Python "
        f"{platform.python_version()}, torch {torch.__version__}"
    )
    print(
        f"{options.data}: Bayesian-DP ε = {options.epsilon:g} at δ = 1e-5, every record left out\n"
    )
    print("| lever | guide | C | s | ridge | conversion | γ | floor | τ | skewness | ok | acc. |")
    print("| --- " * 12 + "|")
    train = datasets.LOADERS[options.data]().train
    for words, guide, clip, prior, ridge, accountant in LEVERS:
        model = BayesianLogisticRegression(clip=clip, prior_scale=prior)

        def fit(data: Dataset, records: int | None) -> bdpvi.Fit:
            return bdpvi.fit(
                model,  # noqa: B023
                guide(model, ridge=ridge),  # noqa: B023
                data,
                neighbours=Optimum(Remove(records)),
                progress=False,
            )

        whole = fit(train, None)

        def price(temperature: float) -> bdpvi.Spent:
            return bdpvi.spent(
                whole,  # noqa: B023
                planned=Charge(1, temperature),
                accountant=accountant,  # noqa: B023
            )

        about = f"| {words} | {guide.__name__} | {clip:g} | {prior:g} | {ridge:g} | "
        about += f"{accountant.conversion} | {accountant.failure_probability:g} | "
        about += f"{price(HOTTEST).epsilon:.3f} | "
        try:
            temperature = TemperatureSearch(price).solve(options.epsilon)
        except ValueError:
            print(about + "— | — | — | not reached |", flush=True)
            continue
        spent = price(temperature)
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
        found = []
        for fold in order.chunk(5)[: options.folds]:
            kept = torch.ones(len(train), dtype=torch.bool)
            kept[fold] = False
            part = fit(train.select(kept.nonzero()[:, 0]), 3)
            held_out = train.select(fold)
            found.append(expected_accuracy(part, held_out, 1, temperature, repeats=300, seed=0))
        error = torch.tensor(found).std() / math.sqrt(len(found)) if len(found) > 1 else 0.0
        print(
            f"{about}{temperature:.3g} | {spent.diagnostics.skewness:.1f} | "
            f"{'yes' if spent.reliable else 'no'} | {fmean(found):.4f} ± {error:.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
