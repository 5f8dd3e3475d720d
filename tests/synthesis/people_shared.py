"""A simulated table of people, a release of it, and what its owner is told."""

from __future__ import annotations

import flat
import numpy as np
import pandas as pd

from bdpvi.datasets import ColumnType, Schema
from bdpvi.synthesis import Synthetic, evaluate

SCHEMA = Schema(
    {
        "age": ColumnType(low=0, high=110, whole=True),
        "weight": ColumnType(low=0, high=200),
        "sex": ColumnType(levels=("F", "M")),
        "sick": ColumnType(levels=("no", "yes")),
    },
    "law",
)


def people(rows: int, seed: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    age = random.integers(18, 90, rows)
    return pd.DataFrame({
        "sick": np.where(random.random(rows) < age / 90, "yes", "no"),
        "age": age,
        "weight": (40 + age / 2 + 10 * random.normal(size=rows)).round(1),
        "sex": random.choice(["F", "M"], rows),
    })  # fmt: skip


def shared(frame: pd.DataFrame, schema: Schema = SCHEMA, target: str | None = "sick") -> Synthetic:
    return flat.synthesize(frame, schema, target, epsilon=1.0, delta=1e-6, seed=0)


TRAIN, HELD_OUT = people(1500, 0), people(600, 1)
MADE = shared(TRAIN)
ROWS = MADE.sample(seed=3)
FOUND = evaluate(MADE, train=TRAIN, held_out=HELD_OUT, rows=ROWS, groups=("sex", "age"))
