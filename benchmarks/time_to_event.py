"""Coverage of intervals of hazard ratios, and of bands around survival curves.

    OMP_NUM_THREADS=1 python benchmarks/time_to_event.py [--tables 100] [--rows 2000 10000]

Simulated tables: age (normal, 50 ± 12 years), a dose (uniform, 0 to 10) and a treatment (yes or
no), with the log hazard ratios 0.03 a year, 0 and −0.5; the hazards .05, .1 and .08 a year between
the cuts 1, 2 and 5 at the means of age and dose without treatment; censoring uniform from 0 to 8
years. Each goes through `bdpvi.private` with public bounds and levels; δ = 1e-5, the number of rows
is declared. Reported: the share of 95 % intervals that hold the truth, over the tables, for each
hazard ratio and together; the same for the three baseline hazards; for bands at the cuts of the
curves of six people; the median width of a hazard ratio's interval (of its logarithm) over that of
the Cox-like fit without privacy by Poisson regression of person-periods; and the share of hazard
ratios noted as dominated by privacy noise.
"""

from __future__ import annotations

import argparse
import math
import warnings
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from printed import command

import bdpvi
from bdpvi.datasets import constants_of
from bdpvi.models.hazards import exposures, survival
from bdpvi.tables import Machine, Public

CUTS = (1.0, 2.0, 5.0)
HAZARDS = (0.05, 0.1, 0.08)
TRUTH = {"age": 0.03, "dose": 0.0, "treated": -0.5}
PEOPLE = pd.DataFrame(
    [(age, 5.0, treated) for age in (38, 50, 62) for treated in ("no", "yes")], columns=[*TRUTH]
)
PUBLIC = constants_of(
    {
        "source": "By design.",
        "age": {"mean": 50, "sd": 12},
        "dose": [0, 10],
        "treated": ["no", "yes"],
    }
)


def log_hazards(frame: pd.DataFrame) -> torch.Tensor:
    """Return the true log hazards, (N, J)."""
    linear = TRUTH["age"] * (frame["age"] - 50) + TRUTH["treated"] * (frame["treated"] == "yes")
    return torch.tensor(linear.to_numpy(float))[:, None] + torch.tensor(HAZARDS).double().log()


def simulated(rows: int, seed: int) -> pd.DataFrame:
    """Return a table of which the model is true."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": random.normal(50, 12, rows),
            "dose": random.uniform(0, 10, rows),
            "treated": random.choice(["no", "yes"], rows),
        }
    )
    hazards, left = log_hazards(frame).exp().numpy(), random.exponential(size=rows)
    ends, starts = np.array([1.0, 2.0, np.inf]), np.array([0.0, 1.0, 2.0])
    time = np.zeros(rows)
    for at in range(3):
        run = np.minimum(left / hazards[:, at], ends[at] - starts[at])
        time += run * (left > 0)
        left = left - run * hazards[:, at]
        left[left < 1e-12] = 0
    censored = random.uniform(0, 8, rows)
    frame["died"] = np.where(time < censored, "yes", "no")
    frame["years"] = np.minimum(time, censored)
    return frame


def without_privacy(frame: pd.DataFrame) -> torch.Tensor:
    """Return standard deviations of the log hazard ratios by the likelihood's maximum."""
    ones = torch.tensor((frame["treated"] == "yes").to_numpy(float))
    x = torch.stack(
        [torch.tensor(frame[name].to_numpy(float)) for name in ("age", "dose")] + [ones], 1
    )
    time = torch.tensor(frame["years"].to_numpy(float))
    at_risk = exposures(time, CUTS)
    bend = torch.zeros(6, 6, dtype=torch.float64)
    rate = log_hazards(frame).exp() * at_risk  # at the truth: the expected information
    for j in range(3):
        rows = torch.cat([x, torch.eye(3).double()[j].expand(len(x), 3)], 1)
        bend += rows.T @ (rows * rate[:, j : j + 1])
    found: torch.Tensor = torch.linalg.inv(bend).diagonal()[:3].sqrt()
    return found


def inside(row: Any, truth: float) -> bool:
    """Return whether an interval holds the truth."""
    return bool(row["low"] <= truth <= row["high"])


def cell(rows: int, epsilon: float, tables: int) -> str:
    """Return a line of the report."""
    held: dict[str, list[bool]] = {}
    widths, hidden = [], []
    curves = survival(log_hazards(PEOPLE), torch.tensor(CUTS).double(), CUTS)
    for seed in range(tables):
        frame = simulated(rows, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = bdpvi.private(
                frame,
                target="years",
                model=bdpvi.BayesianSurvivalRegression(cuts=CUTS),
                public=Public(event="died", constants=PUBLIC, rows=rows),
                epsilon=epsilon,
                machine=Machine(device="cpu", progress=False),
            )
        found = made.summary(reference={"treated": "no"}).to_frame()
        names = {"age": "age", "dose": "dose", "treated": "treated=yes"}
        spread = without_privacy(frame)
        for at, (name, truth) in enumerate(TRUTH.items()):
            row: Any = found.loc[names[name]]
            held.setdefault(name, []).append(inside(row, truth))
            widths.append(float(row["high"] - row["low"]) / (2 * 1.96 * float(spread[at])))
            hidden.append("dominated" in row["note"])
        for hazard, (_, row) in zip(HAZARDS, found.iloc[-3:].iterrows(), strict=True):
            held.setdefault("baselines", []).append(inside(row, math.log(hazard)))
        _, low, high = (one.to_numpy() for one in made.predict_survival(PEOPLE, CUTS))
        good = (low <= curves.numpy()) & (curves.numpy() <= high)
        held.setdefault("curves", []).extend(good.ravel().tolist())
    ratios = [one for name in TRUTH for one in held[name]]
    shares = [ratios, *(held[name] for name in (*TRUTH, "baselines", "curves"))]
    numbers = [*map(np.mean, shares), np.median(widths), np.mean(hidden)]
    each = "  ".join(f"{number:7.3f}" for number in numbers)
    return f"{rows:7,d}  {epsilon:7g}  {each}"


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--rows", type=int, nargs="+", default=[2000, 10_000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0])
    given = parser.parse_args()
    head = ["rows", "ε", "ratios", *TRUTH, "hazards", "curves", "width", "hidden"]
    print(f"$ {command()}", f"{given.tables} tables a line", sep="\n")
    print("  ".join(f"{one:>7}" for one in head), flush=True)
    for rows, epsilon in product(given.rows, given.epsilon):
        print(cell(rows, epsilon, given.tables), flush=True)


if __name__ == "__main__":
    main()
