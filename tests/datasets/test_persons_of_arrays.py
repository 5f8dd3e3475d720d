"""Whom ε protects where records come as arrays, mappings or by index."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor
from torch.utils.data import TensorDataset

import bdpvi
from bdpvi import Dataset
from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi.datasets.units import of_people
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.worst_case import epsilon as worst_case
from bdpvi.releases.persons import ONE_ROW
from bdpvi.tables import Unit

N, K = 300, 3
PERSONS = np.repeat(np.arange(N // 5), 5)
"""Five rows of each person."""
KEPT = np.flatnonzero(np.arange(N) % 5 < K)


def rows() -> tuple[Tensor, Tensor]:
    x = torch.randn(N, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, x.sum(1)


def model(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


@pytest.mark.parametrize(
    "persons",
    [
        PERSONS,
        torch.from_numpy(PERSONS),
        PERSONS.tolist(),
        pd.Series(PERSONS, index=PERSONS),
        [f"p{one}" for one in PERSONS],
    ],
)
def test_the_first_rows_of_each_person_are_used(persons: Any) -> None:
    x, y = rows()
    with pytest.warns(PrivacyUtilityWarning, match=f"{N - len(KEPT)} rows left out: no person"):
        data = Dataset.of(x, y, unit=persons, rows_per_unit=K)
    torch.testing.assert_close(data.x, x[KEPT], rtol=0, atol=0)
    torch.testing.assert_close(data.y, y[KEPT], rtol=0, atol=0)
    assert data.people.rows_per_unit == K
    assert data.ledger.rows_per_unit == K


def test_a_column_of_persons_is_no_feature() -> None:
    x, y = rows()
    frame = pd.DataFrame(x.numpy(), columns=["a", "b"]).assign(who=PERSONS)
    given: dict[str, Any] = {"weights": np.arange(N) / N, "largest_weight": 1.0}
    data = Dataset.of(frame, y.numpy(), unit="who", rows_per_unit=K, **given)
    assert data.feature_names == ("a", "b")
    assert data.people.unit == "who"
    assert data.weights is not None
    torch.testing.assert_close(data.weights, torch.from_numpy(KEPT / N))
    torch.testing.assert_close(data.x, x[KEPT])
    assert "weights" in str(data.preprocessing)


def forms() -> dict[str, tuple[Any, Any]]:
    x, y = rows()
    named = {"x": x, "y": y, "who": PERSONS}
    frame = pd.DataFrame({"x": x[:, 0].numpy(), "y": y.numpy(), "who": PERSONS})
    return {
        "a pair": ((x, y), PERSONS),
        "a tuple": ((x, x, y), PERSONS),
        "a mapping": (named, "who"),
        "a frame": (frame, "who"),
        "records by index": (TensorDataset(x, y), PERSONS),
        "a Dataset": (Dataset(x, y), PERSONS),
    }


@pytest.mark.parametrize("name", forms())
def test_every_form_has_the_rows_and_people(name: str) -> None:
    data, unit = forms()[name]
    found, people, said = of_people(data, Unit(unit, rows=K))
    assert people is not None
    assert (people.rows_per_unit, said) == (K, {})
    assert people.unit == ("who" if isinstance(unit, str) else "unit")
    values = found.values() if isinstance(found, dict) else found
    sizes = (
        [len(found)] if name in ("a frame", "records by index", "a Dataset") else map(len, values)
    )
    assert {*sizes} == {len(KEPT)}
    assert "who" not in found if name in ("a mapping", "a frame") else True


@pytest.mark.parametrize("name", ["a pair", "a mapping", "records by index", "a Dataset"])
def test_a_release_is_charged_for_all_rows_of_a_person(name: str) -> None:
    data, unit = forms()[name]
    route = bdpvi.DPVI(rows=N, steps=5, draws=2, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        release = bdpvi.fit_private(model, data, epsilon=2.0, route=route, unit=Unit(unit, rows=K))
    whose = "who" if isinstance(unit, str) else "unit"
    assert f"to add or remove all records, at most {K}, of one person ('{whose}')" in str(release)
    assert release.cost.worst_case is not None
    assert 1.9 < release.cost.worst_case.epsilon <= 2.0


def test_the_noise_is_that_of_k_rows() -> None:
    """As an accountant that knows nothing of units finds it, from the events as they count."""
    x, y = rows()
    route = bdpvi.DPVI(rows=N, steps=5, draws=2, progress=False)
    found = {}
    for k in (1, K):
        ledger = bdpvi.Ledger(unit="unit", rows_per_unit=k)
        given = Unit(PERSONS, rows=k)
        bdpvi.fit_private(model, (x, y), epsilon=2.0, route=route, unit=given, ledger=ledger)
        (event,) = [one for entry in ledger.entries() for one in entry.events or ()]
        assert isinstance(event, SampledGaussian)
        found[k] = event
        bound = worst_case([event.for_rows(k)], 1e-5)
        assert bound is not None
        assert bound.epsilon == pytest.approx(2.0, abs=0.02)
    assert found[K].noise_multiplier > 2 * found[1].noise_multiplier


def test_a_ledger_of_persons_asks_whose_rows_they_are() -> None:
    x, y = rows()
    route = bdpvi.DPVI(rows=N, steps=5, draws=2, progress=False)
    ledger = bdpvi.Ledger(unit="patient", rows_per_unit=K)
    given: dict[str, Any] = {"epsilon": 2.0, "route": route, "ledger": ledger}
    with pytest.raises(ValueError, match=r"at most 3, of one person \('patient'\): say whose"):
        bdpvi.fit_private(model, (x, y), **given)
    with pytest.raises(ValueError, match="say whose"):
        bdpvi.fit_private(model, (x, y), unit=Unit(), **given)
    assert not ledger.entries()
    bdpvi.fit_private(model, (x, y), unit=Unit(PERSONS, rows=K), **given)
    assert (ledger.unit, ledger.rows_per_unit) == ("patient", K)


def test_steps_are_charged_to_the_ledger_of_the_persons_in_a_data_set() -> None:
    x, y = rows()
    ledger = bdpvi.Ledger(unit="patient", rows_per_unit=K)
    given: dict[str, Any] = {"clip": 1.0, "noise_multiplier": 2.0, "rate": 0.1, "ledger": ledger}
    guide, optim = AutoNormal(model), pyro.optim.Adam({"lr": 0.05})
    svi = bdpvi.PrivateSVI(model, guide, optim, Trace_ELBO(), **given)
    with pytest.raises(ValueError, match="say whose"):
        svi.step(x, y)
    svi.step(Dataset.of(x, y, unit=Unit(PERSONS, rows=K)))
    assert svi.worst_case(1e-5).unit == "all records, at most 3, of one person ('patient')"
    assert [entry.count for entry in ledger.entries()] == [10]
    pyro.clear_param_store()


def test_who_says_nothing_is_asked_once() -> None:
    x, y = rows()
    route = bdpvi.DPVI(rows=N, steps=5, draws=2, progress=False)

    def asked(data: Any, **given: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            bdpvi.fit_private(model, data, epsilon=5.0, route=route, **given)
        return [str(one.message) for one in seen if str(one.message).startswith("unit: ")]

    assert len(asked((x, y))) == 1
    assert len(asked({"x": x, "y": y})) == 1
    assert len(asked(Dataset.of(x, y))) == 1
    for data, given in (
        ((x, y), {"unit": Unit()}),
        ({"x": x, "y": y}, {"unit": Unit()}),
        (Dataset.of(x, y, unit=Unit()), {}),
        (Dataset.of(x, y, unit=PERSONS), {}),
    ):
        assert not asked(data, **given)


def test_one_row_each_is_a_declaration() -> None:
    x, y = rows()
    data = Dataset.of(x, y, unit=Unit())
    assert data.preprocessing == {"declared": {"persons": ONE_ROW}}
    route = bdpvi.DPVI(rows=N, steps=5, draws=2, progress=False)
    release = bdpvi.fit_private(model, (x, y), epsilon=5.0, route=route, unit=Unit())
    assert f"persons: {ONE_ROW}" in release.receipt.about


def test_bad_persons_are_refused_before_a_charge() -> None:
    x, y = rows()
    ledger = bdpvi.Ledger()
    for unit, data, words in (
        (PERSONS[:9], (x, y), "unit has 9 entries"),
        (torch.rand(N), (x, y), "names nobody exactly"),
        (torch.zeros(N, 2), (x, y), "got the shape"),
        ("who", (x, y), "unit='who' must be a column"),
        ("who", {"x": x, "y": y}, "unit='who' must be a column"),
        (Unit(PERSONS, rows=2, other_people=True), (x, y), "other_people"),
        (PERSONS, Dataset.of(x, y, unit=PERSONS), "where they were made"),
    ):
        with pytest.raises(ValueError, match=words):
            bdpvi.fit_private(model, data, epsilon=1.0, unit=unit, ledger=ledger)
    with pytest.raises(ValueError, match="rows_per_unit=2 needs unit="):
        Dataset.of(x, y, rows_per_unit=2)
    with pytest.raises(ValueError, match="unit says it already"):
        Dataset.of(x, y, unit=Unit(PERSONS, rows=3), rows_per_unit=2)
    with pytest.raises(ValueError, match="unit must be the name of a column"):
        bdpvi.private(
            pd.DataFrame({"a": [0.0, 1.0], "y": ["no", "yes"]}),
            target="y",
            positive="yes",
            epsilon=1.0,
            unit=PERSONS,  # type: ignore[arg-type]
        )
    assert not ledger.entries()
