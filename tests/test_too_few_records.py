"""Too few records: each way out works, for a number that was declared or counted."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
from simulated import logistic_data

from bdpvi import (
    DPVI,
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegression,
    Budget,
    Dataset,
    Ledger,
    TooFewRecordsError,
    fit_private,
)
from bdpvi.datasets import constants_of
from bdpvi.regression import NoisyScores, ObjectivePerturbation
from bdpvi.sklearn import PrivateLogisticRegression
from bdpvi.tables import Public, Request
from bdpvi.tables.encoded import check
from bdpvi.tables.validation import purchase

LOGISTIC = BayesianLogisticRegression(intercept=True)
MODELS: dict[str, tuple[Any, Any]] = {
    "logistic": (LOGISTIC, ObjectivePerturbation()),
    "linear": (BayesianLinearRegression(largest=5.0), DPVI(steps=2)),
    "poisson": (BayesianPoissonRegression(largest=9), DPVI(steps=2)),
}


def ways(call: Callable[[], Any]) -> dict[str, float]:
    """Return what a refusal for too few records says would do, and the number of records."""
    with pytest.raises(TooFewRecordsError) as refused:
        call()
    words = str(refused.value)
    names = {"epsilon": "epsilon=", "rows": "rows=", "features": "at most ", "columns": "at most "}
    found = {name: re.search(rf"{start}([0-9.e+]+)", words) for name, start in names.items()}
    return {name: float(one[1]) for name, one in found.items() if one} | {"": len(words)}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("declared", [True, False])
def test_too_few_records_for_intervals_have_ways_that_work(name: str, declared: bool) -> None:
    (model, other), data = MODELS[name], logistic_data(700, 9)

    def of(features: int, epsilon: float, rows: float | None, ledger: Ledger) -> Any:
        some = Dataset(data.x[:, :features], data.y)
        route = NoisyScores(rows=rows, draws=2)
        return fit_private(model, some, epsilon=epsilon, route=route, ledger=ledger)

    ledger = Ledger()
    found = ways(lambda: of(9, 1.0, 700 if declared else None, ledger))
    assert bool(ledger.entries()) is not declared
    of(9, found["epsilon"], found["rows"], copy(ledger))
    if "features" in found:
        of(int(found["features"]), 1.0, found["rows"], copy(ledger))
    fit_private(model, data, epsilon=1.0, route=other, ledger=copy(ledger))


def copy(ledger: Ledger) -> Ledger:
    made = Ledger()
    for entry in ledger.book().charges:
        made.charge(entry)
    return made


NUMBERS = pd.DataFrame({name: np.random.default_rng(0).normal(size=600) for name in "abcdefgh"})
NUMBERS = NUMBERS.assign(sick=np.where(NUMBERS["a"] > 0, "yes", "no"))


def asked(ledger: Path, epsilon: float = 1.0, **more: Any) -> Any:
    numeric = [name for name in "abcdefgh" if name not in more.get("drop", ())]
    given = {"numeric": numeric, "budget": Budget(20.0), "ledger": ledger, **more}
    return flat.private(
        NUMBERS, target="sick", positive="yes", epsilon=epsilon, progress=False, **given
    )


@pytest.mark.parametrize("declared", [True, False])
def test_too_few_records_for_constants_have_ways_that_work(declared: bool, tmp_path: Path) -> None:
    given: dict[str, Any] = {"expected_rows": 600} if declared else {}
    public = constants_of({"source": "By law.", **{name: [-3, 3] for name in "abcdefgh"}})
    for at in range(3):
        ledger = tmp_path / str(at)
        found = ways(lambda ledger=ledger: asked(ledger, **given))  # type: ignore[misc]
        assert bool(Ledger.at(ledger).entries()) is not declared
        if at == 0:
            asked(ledger, found["epsilon"], **given)
        elif at == 1:
            asked(ledger, constants=public, numeric=(), **given)
        elif "columns" in found:
            asked(ledger, drop="abcdefgh"[int(found["columns"]) :], **given)


def test_yes_or_no_needs_fewer_records_than_other_models() -> None:
    """At ε = 1.3 the table has 0.6 of the rows needed."""
    public = Public(rows=600, numeric=[*"abcdefgh"])
    usual = Request(target="sick", positive="yes", epsilon=1.3, public=public)
    price = purchase(usual, [*NUMBERS])
    assert 0.55 < 600 / price.need(usual.distance) < 0.65
    check(usual, price, usual.whole())
    for other in (
        replace(usual, intervals=True),
        replace(usual, model=BayesianLinearRegression(largest=5.0)),
    ):
        with pytest.raises(TooFewRecordsError):
            check(other, price, other.whole())


def test_a_declared_number_is_judged_before_a_budget_is_fixed(tmp_path: Path) -> None:
    """The ledger's default budget is the first ε: the remedy, a larger one, must not be over it."""
    given: dict[str, Any] = {"expected_rows": 600, "budget": None}
    found = ways(lambda: asked(tmp_path / "l", **given))
    asked(tmp_path / "l", found["epsilon"], **given)
    more = {**given, "intervals": True, "ledger": tmp_path / "i"}
    found = ways(lambda: asked(epsilon=2.0, **more))
    assert Ledger.at(tmp_path / "i").budget is None
    asked(epsilon=found["epsilon"], **more)


def test_no_epsilon_beyond_the_budget_is_a_remedy(tmp_path: Path) -> None:
    """The default budget is the ε that was asked for, and a count of the records fixes it."""
    for at, more in enumerate(({}, {"intervals": True, "epsilon": 2.0})):
        given: dict[str, Any] = {"budget": None, "ledger": tmp_path / str(at), **more}
        found = ways(lambda given=given: asked(**given))  # type: ignore[misc]
        ledger = Ledger.at(tmp_path / str(at))
        assert ledger.entries()
        assert ledger.budget == Budget(given.get("epsilon", 1.0))
        assert "epsilon" not in found
    data = logistic_data(700, 9)
    for epsilon, named in ((2.0, False), (99.0, True)):

        def of(ledger: Ledger = Ledger(budget=Budget(epsilon))) -> Any:  # noqa: B008
            some = Dataset(data.x, data.y)
            return fit_private(LOGISTIC, some, epsilon=1.0, route=NoisyScores(), ledger=ledger)

        assert ("epsilon" in ways(of)) == named


def test_an_estimator_pays_for_nothing_where_it_could_be_refused(tmp_path: Path) -> None:
    data = logistic_data(300, 3)
    made = PrivateLogisticRegression(classes=(0, 1), intervals=True, ledger=str(tmp_path / "l"))
    with pytest.raises(ValueError, match="expected_rows=None: too few records"):
        made.fit(data.x.numpy(), data.y.numpy())
    assert not (tmp_path / "l").exists()


def test_an_estimator_judges_a_declared_number_before_it_buys_constants(tmp_path: Path) -> None:
    data = logistic_data(300, 3)
    made = PrivateLogisticRegression(
        epsilon=0.2, classes=(0, 1), intervals=True, expected_rows=300, ledger=str(tmp_path / "l")
    )
    found = ways(lambda: made.fit(data.x.numpy(), data.y.numpy()))
    assert not (tmp_path / "l").exists()
    made.set_params(epsilon=found["epsilon"]).fit(data.x.numpy(), data.y.numpy())
