"""Every way that something leaves a table: a new one gets all laws by being listed in DOORS."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import flat
import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from program import run
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.optim import Adam
from simulated import logistic_data
from torch.nn import Linear, functional

import bdpvi
from bdpvi import BayesianDP, Budget, Dataset, Fit, Ledger, guides
from bdpvi.bayesian.fit import Kept
from bdpvi.datasets.dataset import People
from bdpvi.federated.federated import Federation, Message
from bdpvi.federated.rounds import Rounds
from bdpvi.networks import DPSGDSettings
from bdpvi.privacy.cost import Bound
from bdpvi.programs.dpvi import DPVI

T = TypeVar("T")
DELTA = 1e-5
PLENTY = Budget(4.0, DELTA)
"""More than one call of any door costs."""
TARGETS = ("sick", "days", "grade")
PUBLIC = {"source": "By law.", "age": [18, 98], "dose": [-2, 2]}
STEPS = 12
"""Of those that train: more than a block."""


@dataclass(frozen=True)
class Place:
    """Where one work lies.

    Attributes:
        folder: of the table.
        ledger: file.
        out: what is published; a file or a folder.
        secret: folder that is not.
        rows: of the table.
        given: whether doors get the ledger; otherwise none, and the rows as new objects.
        said: what receipts print.
    """

    folder: Path
    ledger: Path
    out: Path
    secret: Path
    rows: int = 2000
    given: bool = True
    said: list[str] = field(default_factory=list, compare=False)

    @property
    def kept(self) -> Ledger | None:
        """The ledger that a door gets."""
        return Ledger.at(self.ledger) if self.given else None

    def tell(self, receipt: T) -> T:
        """Keep what a receipt prints; return it."""
        self.said.append(f"{receipt}. {receipt.meaning}")  # type: ignore[attr-defined]
        return receipt

    @classmethod
    def within(cls, folder: Path, rows: int = 2000) -> Place:
        """Return a place whose parts lie beside each other."""
        folder.mkdir(exist_ok=True)
        return cls(folder, folder / "people.jsonl", folder / "out", folder / "secret", rows)

    def again(self, turn: int) -> Place:
        """Return another place for what is published from the same table."""
        out, secret = (self.folder / f"{name}-{turn}" for name in ("out", "secret"))
        return replace(self, out=out, secret=secret, said=[])

    @property
    def table(self) -> Path:
        """The table's file."""
        file = self.folder / "people.csv"
        if not file.exists():
            people(self.rows).to_csv(file, index=False)
        return file


@dataclass(frozen=True)
class Door:
    """A way that something leaves a table.

    Attributes:
        name: of it.
        call: goes through it, at a share of the usual price; returns what is promised, if anything.
        prepare: what is done before, which releases nothing.
        out: the file among what is published, relative to ``out``; "." for that itself; "" where
            nothing is.
        keyed: whether all noise follows from keys of charges; steps have keys that nobody keeps.
        alone: whether what is promised is of this release alone.
        few: whether it refuses a table by its noisy number of rows.
    """

    name: str
    call: Callable[[Place, float], Bound | None]
    prepare: Callable[[Place], object] = lambda place: None
    out: str = ""
    keyed: bool = True
    alone: bool = False
    few: bool = False

    def open(self, place: Place, budget: Budget | None = PLENTY) -> Ledger:
        """Make the ledger of a table, and what is needed before."""
        made = Ledger.at(place.ledger, budget=budget)
        _ = place.table
        self.prepare(place)
        return made

    def __call__(self, place: Place, share: float = 1.0) -> Bound | None:
        """Go through it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.call(place, share)

    def published(self, place: Place) -> Path:
        """Return the file that others read."""
        return place.out if self.out == "." else place.out / self.out


@lru_cache
def people(rows: int) -> pd.DataFrame:
    """Return a table with a target for each kind of model."""
    random = np.random.default_rng(0)
    age, dose = random.normal(50, 10, rows).round(2), random.normal(size=rows).round(3)
    score = (age - 50) / 10 + dose
    place = np.clip((score + 1.5).astype(int), 0, 2)
    return pd.DataFrame(
        {
            "age": age,
            "dose": dose,
            "sick": np.where(random.random(rows) < 1 / (1 + np.exp(-score)), "yes", "no"),
            "days": (10 + 2 * score + random.normal(size=rows)).round(2),
            "grade": np.array(["a", "b", "c"])[place],
        }
    )


# --- fits and routes ------------------------------------------------------------------------------

CLIPPED = bdpvi.BayesianLogisticRegression(clip=0.5, prior_scale=0.3, limit=2.0)
MODEL = bdpvi.BayesianLogisticRegression.unweighted(limit=2.0, intercept=True)


@lru_cache
def _fit() -> Fit:
    guide = guides.MeanField(CLIPPED, noise_scale=1.0)
    return bdpvi.fit(CLIPPED, guide, logistic_data(60, 3), progress=False)


def _fitted(place: Place) -> None:
    _fit()


def guide_fit(place: Place) -> Fit:
    """Return a fit of the table's people, whose ledger is its own."""
    if not place.given:
        guide = guides.MeanField(CLIPPED, noise_scale=1.0)
        return bdpvi.fit(CLIPPED, guide, anew(logistic_data(60, 3)), progress=False)
    return replace(_fit(), kept=Kept(People(place.kept), name="0" * 16))


def anew(data: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same rows as other objects."""
    return data.x.clone(), data.y.clone()


def _guide(**given: Any) -> Callable[[Place, float], Bound]:
    def call(place: Place, share: float) -> Bound:
        return place.tell(bdpvi.release(guide_fit(place), 2, epsilon=share, **given).receipt).bound

    return call


def _experiment(place: Place, share: float) -> Bound:
    """Release at a temperature that spends nearly the share of a Bayesian ε."""
    fit, kind, temperature = guide_fit(place), BayesianDP(), 0.0515 * share**-1.81
    made = place.tell(bdpvi.release(fit, 2, temperature=temperature, guarantee=kind).receipt)
    return replace(made.bound, epsilon=share)


def _route(route: Any, times: int = 1) -> Callable[[Place, float], Bound]:
    def call(place: Place, share: float) -> Bound:
        pyro.clear_param_store()
        release = bdpvi.fit_private(
            MODEL,
            anew(logistic_data(times * place.rows, 3)),
            epsilon=share,
            route=route,
            ledger=place.kept,
        )
        return place.tell(release.receipt).bound

    return call


@lru_cache
def _shared() -> list[bdpvi.Release]:
    """Return two releases of other people."""
    route, data = bdpvi.regression.ObjectivePerturbation(rows=2e4), logistic_data(2000, 3)
    return [
        bdpvi.fit_private(MODEL, anew(data), epsilon=1.0, route=route, ledger=Ledger())
        for _ in range(2)
    ]


def _compare(place: Place, share: float) -> Bound:
    (one, other), rows = _shared(), anew(logistic_data(place.rows, 3))
    made = bdpvi.compare_models(one, other, rows, epsilon=share, ledger=place.kept)
    return place.tell(made.receipt).bound


# --- from a table to a file -----------------------------------------------------------------------


def _private(target: str, **given: Any) -> Callable[[Place, float], Bound]:
    def call(place: Place, share: float) -> Bound:
        with flat.few_steps(STEPS):
            release = flat.private(
                place.table if place.given else people(place.rows).copy(),
                target=target,
                one_row_per_person=True,
                epsilon=share,
                out=place.out,
                secret=place.secret,
                ledger=place.ledger if place.given else None,
                drop=[one for one in TARGETS if one != target],
                progress=False,
                **{"numeric": ("age", "dose"), **given},
            )
        return place.tell(release.receipt).bound

    return call


def _usual(target: str, **given: Any) -> Callable[[Place, float], Bound]:
    """The same from a data frame of few columns, kinds of which are estimated as well."""
    return _private(target, numeric=(), **given)


def _places(place: Place) -> tuple[object, ...]:
    return ("--out", place.out, "--secret", place.secret, "--ledger", place.ledger)


def _drop(target: str) -> tuple[str, ...]:
    return tuple(word for one in TARGETS if one != target for word in ("--drop", one))


def _private_command(place: Place, share: float) -> Bound:
    columns = ("--target", "sick", "--positive", "yes", *_drop("sick"))
    given = ("--data", place.table, *columns, "--epsilon", share, "--quiet", "--no-scores")
    run("private", "--one-row-per-person", *given, *_places(place))
    return bdpvi.load_release(place.out / "release.json").receipt.bound


def _synthesize_command(*more: str) -> Callable[[Place, float], Bound]:
    def call(place: Place, share: float) -> Bound:
        given = ("--target", "sick", "--epsilon", share, "--delta", DELTA, *_drop("sick"))
        run(
            "synthesize",
            "--one-row-per-person",
            "--data",
            place.table,
            *given,
            "--quiet",
            *more,
            *_places(place),
        )
        return bdpvi.synthesis.load(place.out / "synthetic.json").receipt.worst_case

    return call


def _synthesize(place: Place, share: float) -> Bound:
    table = people(place.rows)[["age", "sick"]]
    made = bdpvi.synthesize(table, None, "sick", epsilon=share, delta=DELTA, ledger=place.kept)
    return place.tell(made.receipt).worst_case


def _describe(place: Place, share: float) -> Bound:
    table = people(place.rows)[["age", "sick"]]
    made = bdpvi.describe(table, None, "sick", epsilon=share, delta=DELTA, ledger=place.kept)
    return place.tell(made.receipt).worst_case


def _describe_command(place: Place, share: float) -> Bound:
    given = ("--by", "sick", "--epsilon", share, "--delta", DELTA, *_drop("sick"), "--quiet")
    run("describe", "--one-row-per-person", "--data", place.table, *given, *_places(place))
    return bdpvi.synthesis.load(place.out / "counts.json").receipt.worst_case


# --- estimators -----------------------------------------------------------------------------------


def _estimator(name: str, target: str, **given: Any) -> Callable[[Place, float], Bound]:
    def call(place: Place, share: float) -> Bound:
        from bdpvi import sklearn

        table = people(place.rows)
        ledger = str(place.ledger) if place.given else None
        made = getattr(sklearn, name)(share, ledger=ledger, **given)
        made.fit(table[["age", "dose"]].to_numpy(), table[target].to_numpy())
        place.said.append(made.guarantee_)
        result: Bound = made.bound_
        return result

    return call


# --- steps and rounds -----------------------------------------------------------------------------


def _linear(x: torch.Tensor, y: torch.Tensor) -> None:
    w = pyro.sample("w", dist.Normal(x.new_zeros(3), x.new_tensor(1.0)).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def _program(place: Place, share: float) -> Bound:
    pyro.clear_param_store()
    data = logistic_data(200, 3)
    x, y = data.x.float(), data.y.float()  # other objects in each call
    settings: dict[str, Any] = {"clip": 1.0, "noise_multiplier": 8.0 / share, "rate": 0.1}
    made = bdpvi.PrivateSVI(
        _linear, AutoNormal(_linear), Adam({"lr": 0.05}), Trace_ELBO(),
        ledger=place.kept, **settings,
    )  # fmt: skip
    try:
        for _ in range(STEPS):
            made.step(x, y)
    finally:
        pyro.clear_param_store()
    result: Bound = place.tell(made.worst_case(DELTA))
    return result


def _network(place: Place, share: float) -> Bound:
    data, module = logistic_data(200, 3), Linear(3, 1).double()
    made = bdpvi.make_private(
        module,
        torch.optim.SGD(module.parameters(), lr=0.1),
        loss=lambda out, y: functional.binary_cross_entropy_with_logits(out[:, 0], y),
        data=anew(data),
        rate=0.1,
        max_grad_norm=1.0,
        noise_multiplier=8.0 / share,
        settings=DPSGDSettings(ledger=place.kept),
    )
    for _ in range(STEPS):
        made.step()
    result: Bound = place.tell(made.worst_case(DELTA))
    return result


def _rounds(place: Place, share: float) -> Bound | None:
    rounds = Rounds(clients=10, size=2, clip=1.0, noise_multiplier=8.0 / share, client_rate=0.5)
    federation = Federation(rounds, Ledger.at(place.ledger))
    for _ in range(3):
        number = federation.next_round
        asked = federation.sampled(number)
        federation.aggregate(number, [Message(one, number, torch.ones(2)) for one in asked])
    return federation.cost(DELTA).worst_case


def _tables(place: Place, share: float) -> Bound:
    data = logistic_data(100, 3)
    data = Dataset(*anew(data), people=People(place.kept))
    clients = [data.select(rows) for rows in torch.arange(len(data)).tensor_split(2)]
    rounds = Rounds(
        clients=2, size=3, clip=50.0, noise_multiplier=8.0 / share, record_rate=1.0, record_clip=1.0
    )
    fit = bdpvi.federated.fit_federated(
        CLIPPED, guides.MeanField(CLIPPED), clients, Federation(rounds), rounds=3, progress=False
    )
    result: Bound = place.tell(fit.worst_case(DELTA, "record"))
    return result


LINEAR = bdpvi.BayesianLinearRegression.of_bounds(0, 20)
_file: dict[str, Any] = {"out": "release.json"}
_steps: dict[str, Any] = {"keyed": False}

DOORS = (
    Door("release", _guide(), _fitted),
    Door("release, Bayesian", _experiment, _fitted),
    Door("objective, declared", _route(bdpvi.regression.ObjectivePerturbation(rows=2e4))),
    Door("objective, counted", _route(bdpvi.regression.ObjectivePerturbation())),
    Door("posterior draws", _route(bdpvi.PosteriorDraws(rows=2e4), times=10)),
    Door("scores, declared", _route(bdpvi.regression.NoisyScores(rows=2000))),
    Door("scores, counted", _route(bdpvi.regression.NoisyScores())),
    Door("training, declared", _route(DPVI(rows=2000, steps=STEPS, batch=100, draws=5))),
    Door("training, counted", _route(DPVI(steps=STEPS, batch=100, draws=5))),
    Door("comparison of models", _compare, lambda place: _shared()),
    Door("private, logistic", _usual("sick", positive="yes"), few=True, **_file),
    Door("private, intervals", _private("sick", positive="yes", intervals=True), few=True, **_file),
    Door("private, linear", _private("days", model=LINEAR), few=True, **_file),
    Door(
        "private, weighted",
        _private("sick", positive="yes", numeric=["age"], weights="dose", largest_weight=2.0),
        few=True,
        **_file,
    ),
    Door(
        "private, multinomial",
        _private(
            "grade",
            model=bdpvi.BayesianMultinomialRegression(classes=3),
            classes=("a", "b", "c"),
        ),
        **_file,
    ),
    Door("command private", _private_command, few=True, **_file),
    Door("synthesize", _synthesize, alone=True),
    Door("describe", _describe, alone=True),
    Door("command describe", _describe_command, out="counts.json", alone=True),
    Door(
        "command synthesize", _synthesize_command("--no-report"), out="synthetic.json", alone=True
    ),
    Door(
        "estimator",
        _estimator("PrivateLogisticRegression", "sick", classes=("no", "yes")),
        alone=True,
    ),
    Door("estimator, linear", _estimator("PrivateLinearRegression", "days"), alone=True),
    Door("PrivateSVI", _program, **_steps),
    Door("make_private", _network, **_steps),
    Door("federation", _rounds, **_steps),
    Door("fit_federated", _tables, **_steps),
)
