"""What a promise says of its records: each fact once, none against another, on every page alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from doors import CLIPPED, DELTA, DOORS, MODEL, Door, _linear
from gone import Ran
from simulated import logistic_data
from torch.nn import Linear, functional
from torch.utils.data import TensorDataset

import bdpvi
from bdpvi import BayesianAccountant, Dataset, Ledger, PrivacyUtilityWarning, guides
from bdpvi.datasets import ColumnType, Schema, load_breast_cancer
from bdpvi.datasets.given import sign
from bdpvi.datasets.public import public_table
from bdpvi.federated.federated import Federation
from bdpvi.federated.rounds import Rounds
from bdpvi.privacy.assumptions import CONSTANTS, Assumption, facts
from bdpvi.privacy.book import Book
from bdpvi.privacy.cost import Bound, Kind
from bdpvi.privacy.gaussian import GAUSSIAN
from bdpvi.programs.dpvi import DPVI
from bdpvi.releases.account import Statement
from bdpvi.releases.receipt import Receipt

DOCS = Path(__file__).parents[2] / "docs"
GIVEN = Assumption.GIVEN_FEATURES
SHORT = "conditional on features made without reading the table"
HOW = {"declared": {"features": "divided by 10, as in form 7"}}
RAW_TABLES = ("private", "command", "synthesize", "describe")
"""Doors that are given raw rows, and make the features themselves."""
DECLARED: tuple[dict[str, Any], ...] = ({}, HOW)


@pytest.fixture(autouse=True)
def _store() -> Any:
    yield
    pyro.clear_param_store()


def of(door: Door) -> bool:
    """Return whether a door is given arrays."""
    return not door.name.startswith(RAW_TABLES)


# --- features that the owner made -----------------------------------------------------------------


def test_a_promise_for_arrays_says_that_they_were_made_without_the_table(ran: Ran) -> None:
    assert ran.promised is not None
    assert (GIVEN in ran.promised.assumptions) is of(ran.door)
    assert (GIVEN.value in ran.promised.meaning) is of(ran.door)
    assert (SHORT in str(ran.promised)) is of(ran.door)


def records(noted: dict[str, Any]) -> Dataset:
    """Return records whose features were made as noted."""
    plain = logistic_data(2000, 3)
    return Dataset(plain.x, plain.y, preprocessing=noted)


def _fit(noted: dict[str, Any]) -> Bound:
    fit = bdpvi.fit(
        CLIPPED, guides.MeanField(CLIPPED, noise_scale=1.0), records(noted), progress=False
    )
    receipt = bdpvi.release(fit, 1, epsilon=1.0).receipt
    assert (SHORT in str(receipt)) is (not noted)
    return receipt.bound


def _route(route: Any) -> Callable[[dict[str, Any]], Bound]:
    def call(noted: dict[str, Any]) -> Bound:
        release = bdpvi.fit_private(MODEL, records(noted), epsilon=1.0, route=route)
        assert (GIVEN.value in release.receipt.meaning) is (not noted)
        return release.receipt.bound

    return call


def _by_index(noted: dict[str, Any]) -> Bound:
    data: Any = TensorDataset(*records({}).parts.part)
    data.preprocessing = noted
    route = DPVI(rows=2000, steps=5, batch=50, draws=1)
    return bdpvi.fit_private(MODEL, data, epsilon=1.0, route=route).receipt.bound


def _program(noted: dict[str, Any]) -> Bound:
    guide = pyro.infer.autoguide.AutoNormal(_linear)
    settings: dict[str, Any] = {"clip": 1.0, "noise_multiplier": 8.0, "rate": 0.1}
    made = bdpvi.PrivateSVI(
        _linear, guide, pyro.optim.Adam({"lr": 0.1}), pyro.infer.Trace_ELBO(), **settings
    )
    data = records(noted)
    made.step(Dataset(data.x.float(), data.y.float(), preprocessing=noted))
    return made.worst_case(DELTA)


def _network(noted: dict[str, Any]) -> Bound:
    module = Linear(3, 1).double()
    made = bdpvi.make_private(
        module,
        torch.optim.SGD(module.parameters(), lr=0.1),
        loss=lambda out, y: functional.binary_cross_entropy_with_logits(out[:, 0], y),
        data=records(noted),
        rate=0.1,
        max_grad_norm=1.0,
        noise_multiplier=8.0,
    )
    made.step()
    result = made.cost(DELTA).worst_case
    assert result is not None
    assert (GIVEN in result.assumptions) is (GIVEN in made.worst_case(DELTA).assumptions)
    return result


def _federated(noted: dict[str, Any]) -> Bound:
    data = records(noted)
    clients = [data.select(rows) for rows in torch.arange(len(data)).tensor_split(2)]
    rounds = Rounds(
        clients=2, size=3, clip=50.0, noise_multiplier=8.0, record_rate=1.0, record_clip=1.0
    )
    fit = bdpvi.federated.fit_federated(
        CLIPPED, guides.MeanField(CLIPPED), clients, Federation(rounds), rounds=1, progress=False
    )
    return fit.worst_case(DELTA, "record")


def _estimator(noted: dict[str, Any]) -> Bound:
    from bdpvi.sklearn import PrivateLogisticRegression

    data = records({})
    public: dict[str, Any] = {"bounds": (-4, 4)} if noted else {}
    made = PrivateLogisticRegression(1.0, classes=(0, 1), **public)
    result: Bound = made.fit(data.x.numpy(), data.y.numpy()).bound_
    return result


@pytest.mark.parametrize("noted", DECLARED, ids=("arrays", "declared"))
@pytest.mark.parametrize(
    "door",
    [
        _fit,
        _route(bdpvi.regression.ObjectivePerturbation(rows=2000)),
        _route(bdpvi.regression.NoisyScores(rows=2000)),
        _route(DPVI(rows=2000, steps=5, batch=50, draws=1)),
        _by_index,
        _program,
        _network,
        _federated,
        _estimator,
    ],
)
def test_public_constants_that_are_declared_take_its_place(
    door: Callable[[dict[str, Any]], Bound], noted: dict[str, Any]
) -> None:
    found = door(noted)
    assert (GIVEN in found.assumptions) is (not noted)
    public = {Assumption.DECLARED_FACTS, Assumption.PUBLIC_CONSTANTS}
    assert not noted or public.intersection(found.assumptions)


@pytest.mark.parametrize("said", ["by form 7", {"features": 3}, ["features"]])
def test_a_declaration_of_another_form_is_refused_before_a_charge(said: object) -> None:
    ledger, plain = Ledger(), logistic_data(200, 3)
    data = Dataset(plain.x, plain.y, preprocessing={"declared": said})
    with pytest.raises(ValueError, match=r"preprocessing\['declared'\] must be texts by name"):
        bdpvi.fit_private(MODEL, data, epsilon=1.0, ledger=ledger)
    assert ledger.entries() == ()
    remedy = Dataset(plain.x, plain.y, preprocessing={"declared": {"features": "ages over 100"}})
    told = bdpvi.fit_private(MODEL, remedy, epsilon=1.0, ledger=ledger).receipt.meaning
    assert "Declared: features: ages over 100" in told


def test_an_accountant_says_what_it_does_not_see() -> None:
    for rate, sampled in ((1.0, False), (0.1, True)):
        account = BayesianAccountant()
        account.step(4.0, rate, torch.ones(300))
        bounds = [one for one in vars(account.cost(1e-3)).values() if isinstance(one, Bound)]
        assert bounds
        for bound in bounds:
            assert GIVEN in bound.assumptions
            assert (Assumption.POISSON_BATCHES in bound.assumptions) is sampled


def test_a_federation_assumes_of_its_clients_that_they_sample() -> None:
    rounds = Rounds(
        clients=10, size=2, clip=1.0, noise_multiplier=8.0, record_rate=0.5, record_clip=0.1
    )
    federation = Federation(rounds)
    federation.sampled(1)
    for unit in ("client", "record"):
        for found in (federation.worst_case(DELTA, unit), federation.cost(DELTA, unit).worst_case):
            assert found is not None
            assert GIVEN in found.assumptions
            assert (Assumption.POISSON_BATCHES in found.assumptions) is (unit == "record")


# --- what shows -----------------------------------------------------------------------------------

RAW = np.random.default_rng(0).standard_t(2.2, (4000, 3))


def made(name: str) -> np.ndarray[Any, Any]:
    """Return the same table after a step of scikit-learn that was fitted to it."""
    from sklearn import decomposition, preprocessing

    steps: dict[str, Any] = {
        "standard": preprocessing.StandardScaler(),
        "range": preprocessing.MinMaxScaler(),
        "quantiles": preprocessing.QuantileTransformer(n_quantiles=100),
        "robust": preprocessing.RobustScaler(),
        "components": decomposition.PCA(),
    }
    return np.asarray(steps[name].fit_transform(RAW))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("standard", "StandardScaler"),
        ("range", "MinMaxScaler"),
        ("quantiles", "QuantileTransformer"),
        ("robust", "RobustScaler"),
        ("components", "PCA"),
    ],
)
def test_a_table_that_was_made_from_its_rows_shows_it(name: str, words: str) -> None:
    table = made(name)
    coded = (RAW[:, :1] > 0).astype(float)
    for one in (table, table.astype(np.float32), np.hstack([table, coded])):
        assert words in sign(one)
    assert not sign(np.hstack([table, RAW[:, :1] + 5]))  # one column that was left as it was
    assert "ranks" in sign(np.argsort(np.argsort(RAW, axis=0), axis=0))


@pytest.mark.parametrize(
    "raw",
    [
        RAW,
        RAW[:19] - RAW[:19].mean(0),
        np.random.default_rng(1).normal(size=(4000, 3)),
        np.random.default_rng(1).integers(0, 2, (4000, 5)),
        np.zeros((4000, 2)),
        np.empty((0, 2)),
    ],
)
def test_a_raw_table_shows_nothing(raw: np.ndarray[Any, Any]) -> None:
    assert not sign(raw)


@pytest.mark.parametrize("noted", DECLARED, ids=("arrays", "declared"))
def test_the_owner_is_told_where_it_shows(
    noted: dict[str, Any], recwarn: pytest.WarningsRecorder
) -> None:
    x = torch.from_numpy(made("standard"))
    data = Dataset(x, (x[:, 0] > 0).double(), preprocessing=noted)
    calls: tuple[Callable[[], object], ...] = (
        lambda: bdpvi.fit_private(MODEL, data, epsilon=1.0),
        lambda: bdpvi.fit(
            CLIPPED, guides.MeanField(CLIPPED, noise_scale=1.0), data, progress=False
        ),
    )
    for call in calls:
        recwarn.clear()
        call()
        told = [one for one in recwarn if "StandardScaler" in str(one.message)]
        assert bool(told) is (not noted)
        assert all(one.category is PrivacyUtilityWarning for one in told)


def test_a_pipeline_that_learns_from_the_rows_is_seen(recwarn: pytest.WarningsRecorder) -> None:
    from sklearn import feature_selection, pipeline, preprocessing

    from bdpvi.sklearn import PrivateLogisticRegression

    x, y = RAW, (RAW[:, 0] > 0).astype(int)
    for step, learns in (
        (preprocessing.StandardScaler(), True),
        (feature_selection.SelectKBest(k=2), True),
        (preprocessing.TargetEncoder(), True),
        (preprocessing.FunctionTransformer(lambda one: one / 10), False),
        (preprocessing.Normalizer(), False),
        ("passthrough", False),
    ):
        estimator = PrivateLogisticRegression(1.0, classes=(0, 1), bounds=(-20, 20))
        whole = pipeline.Pipeline([("first", step), ("last", estimator)])
        recwarn.clear()
        whole.fit(x, y)
        told = [str(one.message) for one in recwarn if "was fitted to the same rows" in str(one)]
        assert bool(told) is learns
        assert all(type(step).__name__ in one for one in told)


def test_loaders_say_that_their_constants_were_read_from_the_table() -> None:
    data = load_breast_cancer().train
    release = bdpvi.fit_private(MODEL, data, epsilon=1.0)
    assert Assumption.CONSTANTS_FROM_TABLE in release.receipt.bound.assumptions
    assert Assumption.PUBLIC_CONSTANTS not in release.receipt.bound.assumptions
    assert "conditional on preprocessing bounds read from this table" in str(release.receipt)
    frame = pd.DataFrame({"a": RAW[:, 0]})
    every = public_table("a", frame, pd.Series(RAW[:, 0] > 0), "positive").preprocessing
    assert every["encoding"]["origin"] == "from this table"


# --- one list of facts ----------------------------------------------------------------------------


def contradictions(words: str) -> list[str]:
    """Return the facts about all constants, if there is more than one of them."""
    about_all = re.findall(r"(?:The|on the) preprocessing bounds and categories[^.;]*", words)
    made_and_not = [SHORT, "read from this table"]
    found = about_all if len(about_all) > 1 else []
    return found + (made_and_not if all(one in words for one in made_and_not) else [])


def test_no_promise_says_two_things_of_one_constant(ran: Ran) -> None:
    assert ran.promised is not None
    words = f"{ran.promised}. {ran.promised.meaning}"
    assert not contradictions(words)
    for path in (ran.place.out, ran.place.out / "release.json"):
        if path.is_file() and path.suffix in ("", ".json"):
            receipt = bdpvi.load_release(path).receipt
            assert not contradictions(f"{receipt}. {receipt.meaning}")


def test_of_several_origins_each_is_that_of_some_constants() -> None:
    for one in CONSTANTS:
        assert facts([one]) == [one.value]
    said = facts(list(CONSTANTS))
    assert len(set(said)) == len(CONSTANTS)
    assert all("ome preprocessing bounds" in one for one in said)
    frame = pd.DataFrame({"age": RAW[:, 0], "dose": RAW[:, 1]})
    schema = Schema({"age": ColumnType(low=-9, high=9)}, "By law.")
    meaning = bdpvi.synthesize(frame, schema, epsilon=1.0).receipt.meaning
    assert "Some preprocessing bounds and categories are public" in meaning
    assert "Some preprocessing bounds and categories were estimated privately" in meaning


@pytest.mark.parametrize(("epsilon", "chance"), [(0.5, "62.25 of 100"), (2.0, "88.08 of 100")])
def test_one_epsilon_has_one_chance_on_every_page(epsilon: float, chance: str) -> None:
    bound = Bound(kind=Kind.WORST_CASE, epsilon=epsilon, delta=1e-6, by="")
    said = bound.membership.in_one_sentence("one record")
    assert chance in said
    account = Statement(Book("a"), 1e-6)
    account.__dict__["total"] = bound
    assert said in account.guarantee
    receipt = Receipt(
        worst_case=bound, source="", draws=1, temperature=None, noise_scale=None, step=None
    )
    assert said in receipt.in_one_sentence

    from types import SimpleNamespace

    from bdpvi.synthesis.content import TableReceipt
    from bdpvi.synthesis.report import _meaning

    quality: Any = SimpleNamespace(receipt=TableReceipt(worst_case=bound, source=""))
    assert said[1:] in _meaning(quality)


def test_the_page_on_numbers_states_the_chances_of_the_program() -> None:
    """Right guesses by noisy sums and by any mechanism, and members found, rounded up."""
    page = (DOCS / "which-epsilon.md").read_text("utf-8")
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert len(rows) == 3
    for epsilon, *stated in rows:
        given: dict[str, Any] = {
            "kind": Kind.WORST_CASE, "epsilon": float(epsilon), "delta": 1e-5
        }  # fmt: skip
        sums, any_ = (Bound(**given, by=by) for by in (GAUSSIAN, ""))
        known = (sums.attack_success, any_.attack_success, sums.membership.rates[0][1])
        for number, said, unit in zip(known, stated, (0.1, 0.1, 0.01), strict=True):
            assert 0 <= float(said) - 100 * number <= unit + 1e-9, epsilon


assert {door.name for door in DOORS if of(door)} > {"PrivateSVI", "make_private", "federation"}
