"""Bounds and levels that a schema leaves out: their price, what they tell, and what they are."""

from __future__ import annotations

import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
import rehearsals
import torch
from scipy.stats import norm

from bdpvi import Budget, BudgetExceededError, Ledger
from bdpvi.datasets import ColumnType, Schema, bounds
from bdpvi.datasets.cells import read_columns
from bdpvi.datasets.records import Held
from bdpvi.noise import secure
from bdpvi.noise.keys import Key
from bdpvi.noise.whole_normals import LAW
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.entry import Entry
from bdpvi.privacy.events import SampledGaussian, Threshold
from bdpvi.privacy.rounding import rounding_delta
from bdpvi.releases.transaction import Transaction
from bdpvi.synthesis import Counts, load
from bdpvi.synthesis.order import Order

SEX = Schema({"sex": ColumnType(levels=("F", "M"))}, "Questionnaire")


def people(rows: int = 4000) -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": random.integers(18, 91, rows),
            "sex": random.choice(["F", "M"], rows),
            "pay": np.where(random.random(rows) < 0.6, 0.0, random.lognormal(8, 1, rows)),
            "year": random.integers(1990, 2021, rows),
            "ward": random.choice(["surgery", "eyes", "heart"], rows),
        }
    )


def made(frame: pd.DataFrame, schema: Schema | None = None, **more: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return flat.synthesize(frame, schema, **({"epsilon": 1.0, "delta": 1e-5} | more))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize(("delta", "rows"), [(1e-5, 1), (1e-6, 3)])
@pytest.mark.parametrize(
    "settings",
    [{}, {"numeric": ("age",)}, {"categorical": ("age", "ward")}, {"numeric": ("age", "ward")}],
)
def test_all_events_together_cost_epsilon_exactly(
    epsilon: float, delta: float, rows: int, settings: dict[str, Any]
) -> None:
    """δ(ε) by the closed form, of events as they stand in the ledger, for all rows of a person."""
    if rows > 1:
        settings = settings | {"unit": "who", "rows_per_unit": rows}
    header = ["age", "sex", "ward", "who"][: 3 + (rows > 1)]
    order = Order.of(header, SEX, "sex", epsilon, delta, Counts(**settings))
    events = order.events
    noise = [event.noise_multiplier for event in events if isinstance(event, SampledGaussian)]
    mu = rows * math.sqrt(math.fsum(one**-2 for one in noise))
    near, far = norm.cdf(mu / 2 - epsilon / mu), norm.cdf(-mu / 2 - epsilon / mu)  # Balle and Wang
    found = near - math.exp(epsilon) * far
    found += sum(event.delta for event in events if isinstance(event, Threshold))
    found += rounding_delta(sum(getattr(event, "rounding", 0.0) for event in events), epsilon)
    assert math.isclose(found, delta, rel_tol=1e-6)
    shares = [(rows / one / mu) ** 2 for one in noise]
    open_ones = len({"age", "ward"} - {*order.settings.numeric, *order.settings.categorical})
    assert np.allclose(shares, [0.02, 0.18, 0.8] if open_ones else [0.2, 0.8])
    named = set(order.kinds.values()) != {"number"}
    assert [event.delta for event in events if isinstance(event, Threshold)] == [
        0.1 * delta
    ] * named
    assert order.bound.epsilon <= epsilon
    unit: dict[str, Any] = {} if rows == 1 else {"unit": "who", "rows_per_unit": rows}
    entry = Entry(kind="release", events=events)
    for budget, enough in ((epsilon, True), (epsilon * (1 - 1e-6), False)):
        ledger = Ledger(budget=Budget(budget, delta), **unit)
        if enough:
            ledger.check_budget(entry, "it")
        else:
            with pytest.raises(BudgetExceededError):
                ledger.check_budget(entry, "it")


@pytest.mark.parametrize("rows", [1, 3])
def test_the_noise_that_is_drawn_is_the_noise_that_is_charged(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every deviation that noise was asked for, against the ledger's events."""
    asked: list[tuple[int, float]] = []
    plain = secure.count_noise

    def listening(shape: tuple[int, ...], deviation: float, noise: Any) -> Any:
        asked.append((math.prod(shape), deviation))
        return plain(shape, deviation, noise)

    rehearsals.left_out(monkeypatch)
    monkeypatch.setattr(secure, "count_noise", listening)
    frame = pd.DataFrame(
        {"age": [*range(20, 80)] * 100, "sex": ["F", "M"] * 3000, "ward": ["A", "B", "C"] * 2000}
    )
    unit: dict[str, Any] = {}
    if rows > 1:
        frame["who"], unit = range(6000), {"unit": "who", "rows_per_unit": rows}
    ledger = Ledger(**unit)
    settings = Counts(numeric=("age",), **unit)
    flat.synthesize(frame, SEX, "sex", epsilon=1.0, settings=settings, ledger=ledger)
    charged = [
        [one.noise_multiplier**-2 for one in entry.events or () if isinstance(one, SampledGaussian)]
        for entry in ledger.entries()
    ]
    # One kind; of age three parts, the first moved by 3; of ward the names; then all counts.
    (_, kind), (_, whole), *rest = asked
    bought = [kind**-2, (bounds.FRACTIONS / whole) ** 2 + sum(one**-2 for _, one in rest[:3])]
    counts = sum(one**-2 for _, one in rest[3:])
    assert len(rest[3:]) == 3 + 3
    assert charged == [pytest.approx([*bought, counts], rel=1e-9)]


def test_a_row_moves_what_is_bought_by_its_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every noisy number, in deviations of its noise, of a table with and without each row."""
    found: dict[Any, float] = {}

    deviations: list[float] = []

    def silent(shape: tuple[int, ...], deviation: float, _: object) -> Any:
        deviations.append(deviation)
        return torch.zeros(shape, dtype=torch.int64)

    rehearsals.left_out(monkeypatch)
    monkeypatch.setattr(secure, "count_noise", silent)
    noisy, levels, score = bounds._noisy, bounds._levels, bounds.score

    def counted(counts: Any, deviation: float, noise: Any) -> Any:
        for at, one in enumerate(counts):
            found["grid", len(counts), at] = one / deviation
        return noisy(counts, deviation, noise)

    def named(names: Any, deviation: float, *more: Any) -> tuple[str, ...]:
        with monkeypatch.context() as patch:
            patch.setattr(bounds, "_noisy", noisy)
            for one, number in names.items():
                found["name", one] = number / deviation
            return levels(names, deviation, *more)

    def scored(values: Any) -> int:
        number = score(values)
        found["whole"] = number / bounds.FRACTIONS * distance / math.sqrt(4)
        return number

    monkeypatch.setattr(bounds, "_noisy", counted)
    monkeypatch.setattr(bounds, "_levels", named)
    monkeypatch.setattr(bounds, "score", scored)
    distance = 0.7
    frame = people(600)[["pay", "ward"]].round(0)
    frame.loc[:4, "pay"] = [0.5, 1e300, -2.25, 7.0, 0.0]
    frame.loc[2, "ward"] = "hospice"
    frame.loc[5, "pay"] = None

    def all_of(rows: pd.DataFrame) -> dict[Any, float]:
        found.clear()
        kinds = {"pay": "number", "ward": "category"}
        bounds.estimate(
            Held(read_columns(rows)), kinds, distance=distance, delta=1e-6, key=Key.of_seed(0)
        )
        return dict(found)

    whole, moved = all_of(frame), []
    assert deviations == pytest.approx([2 / distance * one for one in (3, 1, 1, 1)])
    for out in range(8):
        less = all_of(frame.drop(index=out))
        grids = [{key[1] for key in some if key[0] == "grid"} for some in (whole, less)]
        assert grids[0] == grids[1]  # the same finer cells
        moved.append(
            math.sqrt(sum((whole.get(key, 0) - less.get(key, 0)) ** 2 for key in whole | less))
        )
    assert max(moved) == pytest.approx(distance, rel=1e-12)  # of the fractions
    assert moved[0] == pytest.approx(distance, rel=1e-12)
    assert moved[3] == pytest.approx(distance * math.sqrt((3 + 1 / 9) / 4), rel=1e-12)


def test_a_row_moves_what_kinds_are_by_its_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise that would just turn each decision, with and without a row."""
    frame = pd.DataFrame({"a": ["1", "x", "2"], "b": ["y", "", "z"], "c": [3, 4, 5]})
    kinds = {"a": "undeclared", "b": "undeclared", "c": "number"}

    def turned(rows: pd.DataFrame) -> dict[str, int]:
        result: dict[str, int] = {}
        for noise in range(9, -9, -1):

            def steady(
                shape: tuple[int, ...], deviation: float, _: object, drawn: int = noise
            ) -> Any:
                assert deviation == pytest.approx(math.sqrt(2) / 0.3)
                return torch.full(shape, drawn)

            monkeypatch.setattr(secure, "count_noise", steady)
            kept = bounds.kinds_of(
                Held(read_columns(rows)), kinds, distance=0.3, key=Key.of_seed(0)
            )
            assert kept["c"] == "number"
            for name, kind in kept.items():
                if kind == "category":
                    result.setdefault(name, noise)
        return result

    assert turned(frame) == {"a": -1, "b": 2}
    assert turned(frame[:2]) == {"a": 0, "b": 1}
    assert turned(frame[1:]) == {"a": 0, "b": 1}


def test_bounds_are_those_of_nearly_all_numbers_and_round() -> None:
    frame = people(40_000).astype({"age": float})
    frame.loc[0, "age"], frame.loc[1, "year"] = 1e300, -5
    domains = made(frame, seed=0).schema.columns
    age, year, pay = (domains[name] for name in ("age", "year", "pay"))
    assert 10 <= age.low <= 20
    assert 88 <= age.high <= 100
    assert 1900 <= year.low <= 1992
    assert 2018 <= year.high <= 2100
    assert (age.integer, year.integer, pay.integer) == (True, True, False)
    assert pay.low == 0
    beyond = (frame["pay"] > pay.high).mean()
    assert 0.0005 < beyond < 0.03
    assert float(f"{pay.high:.3g}") == pay.high
    assert domains["ward"].levels == ("eyes", "heart", "surgery")
    assert not made(frame, seed=0).schema.from_rows


@pytest.mark.parametrize(
    ("values", "low", "high", "integer"),
    [
        (np.zeros(5000), 0, 0, True),
        (np.arange(5000) % 2, 0, 1, True),
        (-np.linspace(0.002, 0.009, 5000), -0.01, -0.001, False),
        (1.6e9 + 3e7 * np.linspace(-1, 1, 5000), 1.5e9, 1.7e9, False),
        (np.linspace(-40, 60, 5000), -60, 80, False),
        (np.full(5000, 37.5), 30, 40, False),
    ],
)
def test_bounds_of_any_scale(values: Any, low: float, high: float, integer: bool) -> None:
    cells = Held(read_columns(pd.DataFrame({"x": values})))
    key = Key.of_seed(1)
    found = bounds.estimate(cells, {"x": "number"}, distance=0.3, delta=1e-6, key=key)["x"]
    assert found.low is not None
    assert found.high is not None
    assert low <= found.low <= found.high <= high
    assert ((values >= found.low) & (values <= found.high)).mean() > 0.9
    assert found.integer == integer or not values.any()


def test_the_receipt_says_what_was_bought(tmp_path: Path) -> None:
    schema = Schema(SEX.columns, SEX.source, {"year": "2000 different years"})
    shared = made(people(), schema, target="ward", settings=Counts(numeric=("age",)))
    assert list(shared.schema.columns) == ["sex", "age", "pay", "ward"]
    receipt = shared.receipt
    assert receipt.bought == ("age", "pay", "ward")
    assert receipt.worst_case.epsilon == 1.0
    assert receipt.source == f"Questionnaire; the others {bounds.SOURCE}"
    assert receipt.worst_case.assumptions == (
        Assumption.PUBLIC_CONSTANTS,
        Assumption.PRIVATE_CONSTANTS,
        Assumption.DECLARED_FACTS,
        Assumption.PROCESS_ALONE,
    )
    assert receipt.meaning.endswith(
        "Declared: persons: one row each; kinds by the schema: sex; numeric: age; "
        "columns left out: 1"
    )
    assert "bounds or levels of age, pay, ward were estimated privately" in str(receipt)
    shared.save(tmp_path / "s.json")
    assert load(tmp_path / "s.json").receipt == receipt
    assert "2000 different" not in (tmp_path / "s.json").read_text(encoding="utf-8")
    none = made(people(), ledger=Ledger()).receipt.worst_case.assumptions
    assert none == (Assumption.PRIVATE_CONSTANTS, Assumption.DECLARED_FACTS)


def test_the_ledger_has_all_of_it_before_anything_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger()

    def fails(*_: object, **__: object) -> None:
        assert [entry.kind for entry in ledger.entries()] == ["release"]
        raise KeyboardInterrupt

    rehearsals.left_out(monkeypatch)
    monkeypatch.setattr(bounds, "kinds_of", fails)
    with pytest.raises(KeyboardInterrupt):
        made(people(100), ledger=ledger)
    monkeypatch.undo()
    total = ledger.worst_case(1e-5)
    assert total is not None
    assert 1 - 1e-6 < total.epsilon <= 1
    poor = Ledger(budget=Budget(0.99, 1e-5))
    with pytest.raises(BudgetExceededError):
        made(people(100), ledger=poor)
    assert poor.entries() == ()


@pytest.mark.parametrize(("deviation", "delta", "rows"), [(3.3, 1e-6, 1), (40.0, 1e-7, 3)])
def test_a_person_s_names_are_published_with_at_most_its_delta(
    deviation: float, delta: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least noise that lets a name in, by its tail: k names, each k times."""
    least = 1

    def lets_in(noise: int) -> bool:
        drawn = torch.full((1,), noise)
        monkeypatch.setattr(secure, "count_noise", lambda *_: drawn)
        return bounds._levels({"rare": rows}, deviation, delta, Key.of_seed(0), rows) == ("rare",)

    while not lets_in(least):
        least += 1
    chance = rows * norm.sf((least - 0.5) / (LAW.deviation / secure.whole_parts(deviation)))
    assert 0.2 * delta < chance <= delta


def test_one_secret_at_two_prices_or_on_two_ledgers_has_noise_that_does_not_cancel(
    tmp_path: Path,
) -> None:
    """Whoever has both outputs learns no more than the two cost together."""
    frame, secret = people(500)[["sex"]], Key(bytes(range(32)))
    ledger = Ledger.at(tmp_path / "one.jsonl")
    for name in ("one.jsonl", "one.jsonl.head"):
        shutil.copy(tmp_path / name, tmp_path / name.replace("one", "copy"))

    def counts(ledger: Ledger, epsilon: float = 0.02, facts: str = "") -> Any:
        work = Transaction(ledger, secret, facts, alone=True)
        return made(frame, SEX, work=work, epsilon=epsilon).counts.single[0]

    one, copy = counts(ledger), Ledger(tmp_path / "copy.jsonl")
    assert copy.id == ledger.id
    others = [counts(copy, 0.02002), counts(Ledger()), counts(Ledger(), facts="another table")]
    for other in others:  # the same noise, scaled or not, would differ by 0.1 % or by nothing
        assert np.abs(one - other).max() > 2
    with pytest.raises(ValueError, match="charged under another key or at another cost"):
        counts(ledger, 0.02002)
    assert len(ledger.entries()) == 1
