"""What a refusal says to do works: a call is refused, and then done as the message has it."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from simulated import logistic_data
from test_refused_programs import GOOD, GUIDE, TABLE, program
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import bdpvi
from bdpvi import (
    BayesianLogisticRegression,
    Coupled,
    Dataset,
    Ledger,
    Training,
    guides,
    make_private,
)
from bdpvi.bayesian import FixedDraws, Remove
from bdpvi.datasets import constants_of, from_frame
from bdpvi.datasets.items import Items
from bdpvi.datasets.schema import Schema
from bdpvi.datasets.types import ColumnType
from bdpvi.federated.federated import Federation
from bdpvi.federated.rounds import Rounds
from bdpvi.privacy.entry import Entry
from bdpvi.privacy.events import SampledGaussian
from bdpvi.sklearn import PrivateLogisticRegression
from bdpvi.synthesis.counts import Counts

FRAME = pd.DataFrame({"age": [*range(20, 70)] * 40, "sick": ["no", "yes"] * 1000})
PUBLIC = constants_of({"source": "By law.", "age": [18, 80]})
LOOSE = BayesianLogisticRegression()
BOUNDED = BayesianLogisticRegression(clip=0.1, prior_scale=0.1)


class Named(TensorDataset):
    """Records with a text."""

    def __getitem__(self, at: int) -> Any:
        return {"x": self.tensors[0][at], "y": "yes"}


def network(module: nn.Module | None = None, **more: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)  # by chance a loss can look like a mean over records
        module = module or nn.Linear(3, 2)
    given: dict[str, Any] = {"loss": F.cross_entropy, "rate": 0.5, **more}
    return make_private(
        module,
        torch.optim.SGD(module.parameters(), lr=0.1),
        data=(TABLE[0], (TABLE[1] > 0).long()),
        max_grad_norm=1.0,
        noise_multiplier=2.0,
        **given,
    )


def trained(**more: Any) -> Any:
    made = network(**more)
    made.step()
    return made


def fitted(model: Any = BOUNDED, guide: Any = guides.MeanField, **more: Any) -> Any:
    training = Training(steps=20, **{name: more.pop(name) for name in ("optim",) if name in more})
    return bdpvi.fit(
        model, guide(model), logistic_data(60, 3), training=training, progress=False, **more
    )


def private(table: Any = FRAME, **more: Any) -> Any:
    given = {"target": "sick", "positive": "yes", "epsilon": 1.0, "progress": False, **more}
    return flat.private(table, **given)


def resumed(**other: Any) -> tuple[Any, Any]:
    """Return how a state meets another run, and its own."""
    state = trained().state_dict()

    def load(**given: Any) -> None:
        network(**given).load_state_dict(state)

    return partial(load, **other), load


def forked(made: Any) -> tuple[Any, Any]:
    state = made.state_dict()
    made._charged._owner = -1
    return made.step, lambda: network().load_state_dict(state)


def after(made: Any, wrong: Any, right: Any) -> tuple[Any, Any]:
    """Return both calls of one object."""
    return lambda: wrong(made), lambda: right(made)


def opened(t: Path, mode: int) -> Any:
    (t / "a").mkdir(exist_ok=True)
    (t / "a").chmod(mode)
    return private(out=t / "out", secret=t / "a", constants=PUBLIC)


def begun(t: Path, folder: str) -> Any:
    if not (t / "a").exists():
        private(out=t / "b", secret=t / "a", constants=PUBLIC)
    return private(out=t / "c", secret=t / folder, epsilon=2.0, constants=PUBLIC)


ROUNDS = Rounds(clients=9, size=3, clip=2.0, noise_multiplier=1.5, client_rate=0.5)
FEW = Coupled(Remove(3))
LOGISTIC = BayesianLogisticRegression(intercept=True)
CHANCE = np.random.default_rng(0)
SCALED = pd.DataFrame(CHANCE.normal(50, 9, (3000, 2)), columns=["age", "dose"])
SCALED["sick"] = np.where(SCALED["age"] > 50, "yes", "no")
NAMES = [f"P{i}" for i in range(2000)]


def measured(column: Any, **more: Any) -> Any:
    return from_frame(FRAME.iloc[: len(column)].assign(c=column), "sick", positive="yes", **more)


def scripted(module: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(module)


def scheduled(name: str, more: dict[str, Any]) -> Any:
    given = {"optimizer": torch.optim.SGD, "optim_args": {"lr": 1e-3}, **more}
    return fitted(neighbours=FEW, optim=getattr(pyro.optim, name)(given))


def bought_mode() -> Any:
    """Return a fit with a charge for constants."""
    fit = fitted(LOOSE, guides.Laplace)
    noise = SampledGaussian(noise_multiplier=9.0)
    fit.ledger.charge(Entry(kind="constants", of=fit.kept.name, events=(noise,)))
    return fit


def kept(t: Path, model: Any) -> Any:
    if not (t / "r").exists():
        found = fitted(program(GOOD), neighbours=Coupled())
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


def estimated(y: Any = None, **more: Any) -> Any:
    data = logistic_data(300, 2)
    y = data.y.numpy() if y is None else y
    return PrivateLogisticRegression(**{"bounds": (-4, 4), **more}).fit(data.x.numpy(), y)


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


def grouped(levels: int, group: str = "abce") -> Any:
    domains = {name: ColumnType(low=0.0, high=float(levels), whole=True) for name in "abce"}
    domains["d"] = ColumnType(levels=("x",))
    table = pd.DataFrame({"a": [1], "b": [1], "c": [1], "d": ["x"], "e": [1]})
    settings = Counts(also=(tuple(group),))
    return bdpvi.synthesize(table, Schema(domains, "By law."), epsilon=1.0, settings=settings)


Case = Callable[[Path], tuple[Callable[[], Any], Callable[[], Any]]]
CASES: dict[str, Case] = {
    "chmod 700 it": lambda t: (
        lambda: opened(t, 0o755),
        lambda: opened(t, 0o700),
    ),
    "choose another folder": lambda t: (
        lambda: begun(t, "a"),
        lambda: begun(t, "d"),
    ),
    "create the run again": lambda t: forked(trained()),
    "make the run as it was": lambda t: resumed(rate=0.25),
    "make it as it was before": lambda t: resumed(module=nn.Sequential(nn.Linear(3, 2))),
    "put a layer or a loss": lambda t: (
        lambda: network(Doubled(3, 2)),
        lambda: network(nn.Linear(3, 2)),
    ),
    "Give raw columns": lambda t: (
        lambda: told_of("each column", lambda: bdpvi.fit_private(LOGISTIC, scaled(), epsilon=1.0)),
        lambda: told_of("each column", lambda: private(SCALED, one_row_per_person=True)),
    ),
    "give the module as it was": lambda t: (
        lambda: network(scripted(nn.Linear(3, 2))),
        lambda: network(nn.Linear(3, 2)),
    ),
    "use GroupNorm": lambda t: (
        lambda: network(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))),
        lambda: [
            trained(module=nn.Sequential(nn.Linear(3, 4), one))
            for one in (nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.BatchNorm1d(4).eval())
        ],
    ),
    "use float32": lambda t: after(
        nn.Linear(3, 2).bfloat16(), network, lambda m: network(m.float())
    ),
    "use reduction=": lambda t: (
        lambda: network(loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0]))),
        lambda: [
            trained(loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0]), reduction=how))
            for how in ("none", "sum")
        ],
    ),
    "give the clients": lambda t: (
        lambda: Federation(ROUNDS, Ledger(unit="who", rows_per_unit=2)),
        lambda: Federation(ROUNDS, Ledger()),
    ),
    "give one of them": lambda t: (
        lambda: BayesianLogisticRegression(clip=0.5, weight_norm=1.0),
        lambda: BayesianLogisticRegression(weight_norm=1.0),
    ),
    "list it in categorical (--categorical) if": lambda t: (
        lambda: measured(NAMES[:90]),
        lambda: measured(NAMES[:90], categorical=["c"]),
    ),
    "write 1234": lambda t: (
        lambda: measured(["1,234", "2,345"] * 1000),
        lambda: measured([1234, 2345] * 1000),
    ),
    "make it with the model": lambda t: (
        lambda: bdpvi.check(
            program(GOOD),
            guides.MeanField(program(GOOD.replace("'w'", "'v'"))),
            logistic_data(60, 3),
        ),
        lambda: fitted(program(GOOD)),
    ),
    "use one of bdpvi": lambda t: after(
        program(GOOD),
        lambda m: bdpvi.check(m, program(GUIDE), logistic_data(60, 3)),
        lambda m: bdpvi.check(m, AutoNormal(m), logistic_data(60, 3)),
    ),
    "use another schedule": lambda t: (
        lambda: scheduled("ReduceLROnPlateau", {}),
        lambda: scheduled("ExponentialLR", {"gamma": 0.9}),
    ),
    "use Coupled": lambda t: (
        lambda: fitted(neighbours=FixedDraws()),
        lambda: fitted(neighbours=FEW),
    ),
    "Ask for guarantee=WorstCaseDP()": lambda t: after(
        bought_mode(), bdpvi.release, lambda f: bdpvi.release(f, guarantee=bdpvi.WorstCaseDP())
    ),
    "give the fitted": lambda t: (
        lambda: kept(t, None),
        lambda: kept(t, program(GOOD)),
    ),
    "Restore the matching": lambda t: (
        lambda: exchanged(t, True),
        lambda: exchanged(t, False),
    ),
    "give classes=": lambda t: (
        lambda: estimated(y=np.zeros(300)),
        lambda: estimated(y=np.zeros(300), classes=(0, 1)),
    ),
    "leave a column out": lambda t: (
        lambda: grouped(99999),
        lambda: (grouped(99999, "abcd"), grouped(9)),
    ),
    "make each a tensor": lambda t: (
        lambda: Items.of(Named(*TABLE)),
        lambda: Items.of(TensorDataset(*TABLE)),
    ),
}
"""By words of the remedy: what is refused, and the same as the refusal has it, in one folder."""


@pytest.mark.parametrize("remedy", CASES)
def test_what_a_refusal_says_works(remedy: str, tmp_path: Path) -> None:
    wrong, right = CASES[remedy](tmp_path)
    with pytest.raises((ValueError, ArithmeticError, UserWarning), match=re.escape(remedy)):
        wrong()
    right()
    pyro.clear_param_store()
