"""What is refused, and the same as the refusal has it."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial, partialmethod
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyro
import torch
from model_refusals import GOOD, GUIDE, TABLE, program, stepped, svi
from pyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, AutoNormal
from simulated import logistic_data
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset as Whole
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import bdpvi
from bdpvi import (
    DPVI,
    BayesianLogisticRegression,
    BayesianPoissonRegression,
    Budget,
    Coupled,
    Dataset,
    Ledger,
    Optimum,
    Training,
    guides,
    make_private,
)
from bdpvi._ground import store
from bdpvi._ground.checkpoint import sealed
from bdpvi._ground.types import Relation
from bdpvi.bayesian import FixedDraws, Remove
from bdpvi.bayesian.mode.route import Mode
from bdpvi.cli import app
from bdpvi.commands import synthesize
from bdpvi.commands.options import WholeTable
from bdpvi.datasets import constants_of, from_blocks, from_frame, partition
from bdpvi.datasets.dataset import BlockData, People
from bdpvi.datasets.items import Items
from bdpvi.datasets.objects import ROWS
from bdpvi.datasets.schema import Schema
from bdpvi.datasets.table import Table
from bdpvi.datasets.types import ColumnType
from bdpvi.federated.federated import Federation
from bdpvi.federated.federated_vi import fit_federated
from bdpvi.federated.rounds import OTHER_CLIENT, SERVER_OF_SUMS, Rounds
from bdpvi.networks import DPSGDSettings
from bdpvi.privacy.book import Entry
from bdpvi.privacy.events import NormCounts, PerturbedObjective, SampledGaussian
from bdpvi.privacy.perturbed_objective import calibrate
from bdpvi.privacy.repair import repair
from bdpvi.regression import ObjectivePerturbation
from bdpvi.releases.noisy_sum import NoisySum
from bdpvi.sklearn import PrivateLogisticRegression
from bdpvi.synthesis.counts import Counts
from bdpvi.tables import Recipe, files
from bdpvi.tables.metrics import check_classes

FILE = Path(__file__)
# Everything else: what is refused, and the same as the message has it, in one folder.

FRAME = pd.DataFrame({"age": [*range(20, 70)] * 40, "sick": ["no", "yes"] * 1000})
PUBLIC = constants_of({"source": "By law.", "age": [18, 80]})
LOOSE = BayesianLogisticRegression()
BOUNDED = BayesianLogisticRegression(clip=0.1, prior_scale=0.1)
SPLIT: dict[str, Any] = {"rows_per_unit": 2, "unit": "who"}


class Named(TensorDataset):
    """Records with a text."""

    def __getitem__(self, at: int) -> Any:
        return {"x": self.tensors[0][at], "y": "yes"}


class Numbered(Whole[Any]):
    """A table that is no tensor."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        return torch.full((3,), float(at)), torch.tensor(at % 2)


WHOLE = Numbered(100)


def network(
    module: nn.Module | None = None, optim: Any = torch.optim.SGD, lr: float = 0.1, **more: Any
) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)  # by chance a loss can look like a mean over records
        module = module or nn.Linear(3, 2)
    chosen = more.pop("weights", [*module.parameters()])
    given: dict[str, Any] = {
        "loss": F.cross_entropy,
        "data": (TABLE[0], (TABLE[1] > 0).long()),
        "rate": 0.5,
    }
    given |= {"max_grad_norm": 1.0, "noise_multiplier": 2.0}
    given |= {name: more.pop(name) for name in set(given) & set(more)}
    return make_private(module, optim(chosen, lr=lr), **given, settings=DPSGDSettings(**more))


def trained(**more: Any) -> Any:
    made = network(**more)
    made.step()
    return made


def fitted(
    model: Any = BOUNDED, guide: Any = guides.MeanField, records: int = 60, **more: Any
) -> Any:
    data = more.pop("data", None) or logistic_data(records, 3)
    training = Training(
        steps=more.pop("steps", 20), **{n: more.pop(n) for n in ("rate", "optim") if n in more}
    )
    return bdpvi.fit(model, guide(model), data, training=training, progress=False, **more)


def private(table: Any = FRAME, **more: Any) -> Any:
    given = {"target": "sick", "positive": "yes", "epsilon": 1.0, "progress": False, **more}
    return bdpvi.private(table, **given)


def in_folder(folder: Path, url: bool = False, **more: Any) -> Any:
    """Read the table from a folder of files, or from a URL."""
    (folder / "parts").mkdir(exist_ok=True)
    FRAME.to_csv(folder / "parts" / "a.csv", index=False)
    path = folder / "parts"
    return private(f"file://{path}" if url else path, constants=PUBLIC, **more)


def in_blocks(folder: Path, training: Training | None = None, **options: Any) -> Any:
    """Fit the table from a file in blocks."""
    FRAME.to_csv(folder / "a.csv", index=False)
    given = {"constants": PUBLIC, "positive": "yes", "progress": False, **options}
    data = from_blocks(folder / "a.csv", "sick", **given)
    return bdpvi.fit(LOOSE, guides.Laplace(LOOSE), data, training=training, progress=False)


def of_visits(folder: Path, name: str) -> Any:
    """Read two rows of everybody, from a file in which they lie apart or from another table."""
    twice = pd.concat([FRAME.assign(who=[f"p{n}" for n in range(len(FRAME))])] * 2)
    twice.to_csv(folder / "visits.csv", index=False)
    if name == "parts":
        run("partition", folder / "visits.csv", "--by", "who", "--out", folder / name)
    table = Table.of(folder / name, size=2_000)
    return private(table, constants=PUBLIC, unit="who", rows_per_unit=2, ledger=Ledger())


def partitioned(folder: Path, rows: int) -> Any:
    """Partition a table with so many rows of one person."""
    folder.mkdir()
    pd.DataFrame({"who": ["ada"] * rows + ["bob"]}).to_parquet(folder / "a.parquet")
    return partition(folder / "a.parquet", by="who", out=folder / "out", progress=False)


def rounds(**more: Any) -> Rounds:
    return Rounds(
        **{
            "clients": 9,
            "size": 3,
            "clip": 2.0,
            "noise_multiplier": 1.5,
            "client_rate": 0.5,
            **more,
        }
    )


def resumed(old: dict[str, Any], new: dict[str, Any], made: Any = trained) -> tuple[Any, Any]:
    state = made(**old).state_dict()
    more = TABLE if made is stepped else ()
    fresh = network if made is trained else svi

    def load(options: dict[str, Any]) -> None:
        pyro.clear_param_store()
        fresh(**options).load_state_dict(state, *more)

    return lambda: load(new), lambda: load(old)


def forked(made: Any) -> tuple[Any, Any]:
    state = made.state_dict()
    made._charged._owner = -1
    return made.step, lambda: network().load_state_dict(state)


def changed(made: Any) -> tuple[Any, Any]:
    made.module.bias.requires_grad_(False)
    return made.step, lambda: network(made.module, weights=[made.module.weight]).step()


def after(made: Any, wrong: Any, right: Any) -> tuple[Any, Any]:
    """Return both calls of one object."""
    return lambda: wrong(made), lambda: right(made)


def twice(one: Path, other: Path) -> None:
    with store.held(one), store.held(other):
        pass


def opened(t: Path, mode: int) -> Any:
    (t / "a").mkdir(exist_ok=True)
    (t / "a").chmod(mode)
    return private(out=t / "out", secret=t / "a", constants=PUBLIC)


def begun(t: Path, folder: str) -> Any:
    if not (t / "a").exists():
        private(out=t / "b", secret=t / "a", constants=PUBLIC)
    return private(out=t / "c", secret=t / folder, epsilon=2.0, constants=PUBLIC)


FEW = Coupled(Remove(3))
LOGISTIC = BayesianLogisticRegression(intercept=True)
LARGEST = BayesianPoissonRegression(largest=9)
COUNTS = bdpvi.BayesianNegativeBinomialRegression(largest=9)
SOLVED = PerturbedObjective(noise_multiplier=1.0, curvature=1.0, residual=1.0)
NORMS = NormCounts(torch.arange(3), torch.tensor([[5, 5]] * 3), torch.tensor([0.5, 1.0]))
GAUSSIAN = SampledGaussian(noise_multiplier=3.0, rate=0.1, steps=10)
PANEL = torch.randn(100, 3), torch.arange(100) % 2
TIGHT = BayesianLogisticRegression(prior_scale=1e-4, clip=1e-4)
SCHEMA = Schema({"age": ColumnType(low=18.0, high=80.0)}, "By law.")
SUM = NoisySum(rate=0.5, clip=1.0, noise_multiplier=1.0, size=2, records=9)
CHANCE = np.random.default_rng(0)
ONCE = CHANCE.normal(size=(60, 3)), CHANCE.integers(0, 2, 60).astype(float)
SCALED = pd.DataFrame(CHANCE.normal(50, 9, (3000, 2)), columns=["age", "dose"])
SCALED["sick"] = np.where(SCALED["age"] > 50, "yes", "no")
NAMES = [f"P{i}" for i in range(2000)]
GROUPED = ColumnType(kind="integer", thousands=",")
WRITTEN = [f"{i % 9 + 1},{i % 900 + 100}" for i in range(2000)]


def run(*arguments: object) -> None:
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    if done.exception is not None:
        raise done.exception


WIDE = BayesianLogisticRegression(prior_scale=10.0)
secret = cache(lambda model, guide: fitted(model, guide, neighbours=Optimum()))


def priced(guide: Any, draws: int, temperature: float, model: Any = WIDE) -> Any:
    return bdpvi.cost(secret(model, guide), planned=bdpvi.privacy.Charge(draws, temperature))


def first_line(t: Path, bad: bytes) -> Any:
    if not (t / "l").exists():
        (t / "whole").write_bytes(Ledger.at(t / "l", budget=Budget(1.0)).content())
    (t / "l").write_bytes(bad + (t / "whole").read_bytes())
    return Ledger(t / "l").entries()


def persons() -> Dataset:
    return logistic_data(60, 3).of_people(People(unit="who", rows_per_unit=2))


def guided(data: Dataset, **more: Any) -> Any:
    found = bdpvi.recommended(1.0, guide=guides.MeanField).fit(data, progress=False)
    return bdpvi.release(found, epsilon=1.0, **more)


def fit_with(t: Path, *more: object) -> None:
    FRAME[:200].to_csv(t / "t.csv", index=False)
    given = ("--data", t / "t.csv", "--target", "sick", "--positive", "yes")
    run("fit", *given, "--out", t / "fit", *more)


def predicted(t: Path, name: str) -> None:
    out = t / "out" / "release.json"
    out.exists() or private(out=out.parent, constants=PUBLIC)
    FRAME.assign(**{name: 1}).to_csv(t / "t.csv", index=False)
    run("predict", out, "--data", t / "t.csv", "--out", t / "p.csv", "--id", name)


def sampled(t: Path, *more: object) -> None:
    out = t / "s.json"
    if not out.exists():
        bdpvi.synthesize(FRAME[["age"]], SCHEMA, epsilon=1.0).save(out)
    with patch.object(synthesize, "_MOST_VALUES", 99):
        run("sample", out, *more)


def measured(column: Any, **more: Any) -> Any:
    return from_frame(FRAME.iloc[: len(column)].assign(c=column), "sick", positive="yes", **more)


def bought(column: Any, **more: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "'c': mostly text")
        return private(FRAME.assign(c=column), hashed=False, epsilon=3.0, **more)


def looked(table: Any, **more: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "for the owner only: (column|target)")
        return private(table, **more)


def promised(noise: float) -> Any:
    made = Federation(rounds(noise_multiplier=noise))
    made.sampled(1)
    return made.worst_case(1e-5)


def federated(guide: Any = None, size: int = 3, **more: Any) -> Any:
    made = Federation(rounds(size=size, clients=2, record_rate=0.5, record_clip=1.0))
    clients = [logistic_data(20, 3), logistic_data(20, 3, seed=1)]
    guide = guide or guides.MeanField(BOUNDED)
    return fit_federated(BOUNDED, guide, clients, made, rounds=2, progress=False, **more)


class Single(nn.Module):
    """A layer of single precision alone."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype is torch.bfloat16:
            raise RuntimeError("no kernel")
        return x


def autocast(made: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        made.step()


def scripted(module: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(module)


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    module[0].bias.requires_grad_(False).grad = torch.ones(4)
    return module


def used(run_before: bool) -> Any:
    model = program(GOOD)
    guide = AutoNormal(model)
    if run_before:
        guide(*TABLE)
    return stepped(model=model, guide=guide)


def scheduled(name: str, more: dict[str, Any]) -> Any:
    given = {"optimizer": torch.optim.SGD, "optim_args": {"lr": 1e-3}, **more}
    return fitted(neighbours=FEW, optim=getattr(pyro.optim, name)(given))


def noisy(clip: float) -> Any:
    model = BayesianLogisticRegression(clip=clip)
    return fitted(model, partial(guides.MeanField, noise_scale=0.1), neighbours=Optimum())


def bought_mode() -> Any:
    """Return a fit whose own charges bought constants."""
    fit = fitted(LOOSE, guides.Laplace)
    noise = SampledGaussian(noise_multiplier=9.0)
    fit.ledger.charge(Entry(kind="constants", of=fit.kept.name, events=(noise,)))
    return fit


def on_disk(t: Path, neighbours: Any) -> Any:
    (FRAME.assign(sick=(FRAME["sick"] == "yes") * 1.0, age=FRAME["age"] / 99)).to_csv(
        t / "t.csv", index=False
    )
    return fitted(data=bdpvi.Table.of(t / "t.csv").numbers("sick"), neighbours=neighbours)


def visits(model: Any, rows: int, **more: Any) -> Any:
    table = FRAME.assign(who=np.arange(2000) // 2, n=FRAME["age"] % 3, years=1.0)[
        ["who", "n", "years", "age"]
    ]
    given = {
        "target": "n",
        "epsilon": 3.0,
        "model": model,
        "progress": False,
        "expected_rows": 2000,
    }
    with patch.object(DPVI, "__init__", partialmethod(DPVI.__init__, steps=2)):
        return bdpvi.private(table, unit="who", rows_per_unit=rows, **given, **more)


def filed(t: Path, **more: Any) -> Any:
    FRAME.assign(who=np.arange(2000) // 2).to_csv(t / "visits.csv", index=False)
    return private(t / "visits.csv", constants=PUBLIC, **more)


def kept(t: Path, model: Any) -> Any:
    if not (t / "r").exists():
        found = fitted(program(GOOD), records=40, neighbours=Coupled())
        bdpvi.save_release(bdpvi.release(found, temperature=1e3), t / "r")
    return bdpvi.load_release(t / "r", model)


def exchanged(t: Path, wrong: bool) -> Any:
    for name in "ab":
        (t / name).exists() or bdpvi.save_fit(fitted(), t / name)
    for name in ("ledger.jsonl", "ledger.jsonl.head"):
        kept = t / f"{name}.kept"
        kept.exists() or shutil.copy(t / "a" / name, kept)
        shutil.copy(t / "b" / name if wrong else kept, t / "a" / name)
    return bdpvi.load_fit(t / "a", BOUNDED, guides.MeanField(BOUNDED))


def seeded(t: Path, seed: int | None) -> None:
    split = from_frame(FRAME, "sick", positive="yes", seed=seed)
    bdpvi.save_release(guided(split.train), t / "r")


def estimated(y: Any = None, **more: Any) -> Any:
    data = logistic_data(300, 2)
    y = data.y.numpy() if y is None else y
    return PrivateLogisticRegression(**{"bounds": (-4, 4), **more}).fit(data.x.numpy(), y)


def visiting(**more: Any) -> Any:
    data = logistic_data(300, 2)
    given = {"bounds": (-4, 4), "classes": (0, 1), **more}
    model = PrivateLogisticRegression(**given)
    return model.fit(data.x.numpy(), data.y.numpy(), unit=np.arange(300))


def towns(dtype: Any = object, types: Schema | None = None) -> Any:
    frame = pd.DataFrame({"town": pd.Series(["1", "2"] * 150).astype(dtype)})
    model = PrivateLogisticRegression(bounds=(-4, 4), classes=(0, 1), types=types)
    return model.fit(frame, np.arange(300) % 2)


class Unfollowed(torch.autograd.Function):
    """Doubles numbers, without a derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x


class Doubled(nn.Linear):
    """A layer that autograd does not follow."""

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = Unfollowed.apply(super().forward(x))  # type: ignore[no-untyped-call]
        return made


def told_of(what: str, call: Callable[[], Any]) -> Any:
    """Raise what the owner alone is told of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", f"for the owner only: {what}")
        return call()


def scaled() -> Dataset:
    x = SCALED[["age", "dose"]].to_numpy()
    y = (SCALED["sick"] == "yes").to_numpy().astype(float)
    return Dataset(torch.from_numpy((x - x.mean(0)) / x.std(0)), torch.from_numpy(y))


def copies(times: int) -> Any:
    """Fit records that are there so many times."""
    x, y = (np.concatenate([one] * times) for one in ONCE)
    return bdpvi.fit(LOOSE, guides.Laplace(LOOSE), (x, y), progress=False)


def of_people(*dtypes: Any) -> Any:
    frame = FRAME.assign(who=range(2000))
    for dtype in dtypes:
        frame = frame.astype({"who": dtype})
    return from_frame(frame, "sick", positive="yes", unit="who", seed=0)


def grouped(levels: int, group: str = "abce") -> Any:
    domains = {name: ColumnType(low=0.0, high=float(levels), whole=True) for name in "abce"}
    domains["d"] = ColumnType(levels=("x",))
    table = pd.DataFrame({"a": [1], "b": [1], "c": [1], "d": ["x"], "e": [1]})
    settings = Counts(also=(tuple(group),))
    return bdpvi.synthesize(table, Schema(domains, "By law."), epsilon=1.0, settings=settings)


def of_persons(columns: list[str]) -> Any:
    schema = Schema({name: ColumnType(low=0.0, high=99.0) for name in columns}, "By law.")
    table = FRAME[["age"]].assign(who=np.arange(2000) // 2)
    return bdpvi.synthesize(table, schema, epsilon=1.0, settings=Counts(**SPLIT))


Case = Callable[[Path], tuple[Callable[[], Any], Callable[[], Any]]]
CASES: dict[str, Case] = {
    "_ground/store: wait for it": lambda t: (
        lambda: twice(t / "a", t / "a"),
        lambda: twice(t / "a", t / "b"),
    ),
    "_ground/validate: Choose a smaller δ": lambda t: after(
        fitted(),
        lambda f: bdpvi.cost(f, delta=0.02, planned=bdpvi.privacy.Charge(1, 9.0)),
        lambda f: bdpvi.cost(f, delta=0.01, planned=bdpvi.privacy.Charge(1, 9.0)),
    ),
    "_ground/validate: make it numbers": lambda t: (
        lambda: Dataset.of(FRAME, FRAME["age"]),
        lambda: (
            Dataset.of(FRAME[["age"]], FRAME["sick"] == "yes"),
            from_frame(FRAME, "sick", positive="yes"),
        ),
    ),
    "privacy/events: Use relation=": lambda t: (
        lambda: SampledGaussian(noise_multiplier=3.0, rate=0.5, relation=Relation.REPLACE),
        lambda: SampledGaussian(noise_multiplier=3.0, rate=0.5, relation=Relation.ADD_OR_REMOVE),
    ),
    "privacy/places: chmod 700 it": lambda t: (
        lambda: opened(t, 0o755),
        lambda: opened(t, 0o700),
    ),
    "privacy/places: choose another place": lambda t: (
        lambda: private(out=t / "a", secret=t / "a" / "b", constants=PUBLIC),
        lambda: private(out=t / "a", secret=t / "b", constants=PUBLIC),
    ),
    "releases/intent: choose another folder": lambda t: (
        lambda: begun(t, "a"),
        lambda: begun(t, "d"),
    ),
    "releases/steps: create the run again": lambda t: forked(trained()),
    "networks/gradients: call step() outside": lambda t: after(
        network(nn.Sequential(nn.Linear(3, 2), Single())), autocast, lambda made: made.step()
    ),
    "networks/deep: give noise_multiplier": lambda t: (
        lambda: network(noise_multiplier=None, steps=5),
        lambda: (network(), network(noise_multiplier=None, steps=5, epsilon=1.0)),
    ),
    "networks/private: Call make_private again": lambda t: changed(trained()),
    "networks/private: call step() first": lambda t: after(
        network(), lambda p: p.event(), lambda p: (p.step(), p.event())
    ),
    "networks/private: make the run as it was": lambda t: resumed({}, {"rate": 0.25}),
    "networks/private: make it as it was before": lambda t: resumed(
        {}, {"module": nn.Sequential(nn.Linear(3, 2))}
    ),
    "networks/private: use a smaller learning rate": lambda t: (
        lambda: trained(lr=float("inf")),
        lambda: trained(lr=0.1),
    ),
    "networks/records: give tensors": lambda t: (
        lambda: network(data=Numbered(0), records=64),
        lambda: network(data=(TABLE[0][:0], TABLE[1][:0].long()), records=64),
    ),
    "networks/preflight: put a layer or a loss": lambda t: (
        lambda: network(Doubled(3, 2)),
        lambda: network(nn.Linear(3, 2)),
    ),
    "datasets/given: Give raw columns": lambda t: (
        lambda: told_of("each column", lambda: bdpvi.fit_private(LOGISTIC, scaled(), epsilon=1.0)),
        lambda: told_of("each column", lambda: private(SCALED, one_row_per_person=True)),
    ),
    "datasets/sketch: Keep one of each": lambda t: (
        lambda: told_of(r".* of the records are copies", lambda: copies(10)),
        lambda: told_of(r".* of the records are copies", lambda: copies(1)),
    ),
    "releases/noisy_sum: sum them in float64": lambda t: (
        lambda: SUM.means([torch.ones(2)], 0),
        lambda: SUM.means([torch.ones(2).double()], 0),
    ),
    "networks/refusals: give it all of these": lambda t: after(
        nn.Linear(3, 2), lambda m: network(m, weights=[m.weight]), lambda m: network(m)
    ),
    "networks/refusals: call module.zero_grad()": lambda t: after(
        frozen(), network, lambda m: (m.zero_grad(), network(m))
    ),
    "networks/refusals: call the module once": lambda t: after(
        nn.LazyLinear(2), network, lambda m: (m(TABLE[0]), network(m))
    ),
    "networks/refusals: give the module as it was": lambda t: (
        lambda: network(scripted(nn.Linear(3, 2))),
        lambda: network(nn.Linear(3, 2)),
    ),
    "networks/refusals: set requires_grad_": lambda t: after(
        nn.Linear(3, 2).requires_grad_(False), network, lambda m: network(m.requires_grad_(True))
    ),
    "networks/refusals: use GroupNorm": lambda t: (
        lambda: network(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))),
        lambda: [
            trained(module=nn.Sequential(nn.Linear(3, 4), one))
            for one in (nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.BatchNorm1d(4).eval())
        ],
    ),
    "networks/refusals: use SGD or Adam": lambda t: (
        lambda: network(optim=torch.optim.LBFGS),
        lambda: trained(optim=torch.optim.Adam),
    ),
    "networks/refusals: use float32": lambda t: after(
        nn.Linear(3, 2).bfloat16(), network, lambda m: network(m.float())
    ),
    "networks/refusals: use reduction=": lambda t: (
        lambda: network(loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0]))),
        lambda: [
            trained(loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0]), reduction=how))
            for how in ("none", "sum")
        ],
    ),
    "programs/arguments: give the records": lambda t: (lambda: stepped(3), stepped),
    "programs/arguments: hand tensors over": lambda t: (
        lambda: stepped(TABLE[0], TABLE[1].tolist()),
        stepped,
    ),
    "programs/arguments: hand the whole table": lambda t: after(
        stepped(), lambda s: s.step(*(one[:9] for one in TABLE)), lambda s: s.step(*TABLE)
    ),
    "programs/arguments: make a public one": lambda t: (
        lambda: stepped(*TABLE, torch.ones(3), model=program(GOOD, "x, y, c")),
        lambda: stepped(model=partial(program(GOOD, "x, y, c"), c=torch.ones(3))),
    ),
    "programs/descent: use a lower": lambda t: (
        lambda: stepped(lr=float("inf")),
        lambda: (pyro.clear_param_store(), stepped()),
    ),
    "programs/descent: make model and guide": lambda t: resumed(
        {}, {"model": GOOD.replace("'w'", "'v'")}, stepped
    ),
    "programs/private_svi: call step() first": lambda t: after(
        svi(), lambda s: s.ledger, lambda s: (s.step(*TABLE), s.ledger)
    ),
    "programs/private_svi: make the run as it": lambda t: resumed({}, {"rate": 0.25}, stepped),
    "programs/private_svi: use pyro": lambda t: (
        lambda: svi(optim=torch.optim.Adam([torch.zeros(1)])),
        lambda: svi(optim=pyro.optim.Adam({})),
    ),
    "federated/rounds: Clip records in the client": lambda t: (
        lambda: rounds().event(3, "record"),
        lambda: (
            rounds(record_rate=0.5, record_clip=0.5).event(3, "record"),
            rounds().event(3, "client"),
        ),
    ),
    "federated/rounds: Let clients add the noise": lambda t: (
        lambda: rounds().event(3, "client", SERVER_OF_SUMS),
        lambda: rounds(noise_shares=2).event(3, "client", SERVER_OF_SUMS),
    ),
    "federated/rounds: choose a smaller one": lambda t: (
        lambda: rounds(record_rate=0.5, record_clip=3.0),
        lambda: rounds(record_rate=0.5, record_clip=2.0),
    ),
    "federated/rounds: give both or neither": lambda t: (
        lambda: rounds(record_rate=0.5),
        lambda: (rounds(), rounds(record_rate=0.5, record_clip=1.0)),
    ),
    "federated/federated: give the clients": lambda t: (
        lambda: Federation(rounds(), bdpvi.Ledger(unit="who", rows_per_unit=2)),
        lambda: Federation(rounds(), bdpvi.Ledger()),
    ),
    "federated/federated: call sampled() first": lambda t: after(
        Federation(rounds()), lambda f: f.event(), lambda f: (f.sampled(1), f.event())
    ),
    "_ground/checkpoint: give what state_dict()": lambda t: after(
        stepped(),
        lambda s: s.load_state_dict(sealed({}), *TABLE),
        lambda s: s.load_state_dict(s.state_dict(), *TABLE),
    ),
    "bayesian/accounting/answer: Bound every record's": lambda t: (
        lambda: priced(guides.FullRank, 1, 1e-6),
        lambda: (priced(guides.FullRank, 1, 1.0), priced(guides.FullRank, 1, 1e-6, TIGHT)),
    ),
    "bayesian/accounting/answer: Draw fewer samples": lambda t: (
        lambda: priced(guides.MeanField, 1000, 10.0),
        lambda: priced(guides.MeanField, 1, 10.0),
    ),
    "privacy/book: `bdpvi ledger repair": lambda t: after(
        Ledger.at(t / "l").path,
        lambda f: (f.write_bytes(b""), Ledger(f).entries()),
        lambda f: repair(f),
    ),
    "privacy/book: put back the newest": lambda t: (
        lambda: first_line(t, b"{"),
        lambda: first_line(t, b""),
    ),
    "datasets/dtypes: Declare public levels": lambda t: (
        towns,
        lambda: (
            towns(pd.CategoricalDtype(["1", "2"])),
            towns(types=Schema({"town": ColumnType(levels=("1", "2"))}, "By law.")),
            towns(float),
        ),
    ),
    "sklearn/inputs: give it to bdpvi.private": lambda t: (
        lambda: PrivateLogisticRegression(classes=("no", "yes")).fit("t.csv", FRAME["sick"]),
        lambda: in_folder(t, one_row_per_person=True),
    ),
    "sklearn/base: leave unit or guarantee out": lambda t: (
        lambda: visiting(guarantee=bdpvi.BayesianDP()),
        visiting,
    ),
    "releases/persons: give unit=COLUMN": lambda t: (
        lambda: filed(t),
        lambda: (
            filed(t, unit="who", rows_per_unit=3, ledger=t / "a"),
            filed(t, one_row_per_person=True, drop=["who"], ledger=t / "b"),
        ),
    ),
    "privacy/events: count each step": lambda t: (
        lambda: replace(GAUSSIAN, norms=NORMS, steps=11),
        lambda: replace(GAUSSIAN, norms=NORMS.add_largest(), steps=11),
    ),
    "privacy/perturbed_objective: raise the ridge": lambda t: (
        lambda: calibrate(replace(SOLVED, curvature=9.0), epsilon=0.1, delta=1e-5),
        lambda: calibrate(replace(SOLVED, curvature=0.01), epsilon=0.1, delta=1e-5),
    ),
    "privacy/accounts: give another file (--ledger)": lambda t: after(
        WholeTable(data=str(FILE / "t.csv")),
        lambda one: one.ledger(None),
        lambda one: one.ledger(t / "l"),
    ),
    "bayesian/fit: use guides.FullRank": lambda t: (
        lambda: fitted(guide=guides.Laplace),
        lambda: fitted(guide=guides.FullRank),
    ),
    "commands/fit: choose another place": lambda t: (
        lambda: fit_with(t, "--ledger", t / "fit" / "l"),
        lambda: fit_with(t, "--ledger", t / "l"),
    ),
    "models/logistic: give one of them": lambda t: (
        lambda: BayesianLogisticRegression(clip=0.5, weight_norm=1.0),
        lambda: BayesianLogisticRegression(weight_norm=1.0),
    ),
    "bayesian/mode/route: use Coupled() or Optimum()": lambda t: (
        lambda: fitted(guide=guides.MeanField, neighbours=Mode()),
        lambda: fitted(guide=guides.MeanField, neighbours=Optimum()),
    ),
    "tables/predictions: rename it in": lambda t: (
        lambda: predicted(t, "class"),
        lambda: predicted(t, "name"),
    ),
    "commands/synthesize: say how many": lambda t: (
        lambda: sampled(t, "--out", t / "a"),
        lambda: sampled(t, "--out", t / "a", "--rows", 1),
    ),
    "datasets/measuring: list it in categorical (--categorical) if": lambda t: (
        lambda: measured(NAMES[:90]),
        lambda: measured(NAMES[:90], categorical=["c"]),
    ),
    "datasets/measuring: make it a number": lambda t: (
        lambda: measured(pd.date_range("2020-01-01", periods=2000)),
        lambda: measured(
            pd.date_range("2020-01-01", periods=2000).to_numpy().astype("int64") / 1e18
        ),
    ),
    "datasets/measuring: make it floating": lambda t: (
        lambda: measured(range(2000)),
        lambda: measured(np.arange(2000.0)),
    ),
    "datasets/measuring: make it numeric": lambda t: (
        lambda: measured(["1", "2", "?", "3"] * 500),
        lambda: (
            measured([1, 2, 4, 3] * 500),
            measured(["1", "2", "?", "3"] * 500, categorical=["c"]),
        ),
    ),
    "datasets/measuring: make them numbers": lambda t: (
        lambda: measured(["1/2/1990", "3/2/1990"] * 1000),
        lambda: measured([1.0, 1000.0] * 1000),
    ),
    "datasets/measuring: write 1234": lambda t: (
        lambda: measured(["1,234", "2,345"] * 1000),
        lambda: measured([1234, 2345] * 1000),
    ),
    "datasets/measuring: list it in categorical (--categorical)": lambda t: (
        lambda: measured(["1,234", "2,345"] * 1000),
        lambda: measured(["1,234", "2,345"] * 1000, categorical=["c"]),
    ),
    "tables/rows: make them numbers": lambda t: (
        lambda: bought(WRITTEN),
        lambda: (bought(range(2000)), bought(WRITTEN, drop=["c"])),
    ),
    "datasets/schema: declare them there": lambda t: (
        lambda: SCHEMA.encode(FRAME),
        lambda: SCHEMA.encode(FRAME[["age"]]),
    ),
    "datasets/types: give levels": lambda t: (
        lambda: ColumnType(kind="number", low=0.0),
        lambda: (ColumnType(kind="number"), ColumnType(kind="number", low=0.0, high=1.0)),
    ),
    "datasets/constants: give the file as types": lambda t: (
        lambda: constants_of({"source": "By law.", "columns": {"age": {"kind": "number"}}}),
        lambda: private(types=Schema({"age": ColumnType(kind="number")}, "By law.")),
    ),
    "datasets/looks: make them numbers by": lambda t: (
        lambda: looked(FRAME.assign(c=WRITTEN)),
        lambda: looked(FRAME.assign(c=WRITTEN), epsilon=3.0, types=Schema({"c": GROUPED}, "")),
    ),
    "datasets/looks: declare its spellings": lambda t: (
        lambda: looked(FRAME.assign(sick=["no", "Yes"] * 1000), constants=PUBLIC),
        lambda: looked(
            FRAME.assign(sick=["no", "Yes"] * 1000),
            constants=PUBLIC,
            types=Schema({"sick": ColumnType(kind="boolean", levels=("no", "yes"))}, ""),
        ),
    ),
    "datasets/tables: say which value": lambda t: (
        lambda: from_frame(FRAME, "sick", constants=PUBLIC),
        lambda: from_frame(FRAME, "sick", constants=PUBLIC, positive="yes"),
    ),
    "releases/steps: use more": lambda t: (
        lambda: trained(noise_multiplier=1e-9).worst_case(1e-5),
        lambda: trained().worst_case(1e-5),
    ),
    "federated/federated: use more": lambda t: (lambda: promised(1e-9), lambda: promised(1.0)),
    "federated/federated_vi: make Rounds": lambda t: (
        lambda: federated(size=2),
        lambda: federated(size=3),
    ),
    "bayesian/inference/guide: use FullRank": lambda t: (
        lambda: federated(guides.Laplace(BOUNDED)),
        lambda: federated(guides.FullRank(BOUNDED)),
    ),
    "releases/noisy_sum: use less noise": lambda t: (
        lambda: NoisySum(rate=0.5, clip=1.0, noise_multiplier=1e7, size=10**8, records=9),
        lambda: NoisySum(rate=0.5, clip=1.0, noise_multiplier=1e3, size=10**8, records=9),
    ),
    "networks/private: give the same": lambda t: resumed({"panel": PANEL}, {}),
    "networks/records: keep records apart": lambda t: (
        lambda: network(data=WHOLE, panel=WHOLE),
        lambda: network(data=WHOLE, panel=PANEL),
    ),
    "programs/arguments: make an argument": lambda t: after(
        stepped(*TABLE, 0.5, model=program(GOOD, "x, y, c")),
        lambda s: s.step(*TABLE, 1.0),
        lambda s: (
            s.step(*TABLE, 0.5),
            pyro.clear_param_store(),
            stepped(model=partial(program(GOOD, "x, y, c"), c=1.0)),
        ),
    ),
    "programs/runs: Call pyro.clear_param_store() first": lambda t: (
        lambda: (program(GUIDE)(*TABLE), stepped(guide=GUIDE)),
        lambda: (pyro.clear_param_store(), stepped(guide=GUIDE)),
    ),
    "bayesian/inference/guide: Call pyro.clear_param_store() and make": lambda t: (
        lambda: used(True),
        lambda: (pyro.clear_param_store(), used(False)),
    ),
    "federated/rounds: Use more shares": lambda t: (
        lambda: rounds(noise_shares=1).event(3, "client", OTHER_CLIENT),
        lambda: rounds(noise_shares=2).event(3, "client", OTHER_CLIENT),
    ),
    "guides/checks: make it with the model": lambda t: (
        lambda: bdpvi.check(
            program(GOOD),
            guides.MeanField(program(GOOD.replace("'w'", "'v'"))),
            logistic_data(60, 3),
        ),
        lambda: fitted(program(GOOD)),
    ),
    "guides/checks: use one of bdpvi": lambda t: after(
        program(GOOD),
        lambda m: bdpvi.check(m, program(GUIDE), logistic_data(60, 3)),
        lambda m: bdpvi.check(m, AutoNormal(m), logistic_data(60, 3)),
    ),
    "guides/converted: use {}": lambda t: (
        lambda: fitted(program(GOOD), AutoDelta),
        lambda: fitted(program(GOOD), AutoDiagonalNormal),
    ),
    "guides/gaussian: rename it": lambda t: (
        lambda: fitted(program(GOOD.replace("'w'", "'loc'"))),
        lambda: fitted(program(GOOD)),
    ),
    "bayesian/inference/optimisers: use another schedule": lambda t: (
        lambda: scheduled("ReduceLROnPlateau", {}),
        lambda: scheduled("ExponentialLR", {"gamma": 0.9}),
    ),
    "bayesian/inference/optimisers: use one of": lambda t: (
        lambda: fitted(neighbours=FEW, optim=pyro.optim.PyroOptim(torch.optim.LBFGS, {})),
        lambda: fitted(neighbours=FEW, optim=pyro.optim.Adam({})),
    ),
    "bayesian/inference/svi: lower the learning rate": lambda t: (
        lambda: fitted(optim=pyro.optim.SGD({"lr": 1e200})),
        lambda: fitted(optim=pyro.optim.SGD({"lr": 0.01})),
    ),
    "bayesian/inference/svi: use a higher rate": lambda t: (
        lambda: fitted(rate=1e-4),
        lambda: fitted(rate=0.5),
    ),
    "bayesian/optimum/drawn: use Coupled": lambda t: (
        lambda: fitted(neighbours=FixedDraws()),
        lambda: fitted(neighbours=FEW),
    ),
    "bayesian/optimum/elbo: raise the tolerance": lambda t: (
        # of so many coordinates rounding leaves some that are not exactly 0
        lambda: fitted(data=logistic_data(200, 20), neighbours=Optimum(tolerance=1e-300)),
        lambda: fitted(data=logistic_data(200, 20), neighbours=Optimum()),
    ),
    "bayesian/optimum/route: use a larger clip": lambda t: (
        lambda: noisy(1e-15),
        lambda: noisy(1e-9),
    ),
    "bayesian/optimum/search: use a smaller": lambda t: (
        lambda: fitted(BayesianLogisticRegression(prior_scale=1e6), neighbours=Optimum()),
        lambda: fitted(BayesianLogisticRegression(prior_scale=1e2), neighbours=Optimum()),
    ),
    "bayesian/optimum/sensitivity: use Coupled": lambda t: (
        lambda: fitted(program(GOOD), neighbours=Optimum()),
        lambda: fitted(program(GOOD), neighbours=FEW),
    ),
    "bayesian/optimum/sizes: use a mean-field": lambda t: (
        lambda: fitted(guide=guides.FullRank, data=logistic_data(20, 120), neighbours=Optimum()),
        lambda: fitted(data=logistic_data(20, 120), neighbours=Optimum()),
    ),
    "bayesian/optimum/stream: give a Dataset": lambda t: (
        lambda: on_disk(t, FEW),
        lambda: (fitted(neighbours=FEW), on_disk(t, Optimum())),
    ),
    "tables/files: give a folder": lambda t: after(
        fitted(),
        lambda f: (bdpvi.save_fit(f, t / "a"), files.load(t / "a")),
        lambda f: bdpvi.cost(bdpvi.load_fit(t / "a", BOUNDED, guides.MeanField(BOUNDED))),
    ),
    "tables/metrics: hold more records out": lambda t: (
        lambda: check_classes("test", torch.zeros(2)),
        lambda: check_classes("test", torch.tensor([0.0, 1.0, 1.0])),
    ),
    "tables/pipeline: say which value": lambda t: (
        lambda: private(positive=None),
        lambda: private(constants=PUBLIC),
    ),
    "tables/private: Choose a smaller": lambda t: (
        lambda: private(delta=0.01, constants=PUBLIC),
        lambda: private(delta=1e-4, constants=PUBLIC),
    ),
    "tables/private: give --constants": lambda t: (
        lambda: private(guarantee=bdpvi.BayesianDP()),
        lambda: (private(guarantee=bdpvi.BayesianDP(), constants=PUBLIC), private()),
    ),
    "tables/private: leave levels=": lambda t: (
        lambda: visits(replace(LARGEST, exposure=0), 1),
        lambda: visits(COUNTS, 1, exposure="years"),
    ),
    "bayesian/guarantees: ask for the worst": lambda t: after(
        persons(), lambda d: guided(d, guarantee=bdpvi.BayesianDP()), guided
    ),
    "bayesian/guarantees: Ask for guarantee=WorstCaseDP()": lambda t: after(
        bought_mode(), bdpvi.release, lambda f: bdpvi.release(f, guarantee=bdpvi.WorstCaseDP())
    ),
    "bayesian/promised: Take guides.Laplace": lambda t: (
        lambda: bdpvi.release(fitted(LOOSE), epsilon=20.0, guarantee=bdpvi.BayesianDP()),
        lambda: (
            bdpvi.release(fitted(LOOSE, guides.Laplace), epsilon=20.0),
            bdpvi.release(fitted(LOOSE), epsilon=20.0, guarantee=bdpvi.TypicalRecord()),
            bdpvi.release(
                fitted(guide=partial(guides.MeanField, noise_scale=0.1), neighbours=Optimum()),
                epsilon=20.0,
            ),
        ),
    ),
    "releases/received: give the fitted": lambda t: (
        lambda: kept(t, None),
        lambda: kept(t, program(GOOD)),
    ),
    "bayesian/storage: Restore the matching": lambda t: (
        lambda: exchanged(t, True),
        lambda: exchanged(t, False),
    ),
    "releases/shared_file: leave the seed out": lambda t: (
        lambda: seeded(t, 0),
        lambda: seeded(t, None),
    ),
    "sklearn/logistic: give classes that": lambda t: (
        lambda: estimated(),
        lambda: estimated(classes=(0, 1)),
    ),
    "sklearn/classes: give classes=": lambda t: (
        lambda: estimated(y=np.zeros(300)),
        lambda: estimated(y=np.zeros(300), classes=(0, 1)),
    ),
    "sklearn/logistic: give expected_rows": lambda t: (
        lambda: estimated(bounds=None, classes=(0, 1), intervals=True, epsilon=9.0),
        lambda: (
            estimated(bounds=None, classes=(0, 1), intervals=True, epsilon=9.0, expected_rows=300),
            estimated(classes=(0, 1), intervals=True, epsilon=9.0),
        ),
    ),
    "synthesis/counts: leave a column out": lambda t: (
        lambda: grouped(99999),
        lambda: (grouped(99999, "abcd"), grouped(9)),
    ),
    "synthesis/order: take it out": lambda t: (
        lambda: of_persons(["age", "who"]),
        lambda: of_persons(["age"]),
    ),
    "privacy/accounts: give a local file": lambda t: (
        lambda: in_folder(t, url=True, one_row_per_person=True),
        lambda: in_folder(t, url=True, one_row_per_person=True, ledger=t / "a.jsonl"),
    ),
    "tables/spread: give settings with": lambda t: (
        lambda: in_folder(t, one_row_per_person=True, settings=Recipe(noise_scale=0.1)),
        lambda: in_folder(
            t, one_row_per_person=True, settings=Recipe(route=ObjectivePerturbation(rows=300))
        ),
    ),
    "datasets/units: read the column as text": lambda t: (
        lambda: of_people(float),
        lambda: (of_people(str), of_people(float, "Int64")),
    ),
    "datasets/units: `bdpvi partition": lambda t: (
        lambda: of_visits(t, "visits.csv"),
        lambda: of_visits(t, "parts"),
    ),
    "bayesian/fit: leave rate and optim out": lambda t: (
        lambda: in_blocks(t, Training(rate=0.5)),
        lambda: in_blocks(t, Training(steps=5)),
    ),
    "datasets/block_tables: give an Encoding": lambda t: (
        lambda: in_blocks(t, constants=None),
        lambda: in_blocks(t),
    ),
    "datasets/buckets: leave out those": lambda t: (
        lambda: partitioned(t / "a", ROWS + 1),
        lambda: partitioned(t / "b", ROWS),
    ),
    "datasets/dataset: number the records": lambda t: (
        lambda: Dataset(*TABLE, torch.arange(60) + 2**40),
        lambda: Dataset(*TABLE, torch.arange(60)),
    ),
    "datasets/dataset: make each a pair": lambda t: (
        lambda: BlockData.of_items(TensorDataset(TABLE[0])),
        lambda: BlockData.of_items(TensorDataset(*TABLE)),
    ),
    "datasets/items: make each a tensor": lambda t: (
        lambda: Items.of(Named(*TABLE)),
        lambda: Items.of(TensorDataset(*TABLE)),
    ),
    "datasets/items: make each a pair": lambda t: (
        lambda: Table.of(TensorDataset(*TABLE, TABLE[1])),
        lambda: Table.of(TensorDataset(*TABLE)),
    ),
    "bayesian/optimum/stream: give tensors": lambda t: (
        lambda: fitted(data=BlockData.of_items(WHOLE), neighbours=Optimum()),
        lambda: fitted(neighbours=Optimum()),
    ),
}
