"""Without one row, everything else stays where it was: the law behind every guarantee.

*For every i, training(D without i) is training(D) without i*, given the same coins. Networks and
private estimates have their own tests of it (``dp/test_deep.py``, ``recipes/test_private.py``).
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from simulated import guided, logistic_data

import bdpvi
from bdpvi import Coupled, Dataset, Optimum, datasets
from bdpvi.bayesian import Remove
from bdpvi.datasets.split import permutation
from bdpvi.federated.parties import Client
from bdpvi.federated.rounds import Rounds
from bdpvi.guides import FullRank, MeanField
from bdpvi.noise.keys import Key
from bdpvi.privacy.gaussian_dp import gaussian_distance
from bdpvi.tables.encoded import rows_of as used

PUBLIC = datasets.constants_of({"source": "By law.", "age": [18, 98], "sex": ["F", "M"]})
ROWS = 600


def patients(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age, sex = rng.normal(58, 20, rows), rng.choice(["F", "M"], rows)
    sick = rng.random(rows) < 1 / (1 + np.exp(-(age - 58) / 10))
    return pd.DataFrame({"age": age, "sex": sex, "sick": np.where(sick, "yes", "no")})


def rows_of(data: Dataset) -> set[tuple[float, ...]]:
    return {tuple(row) for row in torch.cat([data.x, data.y[:, None]], 1).tolist()}


@given(st.integers(0, 49), st.integers(0, 49), st.sampled_from(["drop", "level"]))
def test_a_split_by_coins_moves_nobody_else(i: int, blank: int, missing: str) -> None:
    frame, coins = patients(50), torch.from_numpy(Key.of_seed(i).coins(50))
    frame.loc[blank, "age"] = np.nan
    others = torch.arange(50) != i
    given_: dict[str, Any] = {"positive": "yes", "constants": PUBLIC, "missing": missing}
    one = datasets.from_frame(frame, "sick", coins=coins, **given_)
    other = datasets.from_frame(frame.drop(index=i), "sick", coins=coins[others], **given_)
    for part, less in ((one.train, other.train), (one.test, other.test)):
        assert rows_of(less) == rows_of(part.select(part.ids != i))


@given(st.integers(0, 49))
def test_rows_of_one_person_have_one_coin_and_nobody_else_s_depends_on_it(i: int) -> None:
    frame = patients(50).assign(who=[f"p{row % 20}" for row in range(50)])
    given_: dict[str, Any] = {"positive": "yes", "constants": PUBLIC, "unit": "who"}
    given_["rows_per_unit"] = 3
    one = datasets.from_frame(frame, "sick", seed=Key(bytes(32)), **given_)
    other = datasets.from_frame(frame.drop(index=i), "sick", seed=Key(bytes(32)), **given_)
    for part, less in ((one.train, other.train), (one.test, other.test)):
        assert rows_of(less) == rows_of(part.select(part.ids != i))
    assert not {*(one.train.ids % 20).tolist()} & {*(one.test.ids % 20).tolist()}
    assert len(one.train) + len(one.test) == 50
    seeded = datasets.from_frame(frame, "sick", seed=1, **given_)
    assert seeded.train.preprocessing["experiment"]


def test_files_are_split_by_coins_too_and_by_new_ones_each_time(tmp_path: Path) -> None:
    frame = patients()
    frame.to_csv(tmp_path / "t.csv", index=False)
    key = Key(bytes(32))
    one, two = (
        datasets.from_csv(tmp_path / "t.csv", "sick", positive="yes", seed=key) for _ in range(2)
    )
    assert one.train.ids.equal(two.train.ids)
    expected = torch.from_numpy(key.coins(ROWS)) >= 0.2
    assert one.train.ids.equal(expected.nonzero()[:, 0])
    new = datasets.from_csv(tmp_path / "t.csv", "sick", positive="yes")
    assert not new.train.ids.equal(one.train.ids)
    assert "experiment" not in new.train.preprocessing
    with pytest.raises(ValueError, match="seed=3 and coins were both given"):
        datasets.from_frame(frame, "sick", seed=3, coins=torch.zeros(ROWS))
    with pytest.raises(ValueError, match="coins has 2 entries"):
        datasets.from_frame(frame, "sick", coins=torch.zeros(2))


@pytest.mark.parametrize("value", [None, math.nan, 2.5, "stray", 1e300, "2024-05-01"])
@pytest.mark.parametrize("column", ["code", "flag", "dose", "sick"])
def test_a_cell_is_read_the_same_whatever_type_pandas_takes_its_column_for(
    column: str, value: Any
) -> None:
    """One blank makes integers floats, one stray word makes numbers text."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "code": rng.integers(1, 5, 50),
            "flag": rng.random(50) < 0.5,
            "dose": rng.normal(size=50),
            "sick": rng.choice([0, 1], 50),
        },
        dtype=object,
    )
    if pd.__version__ < "3":  # it reads long fractions less exactly
        frame["dose"] = frame["dose"].map(lambda one: round(one, 9))
    frame.loc[7, column] = value
    less = frame.drop(index=7)

    def written(table: pd.DataFrame) -> pd.DataFrame:
        return pd.read_csv(io.StringIO(table.to_csv(index=False)))

    for as_read in (pd.DataFrame.infer_objects, written):
        one, other = (
            used(as_read(table), flat.request(target="sick", positive=1, epsilon=1.0))
            for table in (frame, less)
        )
        if len(one) == 50:  # else it has no target, and is left out
            one = one.select(np.delete(np.arange(50), 7))
        np.testing.assert_array_equal(one.y, other.y)
        for name, cells in one.columns.items():
            there = other.columns[name]
            np.testing.assert_array_equal(cells.numbers, there.numbers)
            assert [cells.names[i] for i in cells.codes] == [there.names[i] for i in there.codes]


def mean(data: Dataset) -> torch.Tensor:
    shift: torch.Tensor = guided(data, neighbours=Optimum(Remove(0))).posterior.mean / 0.1
    return shift


def test_training_moves_by_no_more_than_is_paid_and_a_public_split_by_far_more() -> None:
    """In noise deviations; the control is a split by a public permutation.

    In this table the rows that a permutation of one row fewer puts into training are the sick.
    """
    frame, paid = patients(), gaussian_distance(1.0, 1e-5)
    there, left = (set(permutation(n, 0)[: int(0.8 * n)].tolist()) for n in (ROWS, ROWS - 1))
    left = {i + 1 for i in left}  # without row 0
    frame["sick"] = ["yes" if i in left - there else "no" for i in range(ROWS)]
    coins = torch.from_numpy(Key.of_seed(1).coins(ROWS))
    common: dict[str, Any] = {"positive": "yes", "constants": PUBLIC}
    whole = mean(datasets.from_frame(frame, "sick", coins=coins, **common).train)
    permuted = mean(datasets.from_frame(frame, "sick", seed=0, **common).train)
    for i in (0, 1, ROWS // 2, ROWS - 1):
        less = frame.drop(index=frame.index[i])
        kept = coins[torch.arange(ROWS) != i]
        other = mean(datasets.from_frame(less, "sick", coins=kept, **common).train)
        assert float((other - whole).norm()) <= paid * (1 + 1e-4)
    control = mean(datasets.from_frame(frame.iloc[1:], "sick", seed=0, **common).train)
    assert float((control - permuted).norm()) > 10 * paid


@pytest.mark.parametrize("i", [0, 29, 59])
def test_batches_are_coins_of_the_records(i: int) -> None:
    """A neighbour beside the fit is the fit without the record, given the same coins."""
    data, key = logistic_data(60, 3), Key(bytes(range(32)))
    model = bdpvi.BayesianLogisticRegression.unweighted()

    def trained(records: Dataset, neighbours: Remove) -> bdpvi.Fit:
        return bdpvi.fit(
            model,
            FullRank(model),
            records,
            training=bdpvi.Training(steps=12, rate=0.4, seed=key, device="cpu"),
            neighbours=Coupled(neighbours),
            progress=False,
        )

    fitted, there = trained(data, Remove()), trained(data.without(i), Remove(3))
    found = fitted.panels[0].pairs
    expected = bdpvi.bayesian.accounting.gaussian_pairs.summarise(fitted.posterior, there.posterior)
    torch.testing.assert_close(found.b2[i], expected.b2[0], rtol=1e-6, atol=1e-12)
    assert fitted.plan.secret
    assert not fitted.experiment


@pytest.mark.parametrize("i", [0, 29, 59])
def test_a_client_s_batches_are_coins_of_its_records(i: int) -> None:
    data, model = logistic_data(60, 3), bdpvi.BayesianLogisticRegression.unweighted()
    rounds = Rounds(
        clients=1, size=3, clip=100.0, noise_multiplier=1.0, record_rate=0.5, record_clip=1.0
    )
    point, key = torch.tensor([0.5, -2.0, 1.0], dtype=torch.float64), 2**200 + 1
    whole, less = (Client(model, records, rounds, key) for records in (data, data.without(i)))
    alone = Client(model, data.select(torch.tensor([i])), rounds, key)
    coins = set()
    for number in range(1, 9):
        score = alone.answer(number, point)
        found = whole.answer(number, point) - less.answer(number, point)
        torch.testing.assert_close(found, score, rtol=0, atol=1e-12)
        coins.add(bool(score.any()))
    assert coins == {False, True}


# --- seeds make experiments -----------------------------------------------------------------------


def test_a_seed_makes_an_experiment_that_is_not_saved(tmp_path: Path) -> None:
    model = bdpvi.BayesianLogisticRegression(clip=0.3)
    split = datasets.from_frame(patients(), "sick", positive="yes", seed=0)
    chosen = guided(split.train)
    batches = bdpvi.fit(
        model,
        MeanField(model),
        logistic_data(60, 2),
        training=bdpvi.Training(steps=5, rate=0.5, seed=0),
        progress=False,
    )
    for fitted in (chosen, batches):
        released = bdpvi.release(fitted, temperature=50.0)
        assert str(released.receipt).startswith("an EXPERIMENT")
        with pytest.raises(ValueError, match="leave the seed out"):
            bdpvi.save_release(released, tmp_path / "release.json")
    # Full batches have no coins, and a published table is what its split says.
    whole = bdpvi.fit(
        model,
        MeanField(model),
        logistic_data(60, 2),
        training=bdpvi.Training(steps=5, seed=0),
        neighbours=Coupled(),
        progress=False,
    )
    assert not whole.experiment
    plain = bdpvi.BayesianLogisticRegression.unweighted(intercept=True)
    receipt = bdpvi.fit_private(plain, datasets.load_breast_cancer().train, epsilon=1.0).receipt
    assert not receipt.experiment
    assert "D is only the training part of a published table" in receipt.meaning
