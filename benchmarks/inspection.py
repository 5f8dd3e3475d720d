"""Find a labelling fault, and rank classifiers, from private synthetic rows alone.

    python benchmarks/inspection.py --data FOLDER

Triastcyn's thesis (EPFL 2020), chapter 7, has both uses of private generators. The table is MNIST's
training images, averaged to 16 pixels, and their digits; a share of the fours is labelled nine.
``bdpvi.synthesize`` releases 60,000 synthetic rows at a worst-case ε, δ = 1e-5. The inspector has
5,000 clean test images of their own: a network trained on them says what each synthetic row shows.
A contradiction is a label and another digit; its excess is its share of the label's rows, less that
on 2,500 clean images which the network has not seen. Printed is the largest, without the fault and
with it, of 5 synthetic tables each. Rows of the table without a fault then rank classifiers, whose
true scores on the other 2,500 are known here alone. Seeded: an experiment.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from printed import command
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.tree import DecisionTreeClassifier

import bdpvi
from bdpvi.datasets import ColumnType, Schema, mnist
from bdpvi.noise.keys import Key
from bdpvi.releases.transaction import Transaction

PIXELS, DIGITS, DELTA, TABLES = 16, 10, 1e-5, 5
TRUE, WRONG = 4, 9
COLUMNS = [f"pixel{i}" for i in range(PIXELS)]
SCHEMA = Schema(
    {
        **{name: ColumnType(low=0.0, high=1.0) for name in COLUMNS},
        "digit": ColumnType(levels=tuple(f"d{i}" for i in range(DIGITS))),
    },
    source="how images are stored",
)
MODELS: Mapping[str, tuple[Any, int]] = {
    "tree, depth 3": (DecisionTreeClassifier(max_depth=3, random_state=0), 5000),
    "tree, depth 6": (DecisionTreeClassifier(max_depth=6, random_state=0), 5000),
    "naive Bayes": (GaussianNB(), 5000),
    "logistic, 50 images": (LogisticRegression(max_iter=300), 50),
    "logistic, 5,000 images": (LogisticRegression(max_iter=300), 5000),
    "10 neighbours, 300 images": (KNeighborsClassifier(10), 300),
    "10 neighbours, 5,000 images": (KNeighborsClassifier(10), 5000),
    "network, 5,000 images": (MLPClassifier((100,), max_iter=30, random_state=0), 5000),
}
Array = npt.NDArray[np.float64]
Digits = npt.NDArray[np.int64]
Rows = tuple[Array, Digits]


def averaged(images: torch.Tensor, digits: torch.Tensor) -> Rows:
    """Return the middle of each image as 16 means of 25 pixels, in [0, 1]."""
    inside = (images * mnist.SCALE + mnist.MEAN).clamp(0, 1).view(-1, 1, 28, 28)[:, :, 4:24, 4:24]
    means = torch.nn.functional.avg_pool2d(inside, 5).flatten(1)
    return means.double().numpy(), digits.numpy()


def mislabelled(digits: Digits, share: float) -> Digits:
    """Return digits of which this share of the fours is called nine."""
    result, fours = digits.copy(), np.flatnonzero(digits == TRUE)
    result[fours[: round(share * len(fours))]] = WRONG
    return result


def synthetic(x: Array, y: Digits, epsilon: float, seed: int) -> Rows:
    """Return as many synthetic rows."""
    frame = pd.DataFrame(x, columns=COLUMNS).assign(digit=[f"d{i}" for i in y])
    released = bdpvi.synthesize(
        frame, SCHEMA, "digit", epsilon=epsilon, delta=DELTA,
        ledger=Transaction(bdpvi.Ledger(), Key.of_seed(seed), alone=True),
    )  # fmt: skip
    rows = released.sample(rows=len(y))
    digits: Digits = np.asarray(rows["digit"].str[1:], dtype=np.int64)
    return np.asarray(rows[COLUMNS], dtype=np.float64), digits


def shown(rows: Rows, network: MLPClassifier) -> Array:
    """Return the share of each label's rows that show each digit, (10, 10)."""
    table = np.zeros((DIGITS, DIGITS))
    np.add.at(table, (rows[1], network.predict(rows[0])), 1)
    return np.asarray(table / table.sum(1, keepdims=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder of MNIST's four gzipped files")
    given = parser.parse_args()
    print(command())
    warnings.simplefilter("ignore")  # networks stop before the optimum
    (x, y), (fresh, truth) = (averaged(*part) for part in mnist.load_mnist(given.data))
    models = {name: model.fit(fresh[:size], truth[:size]) for name, (model, size) in MODELS.items()}
    network = models["network, 5,000 images"]
    usual = shown((fresh[5000:7500], truth[5000:7500]), network)
    print("| ε | fours labelled nine | largest excess | label, shown | found |")
    print("| --- " * 5 + "|")
    for epsilon in (0.1, 1.0, 10.0):
        for share in (0.0, 0.1, 0.3):
            excesses, pairs = [], []
            for seed in range(TABLES):
                made = synthetic(x, mislabelled(y, share), epsilon, seed)
                excess = shown(made, network) - usual
                np.fill_diagonal(excess, 0)
                pairs.append(divmod(int(excess.argmax()), DIGITS))
                excesses.append(float(excess.max()))
            named = ", ".join(sorted({f"{label} shows {digit}" for label, digit in pairs}))
            found = "—" if share == 0 else f"{pairs.count((WRONG, TRUE))} of {TABLES}"
            print(f"| {epsilon:g} | {share:.0%} | {fmean(excesses):.3f} | {named} | {found} |")
    rank(models, x, y, (fresh[7500:], truth[7500:]))


def rank(models: Mapping[str, Any], x: Array, y: Digits, real: Rows) -> None:
    """Print scores on synthetic rows and on real ones, and Kendall's rank correlation."""
    tables = {epsilon: synthetic(x, y, epsilon, 0) for epsilon in (0.1, 1.0, 10.0)}
    print("\n| classifier | " + " | ".join(f"ε = {table:g}" for table in tables) + " | real |")
    print("| --- " * (2 + len(tables)) + "|")
    rows = [
        [float(model.score(*part)) for part in (*tables.values(), real)]
        for model in models.values()
    ]
    for name, scores in zip(models, rows, strict=True):
        print(f"| {name} | " + " | ".join(f"{score:.3f}" for score in scores) + " |")
    columns = np.array(rows).T
    taus = [f"{stats.kendalltau(one, columns[-1]).statistic:.2f}" for one in columns[:-1]]
    print("| rank correlation | " + " | ".join(taus) + " | — |")


if __name__ == "__main__":
    main()
