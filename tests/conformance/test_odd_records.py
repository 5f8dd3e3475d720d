"""No record decides an exit: with an odd one or without it, the same happens at every door.

The same error or none, the same files, structure of what is shared, charges and warnings, but for
those that are for the owner only. A new door gets the law by being listed in ``DOORS``.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.optim import SGD
from torch.nn import Linear, functional
from typer.testing import CliRunner

import bdpvi
from bdpvi import BayesianDP, Ledger, datasets, guides, sklearn
from bdpvi.cli import app
from bdpvi.datasets.dataset import People
from bdpvi.datasets.table import Table
from bdpvi.federated.federated import Federation
from bdpvi.federated.rounds import Rounds
from bdpvi.networks import DPSGDSettings
from bdpvi.privacy.assumptions import Assumption
from bdpvi.programs.dpvi import DPVI

ROWS = 200
PUBLIC = {"source": "By law.", "age": [18, 98], "sex": ["F", "M"]}
LINES = (
    b'5,"oops,yes',
    b'7,x",yes',
    b"40,F",
    b"40,F,yes,1",
    b"inf,F,yes",
    b"stray,?,maybe",
    b",,",
    b"nan,F,yes",
    b"1e400,M,no",
    b"-1e308,M,yes",
    b"40,\xff\xfe\x00,no",
    b'"""',
)
"""Lines of a file."""
MORE_LINES = (
    b"",
    b"   ",
    b'"40","F","yes" ',
    b'"40" ,F,no',
    b"40;F;yes",
    b"TRUE,TRUE,TRUE",
    b"0x10,F,yes",
    b"9" * 5000 + b",F,yes",
    b"40,F,\r",
    b"2024-05-01,=1+1,no",
    b"\xef\xbb\xbfage,sex,sick",
    b"age,sex,sick",
    b"40," + b"F" * 200_000 + b",yes",
)
NUMBERS = (
    (np.nan, 0.0, 1.0),
    (np.inf, 0.0, 0.0),
    (1e300, -1e300, 1.0),
    (0.0, 0.0, 7.0),
    (0.0, 0.0, np.nan),
    (0.0, 0.0, -1.0),
    (0.0, 0.0, 0.5),
    (0.0, 0.0, 1e300),
    (0.0, 0.0, -np.inf),
    (1e12, 1e-300, 0.0),
    (np.nan, np.nan, np.nan),
    (0.0, 0.0, 1.0),
)
"""Two features and a target."""
MORE_NUMBERS = tuple((a, b, y) for a in (-1e308, 5e-324) for b in (0.0, np.inf) for y in (0.0, 3.0))


# --- what happens ---------------------------------------------------------------------------------


def structure(value: Any) -> Any:
    """Return what a JSON value is made of, without its numbers and texts."""
    if isinstance(value, dict):
        return {name: structure(one) for name, one in value.items()}
    if isinstance(value, list):
        found = {json.dumps(structure(one), sort_keys=True) for one in value}
        return sorted(found)  # how many there are may follow from noisy counts
    return type(value).__name__ if not isinstance(value, int | float) else "number"


def what_happens(call: Callable[[Any, Path], object], data: Any, folder: Path) -> dict[str, Any]:
    """Return everything about a call that its outsiders may see, but for noisy numbers."""
    folder.mkdir()
    pyro.clear_param_store()
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            call(data, folder)
            end = "whole"
        except Exception as error:  # of any kind: it is what is compared
            end = f"{type(error).__name__}: {error}"
    pyro.clear_param_store()
    files = sorted(one for one in folder.rglob("*") if one.is_file() and one.suffix != ".lock")
    book = Ledger.at(folder / "people.jsonl").entries()
    return {
        "end": end,
        "warnings": sorted({str(one.message) for one in said} - owners(said)),
        "files": [re.sub("[0-9a-f]{16}", "…", str(file.relative_to(folder))) for file in files],
        "shared": [
            structure(json.loads(file.read_text()))
            for file in files
            if file.suffix == ".json" and file.parent.name != "fit"
        ],
        "charges": [(one.kind, one.purpose.split(" ")[0], one.events, one.count) for one in book],
    }


def owners(said: list[warnings.WarningMessage]) -> set[str]:
    """Return the texts that are for the owner only."""
    texts = {str(one.message) for one in said}
    marks = ("for the owner only: ", "column ")  # of a table that is synthesized
    return {text for text in texts if text.startswith(marks)}


# --- doors of files -------------------------------------------------------------------------------


@lru_cache
def people() -> bytes:
    """Return a file."""
    random = np.random.default_rng(0)
    age, sex = random.normal(50, 10, ROWS).round(1), random.choice(["F", "M"], ROWS)
    sick = np.where(random.random(ROWS) < 1 / (1 + np.exp((50 - age) / 10)), "yes", "no")
    return pd.DataFrame({"age": age, "sex": sex, "sick": sick}).to_csv(index=False).encode()


def written(lines: bytes, folder: Path) -> Path:
    """Write a table, whose ledger the folder keeps."""
    (folder / "people.csv").write_bytes(lines)
    (folder / "public.json").write_text(json.dumps(PUBLIC))
    return folder / "people.csv"


@lru_cache
def persons() -> bytes:
    """Return a file in which each person has two rows."""
    head, *rows = people().splitlines()
    named = [b"p%d," % (at // 2) + row for at, row in enumerate(rows)]
    return b"\n".join((b"who," + head, *named, b""))


def private(**more: Any) -> Callable[[bytes, Path], object]:
    def call(lines: bytes, folder: Path) -> object:
        return flat.private(
            written(lines, folder), target="sick", positive="yes", delta=1e-5,
            out=folder / "out", ledger=folder / "people.jsonl", expected_rows=ROWS,
            progress=False, **{"epsilon": 5.0, "one_row_per_person": "unit" not in more, **more},
        )  # fmt: skip

    return call


def command(*words: object) -> Callable[[bytes, Path], object]:
    def call(lines: bytes, folder: Path) -> None:
        places = ("--out", folder / "out", "--ledger", folder / "people.jsonl", "--quiet")
        given = ("--data", written(lines, folder), "--target", "sick", *words, *places)
        texts = [str(one).replace("FOLDER", str(folder)) for one in given]
        done = CliRunner().invoke(app, [words[0], *texts[:4], *texts[5:]])  # type: ignore[list-item]
        if done.exception is not None:
            raise done.exception

    return call


def frame(call: Callable[[pd.DataFrame, Ledger], object]) -> Callable[[bytes, Path], object]:
    """Return a door that takes the file's lines as a data frame of texts."""

    def of_lines(lines: bytes, folder: Path) -> object:
        table = Table.of(written(lines, folder)).frame(text=True, least=0)
        return call(table, Ledger.at(folder / "people.jsonl"))

    return of_lines


def from_csv(lines: bytes, folder: Path, **more: Any) -> None:
    constants = datasets.constants_of(PUBLIC)
    given = {"positive": "yes", "constants": constants, **more}
    split = datasets.from_csv(written(lines, folder), "sick", **given)
    model = bdpvi.BayesianLogisticRegression.unweighted(limit=2.0, intercept=True)
    route = bdpvi.regression.ObjectivePerturbation(rows=ROWS)
    ledger = Ledger.at(folder / "people.jsonl")
    bdpvi.fit_private(model, split.train, epsilon=1.0, route=route, ledger=ledger)


DOORS_OF_FILES: dict[str, Callable[[bytes, Path], object]] = {
    "private, public constants": private(constants=datasets.constants_of(PUBLIC)),
    "private, bought constants": private(numeric=("age",), categorical=("sex",)),
    "command private": command(
        "private", "--one-row-per-person", "--positive", "yes", "--epsilon", 1, "--no-scores",
        "--constants", "FOLDER/public.json", "--rows", ROWS,
    ),
    "command synthesize": command(
        "synthesize", "--one-row-per-person", "--epsilon", 1, "--no-report", "--rows", 5
    ),
    "from_csv and fit_private": from_csv,
    "private, frame": frame(
        lambda table, ledger: flat.private(
            table, target="sick", positive="yes", epsilon=5.0, numeric=("age",),
            categorical=("sex",), ledger=ledger, expected_rows=ROWS, progress=False,
        )
    ),
    "synthesize, frame": frame(
        lambda table, ledger: flat.synthesize(
            table, None, "sick", epsilon=1.0, delta=1e-5, ledger=ledger
        )
    ),
}  # fmt: skip
PERSONS: dict[str, Any] = {"unit": "who", "rows_per_unit": 2}
OF_PERSONS = ("--unit", "who", "--rows-per-unit", 2)
DOORS_OF_PERSONS: dict[str, Callable[[bytes, Path], object]] = {
    "private, public constants": private(constants=datasets.constants_of(PUBLIC), **PERSONS),
    "private, bought constants": private(
        numeric=("age",), categorical=("sex",), epsilon=20.0, **PERSONS
    ),
    "command synthesize": command(
        "synthesize", "--epsilon", 4, "--no-report", "--rows", 5, *OF_PERSONS
    ),
    "from_csv and fit_private": partial(from_csv, unit="who"),
}

# --- doors of numbers -----------------------------------------------------------------------------


@lru_cache
def numbers() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return features and targets 0 and 1."""
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 2))
    return x, (random.random(ROWS) < 1 / (1 + np.exp(-x[:, 0]))).astype(float)


def route(model: Any, way: Any, epsilon: float = 1.0) -> Callable[[Any, Path], object]:
    def call(data: Any, folder: Path) -> object:
        ledger = Ledger.at(folder / "people.jsonl")
        return bdpvi.fit_private(model, data, epsilon=epsilon, route=way, ledger=ledger)

    return call


def estimator(made: Any) -> Callable[[Any, Path], object]:
    def call(data: Any, folder: Path) -> object:
        return made.set_params(ledger=str(folder / "people.jsonl")).fit(*data)

    return call


def svi(data: Any, folder: Path) -> None:
    x, y = (torch.from_numpy(one).float() for one in data)
    labels = y.nan_to_num(9.0).clamp(-9, 9).long()

    def model(x: torch.Tensor, labels: torch.Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2, 2), 1.0).to_event(2))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Categorical(logits=x @ w), obs=labels)

    made = bdpvi.PrivateSVI(
        model, AutoNormal(model), SGD({"lr": 1e-3}), Trace_ELBO(), clip=1.0, noise_multiplier=4.0,
        rate=0.9, ledger=Ledger.at(folder / "people.jsonl"),
    )  # fmt: skip
    for _ in range(3):
        made.step(x, labels)


def network(data: Any, folder: Path) -> None:
    x, y = (torch.from_numpy(one) for one in data)
    module = Linear(2, 2).double()
    made = bdpvi.make_private(
        module,
        torch.optim.SGD(module.parameters(), lr=1e-3),
        loss=functional.cross_entropy,
        data=(x, y.nan_to_num(9.0).clamp(-9, 9).long()),
        rate=0.9,
        max_grad_norm=1.0,
        noise_multiplier=4.0,
        settings=DPSGDSettings(ledger=Ledger.at(folder / "people.jsonl"), records=ROWS),
    )
    for _ in range(3):
        made.step()


def federated(data: Any, folder: Path) -> None:
    """Fit two tables, the odd record in the first of them."""
    x, y = data
    ledger = Ledger.at(folder / "people.jsonl")
    tables = [bdpvi.Dataset.of(x[at], y[at]) for at in (slice(0, 100), slice(100, None))]
    tables = [table.of_people(People(ledger)) for table in tables]
    rounds = Rounds(
        clients=2, size=2, clip=50.0, noise_multiplier=8.0, record_rate=1.0, record_clip=1.0
    )
    guide = guides.MeanField(CLIPPED)
    bdpvi.federated.fit_federated(
        CLIPPED, guide, tables, Federation(rounds), rounds=2, progress=False
    )


def guide_fit(data: Any, folder: Path, **given: Any) -> bdpvi.Release:
    """Release from a fit of a guide."""
    guide = guides.MeanField(CLIPPED, noise_scale=1.0)
    ledger = Ledger.at(folder / "people.jsonl")
    fit = bdpvi.fit(CLIPPED, guide, data, ledger=ledger, progress=False)
    return bdpvi.release(fit, **given)


CLIPPED = bdpvi.BayesianLogisticRegression(clip=0.5, prior_scale=0.3, limit=2.0)
LOGISTIC = bdpvi.BayesianLogisticRegression.unweighted(limit=2.0, intercept=True)
TRAINING = DPVI(rows=ROWS, steps=3, batch=50)
BOUNDS: dict[str, Any] = {"bounds": (-2, 2), "expected_rows": ROWS}
DOORS_OF_NUMBERS: dict[str, Callable[[Any, Path], object]] = {
    "objective": route(LOGISTIC, bdpvi.regression.ObjectivePerturbation(rows=ROWS)),
    "scores": route(LOGISTIC, bdpvi.regression.NoisyScores(rows=ROWS), 5.0),
    "training": route(bdpvi.BayesianMultinomialRegression(classes=2), TRAINING),
    "estimator": estimator(sklearn.PrivateLogisticRegression(classes=(0, 1), **BOUNDS)),
    "estimator, bought": estimator(
        sklearn.PrivateLogisticRegression(5.0, classes=(0, 1), expected_rows=ROWS)
    ),
    "estimator, linear": estimator(
        sklearn.PrivateLinearRegression(target_bounds=(0, 1), draws=5, **BOUNDS)
    ),
    "PrivateSVI": svi,
    "make_private": network,
    "fit_federated": federated,
    "release": partial(guide_fit, epsilon=1.0),
    "release, Bayesian": partial(guide_fit, temperature=1e6, guarantee=BayesianDP()),
}

WHOLE = ("private, public constants", "from_csv and fit_private", "objective", "make_private")
"""Doors that see all odd records in the usual tests, the others some; all see all in slow ones."""

# --- the law --------------------------------------------------------------------------------------

NOISY = (
    " in its noise",
    "coefficients are measured",
    "the estimate lies",
    "about ",
    "is a sandwich",
)
"""Warnings that say what a noisy number was."""


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for what in (one, other):
        what["warnings"] = [w for w in what["warnings"] if not any(n in w for n in NOISY)]
    assert one == other
    assert one["end"] == "whole"


def each_line(call: Any, lines: tuple[bytes, ...], folder: Path, table: bytes) -> None:
    usual = what_happens(call, table, folder / "usual")
    for at, line in enumerate(lines):
        head, rest = table.split(b"\n", 1)
        odd = what_happens(call, b"\n".join((head, line, rest)), folder / str(at))
        same(dict(odd), dict(usual))


def each_number(call: Any, records: Any, folder: Path) -> None:
    x, y = numbers()
    usual = what_happens(call, (x, y), folder / "usual")
    for at, (*features, target) in enumerate(records):
        data = np.vstack([x[:3], [features], x[3:]]), np.insert(y, 3, target)
        odd = what_happens(call, data, folder / str(at))
        same(dict(odd), dict(usual))


STRANGE_PERSONS = (
    b",40,F,yes",
    b"p1,40,F,yes",
    b'"p1,40,F,yes',
    b"P" * 5000 + b",40,F,yes",
    *(b"\n".join([b"new," + line] * 3) for line in LINES),
)
"""Lines of nobody, of a person with two rows already, and of one with three odd ones."""


SEEN: tuple[tuple[str, dict[str, Any], Any, Any], ...] = (
    ("line", DOORS_OF_FILES, LINES, MORE_LINES),
    ("record", DOORS_OF_NUMBERS, NUMBERS, MORE_NUMBERS),
    ("person", DOORS_OF_PERSONS, STRANGE_PERSONS, ()),
)


def every() -> Iterator[Any]:
    """Yield doors with what they see: those of WHOLE all, others a part; slow tests all."""
    for kind, doors, odd, more in SEEN:
        for door, call in doors.items():
            part = odd if door in WHOLE and kind != "person" else odd[::5]
            yield pytest.param(kind, call, part, id=f"{kind}, {door}")
            both, slow = (*odd, *more), pytest.mark.slow
            yield pytest.param(kind, call, both, id=f"{kind}, {door}, all", marks=slow)


@pytest.mark.parametrize(("kind", "door", "odd"), [*every()])
def test_no_line_record_or_person_decides_anything(
    kind: str, door: Any, odd: Any, tmp_path: Path
) -> None:
    if kind == "record":
        each_number(door, odd, tmp_path)
    else:
        each_line(door, odd, tmp_path, people() if kind == "line" else persons())


def test_only_a_certificate_may_decide_and_then_the_promise_says_so(tmp_path: Path) -> None:
    """A Bayesian ε is read from the records: releases that it decides rest on a name."""
    tells, x = Assumption.RELEASE_AFTER_CERTIFICATE, numbers()
    cases: tuple[tuple[dict[str, Any], bool], ...] = (
        ({"epsilon": 1.0}, False),
        ({"temperature": 1e6, "guarantee": BayesianDP()}, False),
        ({"temperature": 1e6, "epsilon": 1.0, "guarantee": BayesianDP()}, True),
        ({"epsilon": 1.0, "guarantee": BayesianDP()}, True),
    )
    for at, (given, read) in enumerate(cases):
        (tmp_path / str(at)).mkdir()
        receipt = guide_fit(x, tmp_path / str(at), **given).receipt
        assert (tells in receipt.bound.assumptions) == (tells.value in receipt.meaning) == read


@pytest.mark.parametrize("door", DOORS_OF_FILES)
def test_the_only_yes_and_the_only_other_sex_decide_nothing(door: str, tmp_path: Path) -> None:
    healthy = people().replace(b",yes", b",no").replace(b",M,", b",F,")
    usual = what_happens(DOORS_OF_FILES[door], healthy, tmp_path / "usual")
    odd = what_happens(DOORS_OF_FILES[door], healthy + b"50,M,yes\n", tmp_path / "odd")
    same(odd, usual)


@pytest.mark.parametrize("door", DOORS_OF_NUMBERS)
def test_one_class_constant_and_separable_columns_decide_nothing(door: str, tmp_path: Path) -> None:
    x, y = numbers()
    usual = what_happens(DOORS_OF_NUMBERS[door], (x, y), tmp_path / "usual")
    for name, data in {
        "one class": (x, np.zeros_like(y)),
        "constant": (np.zeros_like(x), y),
        "separable": (x, (x[:, 0] > 0).astype(float)),
    }.items():
        same(what_happens(DOORS_OF_NUMBERS[door], data, tmp_path / name), dict(usual))
