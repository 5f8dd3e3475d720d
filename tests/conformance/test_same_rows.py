"""Without a ledger, whatever leaves the same rows in a process adds up in one account."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
import torch
from doors import DELTA, DOORS, Door, Place, anew
from numpy.typing import NDArray
from simulated import logistic_data

import bdpvi
from bdpvi import BayesianDP, BayesianLogisticRegression, Budget, BudgetExceededError, Ledger
from bdpvi.guides import Laplace
from bdpvi.privacy.book import follow
from bdpvi.privacy.entry import Entry
from bdpvi.privacy.events import SampledGaussian
from bdpvi.regression import ObjectivePerturbation
from bdpvi.releases.shared_file import release_bytes

pytestmark = pytest.mark.usefixtures("fresh_store")

ALONE = "of this process alone"
OF_ROWS = [
    door for door in DOORS
    if not door.name.startswith("command")  # whose tables are files, with ledgers beside them
    and door.name != "federation"  # whose clients' records the server has not
]  # fmt: skip


def total(said: str) -> float:
    """Return the ε of all together that a receipt prints."""
    found = re.search(rf"{ALONE}: worst-case ε = ([0-9.]+) at", said)
    assert found, said
    return float(found[1])


@pytest.mark.parametrize("door", OF_ROWS, ids=lambda door: door.name)
def test_two_calls_on_the_same_rows_print_their_sum(door: Door, tmp_path: Path) -> None:
    place = replace(Place.within(tmp_path / "a"), given=False)
    door.prepare(place)
    once = door(place)
    again = place.again(1)
    twice = door(again)
    assert once is not None
    assert twice is not None
    for said in (*place.said, *again.said):
        assert ALONE in said
    if "Bayesian" in door.name:  # a worst case beside it is called that
        assert f"{ALONE}: worst-case ε = " in again.said[-1]
    elif door.keyed:
        assert total(again.said[-1]) > 1.2 * once.epsilon
    else:  # what is said is of everything
        assert twice.epsilon > 1.2 * once.epsilon


X = np.random.default_rng(5).normal(size=(400, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(float)
ORDER = np.random.default_rng(1).permutation(400)
FORMS: dict[str, Callable[[], tuple[object, ...]]] = {
    "arrays": lambda: (X.copy(), Y.copy()),
    "float64": lambda: (X.astype(float), Y),
    "tensors": lambda: (torch.from_numpy(X), torch.from_numpy(Y)),
    "lists": lambda: (X.tolist(), Y.tolist()),
    "in another order": lambda: (X[ORDER], Y[ORDER]),
    "a frame": lambda: (pd.DataFrame(X, columns=list("abc")).assign(y=Y),),
    "a frame of texts": lambda: (pd.DataFrame(X, columns=list("abc")).astype(str),),
    "other targets": lambda: (X, 1 - Y),
    "two columns": lambda: (X[:, 1:], Y),
    "most rows": lambda: (X[:250], Y[:250]),
    "a few": lambda: (X[300:], Y[300:]),
}
PRICE = (SampledGaussian(noise_multiplier=5.0),)


def charged(*parts: object) -> float:
    """Return the ε of all together after one more charge."""
    ledger = Ledger.of(*parts)
    ledger.charge(Entry(kind="release", of=ledger.id, events=PRICE))
    found = ledger.altogether(DELTA)
    assert found is not None
    return found.epsilon


def test_rows_are_known_in_every_form() -> None:
    spent = 0.0
    for name, form in FORMS.items():
        now = charged(*form())
        assert now > spent, name
        spent = now
    every = SampledGaussian(noise_multiplier=5.0 / len(FORMS) ** 0.5)
    joint = Ledger().worst_case(DELTA, (every,))
    assert joint is not None
    assert spent == pytest.approx(joint.epsilon, rel=1e-9)


@pytest.mark.parametrize("decimals", [None, 2])
@pytest.mark.parametrize("rows", [100, 5000])
def test_other_rows_of_the_same_population_have_an_account_of_their_own(
    rows: int, decimals: int | None
) -> None:
    def drawn(seed: int) -> NDArray[np.float64]:
        found = np.random.default_rng(seed).normal(50, 10, size=(rows, 4))
        return found if decimals is None else found.round(decimals)

    first, others = (charged(drawn(one)) for one in (10 * rows, 10 * rows + 1))
    assert first == others


def test_tables_of_nobody_have_one_account_as_those_of_one_record_do() -> None:
    """Otherwise the second receipt would tell no record from one."""
    empty = [charged(np.zeros((0, 2)), np.zeros(0)) for _ in range(2)]
    assert empty == [charged(np.ones((1, 2)), np.zeros(1)) for _ in range(2)]
    assert empty[0] < empty[1]
    assert charged() == charged() == empty[0]  # of what no records are known of


def test_tables_that_a_third_shows_to_be_one_are_joined() -> None:
    rows = np.random.default_rng(7).normal(size=(300, 2))
    assert charged(rows[:150]) == charged(rows[150:])
    whole = charged(rows)
    three = Ledger().worst_case(DELTA, (SampledGaussian(noise_multiplier=5 / 3**0.5),))
    assert three is not None
    assert whole == pytest.approx(three.epsilon, rel=1e-9)


MODEL = BayesianLogisticRegression.unweighted(limit=2.0, intercept=True)


def test_nothing_is_refused_without_a_budget_and_a_declared_one_counts_all() -> None:
    data = anew(logistic_data(700, 3, seed=11))
    route = ObjectivePerturbation(rows=700)
    made = [bdpvi.fit_private(MODEL, data, epsilon=1.0, route=route) for _ in range(4)]
    assert all(one.receipt.bound.epsilon == 1 for one in made)
    frame = pd.DataFrame(data[0].numpy()).add_prefix("x").assign(y=data[1].numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        limit = Budget(1.5, DELTA)
        asked: dict[str, Any] = {"target": "y", "positive": 1.0, "progress": False}
        with pytest.raises(BudgetExceededError, match="would bring the total to"):
            flat.private(frame, epsilon=1.0, budget=limit, **asked)
        flat.private(frame, epsilon=1.0, budget=Budget(9.0, DELTA), **asked)


def test_a_given_ledger_is_for_what_it_is_given_to() -> None:
    data = anew(logistic_data(700, 3, seed=12))
    route = ObjectivePerturbation(rows=700)
    bdpvi.fit_private(MODEL, data, epsilon=1.0, route=route)
    own = bdpvi.fit_private(MODEL, data, epsilon=1.0, route=route, ledger=Ledger())
    assert ALONE not in own.receipt.meaning


# --- targets that were refused --------------------------------------------------------------------


def certified(path: Path | None = None) -> bdpvi.Fit:
    model = BayesianLogisticRegression()
    ledger = None if path is None else Ledger.at(path)
    rows = anew(logistic_data(100, 1, seed=21))
    return bdpvi.fit(model, Laplace(model), rows, ledger=ledger, progress=False)


ASKED: dict[str, Any] = {"delta": 1e-3, "guarantee": BayesianDP()}


@pytest.mark.usefixtures("quick")
@pytest.mark.filterwarnings("ignore:delta")
@pytest.mark.parametrize("kept", [False, True])
def test_a_target_found_by_trying_says_so(kept: bool, tmp_path: Path) -> None:
    """Also if each try is with a fit of its own."""
    path = tmp_path / "people.jsonl" if kept else None
    for epsilon in (0.05, 0.1):
        missed = f"epsilon={epsilon} is missed by the certificate"
        with pytest.raises(BudgetExceededError, match=missed):
            bdpvi.release(certified(path), epsilon=epsilon, **ASKED)
    fit = certified(path)
    for wrong in (-1.0, float("nan")):  # public: refused whatever the records are
        with pytest.raises(ValueError, match="epsilon"):
            bdpvi.release(fit, epsilon=wrong, **ASKED)
    assert not fit.ledger.entries()
    made = bdpvi.release(fit, epsilon=9.0, **ASKED)
    assert "(target, after 2 refused targets)" in str(made.receipt)
    assert b"after 2 refused targets" in release_bytes(made)
    if path is not None:
        assert len(follow(path, path.read_bytes()).refused) == 2


# --- records that are copies ----------------------------------------------------------------------


def told(rows: NDArray[np.float64], y: NDArray[np.float64]) -> list[str]:
    model = BayesianLogisticRegression()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        bdpvi.fit(model, Laplace(model), (rows, y), progress=False)
    return [str(one.message) for one in found if "copies" in str(one.message)]


def test_the_owner_is_told_of_records_that_are_copies() -> None:
    random = np.random.default_rng(0)
    rows, y = random.normal(size=(60, 3)), random.integers(0, 2, 60).astype(float)
    (said,) = told(np.tile(rows, (10, 1)), np.tile(y, 10))
    assert "90 % of the records are copies" in said
    several = random.normal(size=(500, 3))
    labels = random.integers(0, 2, 500).astype(float)
    (said,) = told(np.vstack([several, several[:50]]), np.append(labels, labels[:50]))
    assert "9.09 %" in said
    assert not told(several, labels)


def test_categories_and_whole_numbers_are_no_copies() -> None:
    random = np.random.default_rng(1)
    y = (random.random(2000) < 0.03).astype(float)
    ages = random.integers(20, 80, 2000).astype(float)
    sex, ward = random.integers(0, 2, 2000), random.integers(0, 30, 2000)
    for rows in (ages[:, None], np.stack([ages, sex], 1), np.stack([ages, ward, sex], 1)):
        assert not told(rows.astype(float) / 30, y)
    assert not told(np.eye(8)[random.integers(0, 8, 2000)], y)
