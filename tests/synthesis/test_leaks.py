"""What somebody would try who has all that is shared, and knows all other rows."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2, chisquare

from bdpvi import Ledger
from bdpvi.datasets import ColumnType, Schema
from bdpvi.noise.keys import Key
from bdpvi.releases.transaction import Transaction
from bdpvi.synthesis import Counts, Synthetic
from bdpvi.synthesis.order import rows_to_count

LUCK, VISITS = 1e-6, [*range(250)] * 2
SCHEMA = Schema(
    {
        "age": ColumnType(low=0, high=110, whole=True),
        "pay": ColumnType(low=0, high=1e5),
        "ward": ColumnType(levels=("eyes", "heart")),
    },
    "Questionnaire",
)


def patients(rows: int = 500) -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": random.integers(0, 111, rows),
            "pay": random.integers(0, 100_001, rows),
            "ward": random.choice(["eyes", "heart"], rows),
        }
    )


def made(frame: pd.DataFrame, schema: Schema | None = SCHEMA, **more: Any) -> Synthetic:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return flat.synthesize(frame, schema, **({"epsilon": 1.0, "delta": 1e-5} | more))


def written(shared: Synthetic, folder: Path) -> str:
    path = folder / f"{len(list(folder.iterdir()))}.json"
    shared.save(path)
    return path.read_text(encoding="utf-8")


def test_low_bits_of_counts_are_those_of_noise() -> None:
    """All remainders by 8 are equally frequent, of empty cells and of cells with somebody."""
    for frame in (patients(0), patients(100_000)):
        shared = made(frame, seed=1)
        counts = [one.ravel() for one in (*shared.counts.single, *shared.counts.joint.values())]
        cells = np.concatenate([count for count in counts if len(count) > 1])
        assert cells.dtype == np.int64
        assert chisquare(np.bincount(cells % 8, minlength=8)).pvalue > LUCK


def test_every_cell_of_the_fine_grid_has_its_noise_also_where_nobody_is() -> None:
    """Empty cells, which are merged afterwards, tell no more than others: noise of the same σ."""
    empty = made(patients(0), seed=2).counts
    z = np.concatenate(empty.single) / empty.deviation
    assert chi2.cdf(float((z**2).sum()), len(z)) > LUCK
    assert chi2.sf(float((z**2).sum()), len(z)) > LUCK
    assert (np.concatenate(empty.single) == 0).sum() < 10


@pytest.mark.parametrize("schema", [SCHEMA, None])
def test_neither_order_nor_types_of_the_table_leave_a_trace(
    schema: Schema | None, tmp_path: Path
) -> None:
    """By the same key: shuffled rows, other types and spellings, the columns' order declared."""
    frame, work = patients(3000), Transaction(Ledger(), Key(bytes(range(32))), alone=True)
    tables = [
        frame,
        frame.sample(frac=1.0, random_state=3),
        frame.astype(str),
        frame.astype({"age": float, "ward": "category"}),
        frame.assign(age=[f" {one}.0" for one in frame["age"]]),
    ]
    if schema:
        tables.append(frame[["ward", "pay", "age"]])
    files = {written(made(table, schema, work=work), tmp_path) for table in tables}
    assert len(files) == len(work.ledger.entries()) == 1


def test_the_number_of_rows_and_of_those_left_out_is_nowhere(tmp_path: Path) -> None:
    frame = patients(3217).assign(who=[f"p{at // 3}" for at in range(3217)])
    settings = Counts(unit="who", rows_per_unit=2)
    with pytest.warns(UserWarning, match="owner only: 1072 rows left out"):
        shared = flat.synthesize(frame, SCHEMA, epsilon=1.0, settings=settings)
    text = written(shared, tmp_path)
    content = json.loads(text)
    kept = {3217, 1072, 3217 - 1072, 1073}
    said = {str(one) for one in kept} & set(
        json.dumps(content["receipt"]).replace(",", " ").split()
    )
    assert not said
    totals = {sum(one["counts"]) for one in (*content["single"], *content["joint"])}
    assert not totals <= kept


def test_which_rows_of_a_person_are_used_is_a_secret_coin() -> None:
    """Each of five rows in two of five tables; what others have does not decide about it."""
    frame = pd.DataFrame({"row": range(7), "who": ["ada"] * 5 + ["bob"] * 2})
    settings = Counts(unit="who", rows_per_unit=2)
    used: list[int] = []
    for seed in range(400):
        with pytest.warns(UserWarning, match="3 rows left out"):
            kept = rows_to_count(frame, settings, Key.of_seed(seed), True)
        assert sorted(kept["who"]) == ["ada", "ada", "bob", "bob"]
        used += kept["row"][kept["who"] == "ada"].tolist()
    assert chisquare(np.bincount(used, minlength=5)).pvalue > LUCK


def test_who_else_is_there_does_not_decide_about_a_person_s_bins() -> None:
    """Declared columns: grid and codes are the same, whoever else brings a level or a bound in."""
    frame = patients(50).astype(object)
    more = pd.DataFrame({"age": [10**9], "pay": [-1e300], "ward": ["hospice"]})
    codes, _ = SCHEMA.encode(frame)
    other, _ = SCHEMA.encode(pd.concat([frame, more]))
    assert (other[:-1] == codes).all()
    assert made(frame, seed=0).schema == made(pd.concat([frame, more]), seed=0).schema == SCHEMA


@pytest.mark.parametrize(
    ("frame", "settings", "said"),
    [
        (
            patients().assign(patient_id=VISITS),
            Counts(),
            "'patient_id' has a value more",
        ),
        (patients().assign(patient_id=range(500)), Counts(), ""),
        (
            patients().assign(id=VISITS),
            Counts(unit="id"),
            "250 rows left out",
        ),
        (patients().assign(age=500), Counts(), "500 values out of range .*more than 5 %"),
        (
            patients().assign(ward=["x"] + ["eyes"] * 499),
            Counts(),
            "1 value no level, such as 'x'",
        ),
    ],
)
def test_what_the_owner_is_told_is_not_in_the_file(
    frame: pd.DataFrame, settings: Counts, said: str, tmp_path: Path
) -> None:
    schema = SCHEMA if list(frame) == list(SCHEMA.columns) else None
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        shared = flat.synthesize(
            frame, schema, epsilon=1.0, settings=settings, ledger=Ledger(unit=settings.unit)
        )
    words = [str(one.message) for one in found if "frequent enough" not in str(one.message)]
    if said:
        assert [word for word in words if pd.Series([word]).str.contains(said).all()]
    else:
        assert not [word for word in words if "patient_id' has a value" in word]
    assert all("(secret)" in word or "for the owner only" in word for word in words)
    text = written(shared, tmp_path)
    assert not [word for word in words if word in text]
    assert '"x"' not in text
