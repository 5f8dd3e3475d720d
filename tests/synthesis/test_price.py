"""The price of noisy counts, against laws that are written down from scratch."""

from __future__ import annotations

import math

import flat
import numpy as np
import pandas as pd
import pytest
from scipy.stats import chisquare, norm

from bdpvi import Ledger
from bdpvi.datasets import ColumnType, Schema
from bdpvi.noise import secure
from bdpvi.noise.keys import Key
from bdpvi.noise.whole_normals import LAW, WholeNormals
from bdpvi.privacy.gaussian_dp import gaussian_distance
from bdpvi.synthesis import Counts
from bdpvi.synthesis.counts import MeasurementPlan

COINS = Schema({name: ColumnType(levels=("0", "1")) for name in "abcd"}, "coins")
ROWS = pd.DataFrame({name: ["0", "1", "1"] * 100 for name in "abcd"})


def law(deviation: float) -> np.ndarray:
    """Return the probabilities of whole numbers within ± 9 deviations, by the normal law."""
    ends = np.arange(-math.ceil(9 * deviation), math.ceil(9 * deviation) + 2) - 0.5
    return np.diff(norm.cdf(ends / deviation))


def test_noise_has_the_normal_law_of_whole_numbers() -> None:
    deviation, number = 7.3, 400_000
    drawn = secure.count_noise((number,), deviation, WholeNormals(Key.of_seed(3))).numpy()
    expected = law(deviation)
    half = len(expected) // 2
    inner = np.arange(-25, 26)
    found = np.array([(drawn == one).sum() for one in inner])
    shares = expected[inner + half]
    found = np.append(found, number - found.sum())
    shares = np.append(shares, 1 - shares.sum())
    assert chisquare(found, number * shares).pvalue > 1e-6
    # The same numbers as of a deviation that is wrong by 1 % would be told from it.
    wrong = law(deviation * 1.01)[inner + len(law(deviation * 1.01)) // 2]
    assert chisquare(found, number * np.append(wrong, 1 - wrong.sum())).pvalue < 1e-6


@pytest.mark.parametrize("deviation", [0.01, 1.0, 33.3, 1e6, 8.5e9])
def test_noise_is_never_less_than_it_should_be(deviation: float) -> None:
    given = LAW.deviation / secure.whole_parts(deviation)
    assert deviation <= given
    if deviation < 1e6:
        assert given < deviation * 1.001


def test_more_noise_than_there_is_room_for_is_refused() -> None:
    with pytest.raises(ValueError, match=r"deviation=1e\+10 must be at most"):
        secure.whole_parts(1e10)
    with pytest.raises(ValueError, match=r"deviation=.* must be at most"):
        MeasurementPlan.of(COINS, None, 1e-10, Counts())


def test_epsilon_by_all_outcomes_of_a_tiny_table() -> None:
    """One row more moves one cell of each of three tables: δ(ε) by every outcome of the cells."""
    epsilon, delta = 1.0, 1e-5
    two = Schema({name: COINS.columns[name] for name in "ab"}, "coins")
    plan = MeasurementPlan.of(two, None, gaussian_distance(epsilon, delta), Counts())
    (joint,) = plan.joint.values()
    laws = [law(one) for one in (plan.one_way, plan.one_way, joint)]
    without = outcomes([np.append(one, 0.0) for one in laws])
    with_it = outcomes([np.insert(one, 0, 0.0) for one in laws])
    for p, q in ((without, with_it), (with_it, without)):
        cost = float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
        # Whole numbers show a little less than the Gaussian does; with μ 1 % off δ is 15 % off.
        assert 0.95 * delta < cost <= delta


def outcomes(laws: list[np.ndarray]) -> np.ndarray:
    a, b, c = laws
    return np.asarray(a[:, None, None] * b[:, None] * c)


@pytest.mark.parametrize("target", [None, 1])
@pytest.mark.parametrize("also", [(), (("a", "b", "c"), ("a", "b", "c", "d"))])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_row_moves_the_counts_by_the_distance(
    size: int, also: tuple[tuple[str, ...], ...], target: int | None
) -> None:
    """Whichever row is left out: exact counts, in deviations of their noise, move by μ."""
    schema = Schema({name: COINS.columns[name] for name in "abcd"[:size]}, "coins")
    target = None if size == 1 else target
    settings = Counts(also=also if size == 4 else ())
    plan = MeasurementPlan.of(schema, target, 0.4, settings)
    codes = np.array([[0, 1, 3, 2], [0, 1, 3, 2], [1, 1, 0, 0]])[:, :size]

    def exact(rows: np.ndarray) -> np.ndarray:
        parts = [
            np.bincount(rows[:, at], minlength=4) / plan.one_way for at in range(rows.shape[1])
        ]
        for columns, deviation in plan.joint.items():
            flat = sum(rows[:, one] * 4**place for place, one in enumerate(columns))
            parts.append(np.bincount(flat, minlength=4 ** len(columns)) / deviation)
        return np.concatenate(parts)

    for out in range(3):
        moved = exact(codes) - exact(np.delete(codes, out, axis=0))
        assert math.isclose(float(np.linalg.norm(moved)), 0.4, rel_tol=1e-12)


def test_rounding_is_that_of_every_cell_that_is_counted() -> None:
    schema = Schema({name: COINS.columns[name] for name in "abc"}, "coins")
    plan = MeasurementPlan.of(schema, 0, 0.4, Counts(also=(("a", "b", "c"),)))
    assert plan.rounding == secure.sum_rounding(3 * 4 + 3 * 4**2 + 4**3)


def test_a_person_with_several_rows_is_charged_for_all() -> None:
    people = ROWS.assign(who=[f"p{at // 5}" for at in range(len(ROWS))])
    settings = Counts(unit="who", rows_per_unit=2)
    ledger = Ledger(unit="who", rows_per_unit=2)
    with pytest.warns(UserWarning, match=r"180 rows left out: .*unit='who'"):
        made = flat.synthesize(
            people, COINS, "d", epsilon=1.0, delta=1e-5, settings=settings, ledger=ledger
        )
    single = flat.synthesize(ROWS, COINS, "d", epsilon=1.0, delta=1e-5)
    assert math.isclose(made.counts.deviation, 2 * single.counts.deviation)
    total = ledger.worst_case(1e-5)
    assert total is not None
    assert 0.999 < total.epsilon <= 1.0
    assert made.receipt.worst_case.unit == "all records, at most 2, of one person ('who')"
    assert abs(made.rows - 2 * 60) < 120  # of 300 rows two of each of 60 persons


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"target": "z"}, "target='z' must be a column that is counted"),
        ({"epsilon": 0.0}, "epsilon must be finite and positive"),
        ({"epsilon": math.nan}, "epsilon must be"),
        ({"delta": 1.0}, "delta must lie strictly"),
        ({"table": ROWS.drop(columns="a")}, "'a' must be in the table once, there are 0"),
        ({"table": ROWS[[]], "schema": None, "target": None}, "at least one column"),
        ({"table": pd.concat([ROWS, ROWS["a"]], axis=1)}, "'a' occurs more than once"),
        ({"schema": None, "target": "z"}, "target='z' must be a column that is counted"),
        ({"settings": Counts(categorical=("a",))}, "category: 'a' must be a column of the table"),
        ({"settings": Counts(unit="a")}, "unit='a' is a column of the schema"),
        ({"schema": None, "settings": Counts(also=(("a", "b", "c"),))}, "also has .* cells"),
        ({"settings": Counts(also=(("a", "b", "z"),))}, "also names 'z'"),
        ({"settings": Counts(unit="who")}, "unit='who' must be a column"),
        ({"table": [[1]]}, "schema: its column 'a' must be in the table once"),
    ],
)
def test_bad_input_costs_nothing(changed: dict[str, object], said: str) -> None:
    ledger = Ledger()
    given = {"table": ROWS, "schema": COINS, "target": "d", "epsilon": 1.0, "delta": 1e-5}
    with pytest.raises(ValueError, match=said):
        flat.synthesize(ledger=ledger, **(given | changed))
    assert ledger.entries() == ()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"one_way": 0.0}, "one_way"),
        ({"label": 1.0}, "label"),
        ({"also": (("a", "b"),)}, "three or four"),
        ({"also": (("a", "b", "b"),)}, "three or four"),
        ({"rows_per_unit": 2}, "needs unit="),
        ({"parents": 0}, "parents"),
        ({"categorical": ("a",), "numeric": ("a",)}, "numeric has 'a', which is categorical too"),
    ],
)
def test_bad_settings_are_refused_by_name(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Counts(**settings)  # type: ignore[arg-type]
