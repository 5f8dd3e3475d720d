"""What may be shared: rows and a file, and what neither shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest

from bdpvi.datasets import ColumnType, Schema
from bdpvi.privacy.assumptions import Assumption
from bdpvi.synthesis import Synthetic, load

ROWS = 1234
SCHEMA = Schema(
    {
        "age": ColumnType(low=0, high=110, whole=True),
        "sex": ColumnType(levels=("F", "M")),
        "pay": ColumnType(low=-1e4, high=1.1e5),
        "sick": ColumnType(levels=("no", "yes")),
    },
    "Questionnaire 2021",
)


def people(rows: int = ROWS) -> pd.DataFrame:
    random = np.random.default_rng(0)
    age = random.integers(0, 111, rows)
    return pd.DataFrame(
        {
            "sick": np.where(random.random(rows) < age / 111, "yes", "no"),
            "pay": np.where(random.random(rows) < 0.3, 0.0, random.normal(3e4, 1e4, rows)),
            "sex": random.choice(["F", "M"], rows),
            "age": age,
        }
    )


def made(frame: pd.DataFrame | None = None, schema: Schema = SCHEMA, **more: Any) -> Synthetic:
    given: dict[str, Any] = {"target": "sick", "epsilon": 1.0, "delta": 1e-5} | more
    return flat.synthesize(people() if frame is None else frame, schema, **given)


def test_rows_are_as_the_schema_says() -> None:
    rows = made(people().assign(sex="M")).sample(5000)
    assert list(rows) == list(SCHEMA.columns)
    assert rows["age"].dtype == np.int64
    assert rows["age"].between(0, 110).all()
    assert rows["pay"].dropna().between(-1e4, 1.1e5).all()
    assert set(rows["sick"].dropna()) <= {"no", "yes", "other"}
    assert (rows["pay"] == 0).mean() > 0.2  # at ε = 1 it is above 0.4 in 2 of 1,000 releases
    assert (rows["sex"] == "M").mean() > 0.9
    rows = made(people(), epsilon=3.0).sample(5000)
    assert 0.2 < (rows["pay"] == 0).mean() < 0.4


def test_what_does_not_fit_is_told_to_the_owner_and_refuses_nothing() -> None:
    frame = people().astype(object)
    frame.loc[:99, "age"] = 200
    frame.loc[:4, "sex"] = "X"
    with pytest.warns(UserWarning, match="secret") as said:
        shared = made(frame)
    assert [str(one.message) for one in said] == [
        "column 'age': 100 values out of range and clamped, more than 5 %: are the bounds "
        "right? (secret)",
        "column 'sex': 5 values no level, such as 'X' (secret)",
    ]
    assert "200" not in str(shared.receipt)


def leaves(content: Any) -> Iterator[Any]:
    if isinstance(content, dict | list):
        for one in content.values() if isinstance(content, dict) else content:
            yield from leaves(one)
    else:
        yield content


def test_the_file_gives_the_same_rows_and_not_their_number(tmp_path: Path) -> None:
    while (shared := made()).rows == ROWS:  # the estimate may be it by chance
        pass
    shared.save(tmp_path / "s.json")
    again = load(tmp_path / "s.json")
    assert again.receipt == shared.receipt
    pd.testing.assert_frame_equal(again.sample(50, seed=1), shared.sample(50, seed=1))
    for one, other in zip(again.tables(2, 9, seed=2), shared.tables(2, 9, seed=2), strict=True):
        pd.testing.assert_frame_equal(one, other)
    content = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    numbers = [one for one in leaves(content["receipt"]) if isinstance(one, int | float)]
    assert numbers == [1.0, 1e-5, True, 0.0]  # ε, δ, reliable, no rounding
    totals = [sum(one["counts"]) for one in (*content["single"], *content["joint"])]
    assert np.std(totals) > 20  # of noise: σ√cells is hundreds
    with pytest.raises(ValueError, match="exists already"):
        shared.save(tmp_path / "s.json")


def test_the_estimated_number_of_rows_has_the_noise_it_says() -> None:
    found = [made(seed=seed).rows - ROWS for seed in range(30)]
    counts = made(seed=0).counts
    precision = sum(1 / (counts.deviation**2 * len(one)) for one in counts.single)
    precision += sum(1 / (counts.deviations[at] ** 2 * t.size) for at, t in counts.joint.items())
    assert 0.6 < np.std(found) * precision**0.5 < 1.5


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["format"], 9, "format must be 2"),
        (["target"], "z", "target must be a column"),
        (["joint"], [], "joint must have 6 pairs"),
        (["bins", 0, 0], 700, "bins"),
        (["single", 0, "counts"], [1], "single\\[0\\] must have 113 counts"),
        (["joint", 0, "counts"], [1], "joint\\[0\\] must have"),
        (["joint", 0, "deviation"], -1.0, "joint\\[0\\].deviation must be"),
        (["receipt", "worst_case", "epsilon"], "1", "epsilon must be float"),
        (["schema", "columns", "age", "low"], 999, "low=999"),
    ],
)
def test_an_edited_file_is_refused_by_name(
    tmp_path: Path, path: list[Any], value: Any, said: str
) -> None:
    file = tmp_path / "s.json"
    made().save(file)
    content = json.loads(file.read_text(encoding="utf-8"))
    inside = content
    for one in path[:-1]:
        inside = inside[one]
    inside[path[-1]] = value
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=said) as error:
        load(file)
    assert "s.json" in str(error.value)


def test_a_file_that_was_cut_is_refused_by_name(tmp_path: Path) -> None:
    made().save(tmp_path / "s.json")
    content = (tmp_path / "s.json").read_bytes()
    (tmp_path / "s.json").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"s\.json holds no synthetic table"):
        load(tmp_path / "s.json")


def test_an_experiment_says_so_and_is_not_saved(tmp_path: Path) -> None:
    shared = made(seed=3)
    assert "no guarantee" in str(shared.receipt)
    with pytest.raises(ValueError, match="leave the seeded key out"):
        shared.save(tmp_path / "s.json")
    assert (made(seed=3).counts.single[0] == shared.counts.single[0]).all()
    assert (made().counts.single[0] != made().counts.single[0]).any()


def test_bounds_that_are_not_public_are_named_in_the_receipt() -> None:
    columns = {**SCHEMA.columns, "age": ColumnType(low=0, high=110, origin="rows")}
    receipt = made(schema=Schema(columns, "looked at")).receipt
    assert receipt.from_data == ("age",)
    assert Assumption.CONSTANTS_FROM_TABLE in receipt.worst_case.assumptions
    assert Assumption.PUBLIC_CONSTANTS in made().receipt.worst_case.assumptions


@pytest.mark.parametrize("name", ["sample", "tables"])
def test_bad_numbers_are_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        getattr(made(), name)(0)
    with pytest.raises(ValueError, match="rows must be at most 100000000, got 1000000000"):
        made().sample(10**9)
