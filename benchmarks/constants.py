"""The loss from private preprocessing compared with public constants, which cost nothing.

    python benchmarks/constants.py --data FOLDER [--repeats 20] [--whole]

Random rows of each table are fitted as in ``bdpvi private``, once with privately estimated
constants and four fifths of μ², once with means, deviations and categories of the whole table as
public constants and all of μ². Both are scored on other rows. A cell is a table, an ε and a number
of rows, 1.5 or 4 times the number required by ``--plan``. It shows the mean loss over the repeats
and its standard error. ``--whole`` uses three quarters of each table and prints the share of
logistic regression's gain without privacy in log score over the base rate; with fewer than 1.5
times the required rows, nothing is estimated.
"""

from __future__ import annotations

import argparse
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from printed import command
from sklearn.linear_model import LogisticRegression

from bdpvi import datasets
from bdpvi.datasets.adult import NAMES
from bdpvi.datasets.dataset import Dataset
from bdpvi.datasets.encoding import Encoding
from bdpvi.datasets.records import Held
from bdpvi.models.predictions import predictive_means
from bdpvi.noise.keys import Key
from bdpvi.tables import Public, Request
from bdpvi.tables.encoded import encode, rows_of, unpaid
from bdpvi.tables.metrics import auc, log_score
from bdpvi.tables.rows import Encoded, Rows
from bdpvi.tables.scores import _simulate_minima
from bdpvi.tables.setup import LIMIT, setup
from bdpvi.tables.validation import purchase
from bdpvi.tables.work import Work

EPSILONS = (0.5, 1.0, 2.0)
TIMES = (1.5, 4.0)
TEST = 4_000
BARS = (0.015, 0.03, 0.004, 0.009)
"""AUC and log score that may be lost in a cell, and on average."""


def tables(data: Path) -> dict[str, tuple[pd.DataFrame, str, str]]:
    """Return raw tables with their target and its positive value."""
    adult = pd.read_csv(data / "uci/adult.data", names=[*NAMES, "income"], skipinitialspace=True)
    rings = ["sex", *(f"x{i}" for i in range(7)), "rings"]
    abalone = pd.read_csv(data / "uci/abalone.data", names=rings)
    abalone["rings"] = np.where(abalone["rings"] > 9, "old", "young")
    result = {"adult": (adult, "income", ">50K"), "abalone": (abalone, "rings", "old")}
    for file in sorted((data / "keel").glob("*.csv")):
        frame = pd.read_csv(file)
        target = str(frame.columns[-1])
        values = sorted(frame[target].astype(str).unique())
        result[file.stem] = (frame, target, values[-1])
    return result


def scored(
    train: Rows, test: Rows, asked: Request, found: Encoded, key: Key
) -> tuple[float, float]:
    """Return AUC and log score of one release, by its own fit."""
    usual: Any = setup(asked, found).model
    model = replace(usual, limit=LIMIT)
    constants = {"encoding": found.encoding.to_dict()}
    parts = [
        Dataset(found.encoding.whole(p.columns), torch.from_numpy(p.y), preprocessing=constants)
        for p in (train, test)
    ]
    work = Work(asked, data=parts[0])
    drawn = _simulate_minima(work, model, parts[0], found, key)
    chance = predictive_means(model, {"w": drawn}, parts[1].x).mean(0)
    return float(auc(chance, parts[1].y)), float(log_score(chance, parts[1].y))


def public(frame: pd.DataFrame, target: str) -> Encoding:
    """Return the constants of the whole table, as if somebody had published them."""
    same = [str(name) for name in frame if frame[name].nunique() < 2]
    data = datasets.dataset_from_frame(frame, target, missing="level", drop=same)
    return Encoding.from_dict(data.preprocessing["encoding"])


def ordered(frame: pd.DataFrame, target: str, positive: str, epsilon: float) -> Request:
    """Return what is done with a table whose columns' kinds are known."""
    columns = [str(c) for c in frame if c != target]
    numeric = [c for c in columns if pd.api.types.is_numeric_dtype(frame[c])]
    kinds = Public(numeric=numeric, categorical=[c for c in columns if c not in numeric])
    return Request(target=target, positive=positive, epsilon=epsilon, public=kinds)


def shares(name: str, frame: pd.DataFrame, asked: Request, repeats: int) -> None:
    """Print a row: the shares kept with public and with privately estimated constants."""
    exact, whole = public(frame, asked.target), rows_of(frame, asked)
    header = list(map(str, frame))
    need = purchase(asked, header).need(asked.distance)
    rows, kept = len(whole) * 3 // 4, []
    for repeat in range(repeats):
        key = Key.of_seed(repeat).child(name, str(asked.epsilon))
        order = np.random.default_rng(repeat).permutation(len(whole))
        train, test = whole.select(order[:rows]), whole.select(order[rows:])
        x, fresh = (exact.whole(part.columns).numpy() for part in (train, test))
        usual = LogisticRegression(max_iter=10_000).fit(x, train.y).predict_proba(fresh)[:, 1]
        y = torch.from_numpy(test.y)
        base = float(log_score(torch.full((len(y),), float(train.y.mean())), y))
        most = float(log_score(torch.from_numpy(usual), y)) - base
        free = Encoded(exact, records=float(rows))
        found = [free]
        if rows >= 1.5 * need:
            found.append(encode(Held(train), header, asked, unpaid(key)))
        kept.append(
            [
                (scored(train, test, asked, one, key.child("draw", at))[1] - base) / most
                for at, one in enumerate(found)
            ]
        )
    mean = [f"{share:.3f}" for share in np.mean(kept, axis=0)]
    mean += [f"refused: needs {1.5 * need:.0f} rows"] * (len(mean) == 1)
    print(f"| {name} | {rows} | {asked.epsilon:g} | {mean[0]} | {mean[1]} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--data", type=Path, required=True, help="holds uci/ and keel/")
    given = parser.parse_args()
    print(command())
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}\n")
    if given.whole:
        print("| table | rows | ε | share, public | share, bought |")
        print("| --- " * 5 + "|")
        for name, (frame, target, positive) in tables(given.data).items():
            for epsilon in (0.05, 0.2, 1.0):
                asked = ordered(frame, target, positive, epsilon)
                shares(name, frame, asked, given.repeats)
        return
    print("| table | ε | rows | times the need | AUC, public | lost | log score, public | lost |")
    print("| --- " * 8 + "|")
    cells: list[tuple[float, float]] = []
    for name, (frame, target, positive) in tables(given.data).items():
        exact = public(frame, target)
        columns = [str(c) for c in frame if c != target]
        for epsilon in EPSILONS:
            asked = ordered(frame, target, positive, epsilon)
            whole = rows_of(frame, asked)
            header = [*columns, target]
            need = purchase(asked, header).need(asked.distance)
            for times in TIMES:
                rows = int(times * need)
                if rows > 0.75 * len(whole):
                    continue
                lost = []
                for repeat in range(given.repeats):
                    key = Key.of_seed(repeat).child(name, str(epsilon), rows)
                    order = np.random.default_rng(repeat).permutation(len(whole))
                    train = whole.select(order[:rows])
                    test = whole.select(order[rows : rows + TEST])
                    found = encode(Held(train), header, asked, unpaid(key), feasible=False)
                    free = Encoded(exact, records=float(rows))
                    mine, theirs = (
                        scored(train, test, asked, one, key.child("draw", len(one.paid)))
                        for one in (found, free)
                    )
                    lost.append((theirs[0], theirs[0] - mine[0], theirs[1], theirs[1] - mine[1]))
                table = np.array(lost)
                mean, error = table.mean(0), table.std(0, ddof=1) / len(table) ** 0.5
                cells.append((float(mean[1]), float(mean[3])))
                number = f"{mean[1]:.4f} ± {error[1]:.4f} | {mean[2]:.3f} | {mean[3]:.4f}"
                about = f"| {name} | {epsilon:g} | {rows} | {times:g} | {mean[0]:.3f}"
                print(f"{about} | {number} ± {error[3]:.4f} |", flush=True)
    worst, average = np.max(cells, axis=0), np.mean(cells, axis=0)
    print(
        f"\nIn the worst cell {worst[0]:.4f} AUC and {worst[1]:.4f} log score are lost (bars "
        f"{BARS[0]}, {BARS[1]}), on average {average[0]:.4f} and {average[1]:.4f} (bars {BARS[2]}, "
        f"{BARS[3]})"
    )
    sys.exit(bool((np.array([*worst, *average]) > BARS).any()))


if __name__ == "__main__":
    main()
