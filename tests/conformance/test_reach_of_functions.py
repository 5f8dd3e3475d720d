"""Starting values are public, and a user's functions can reach no record beside their arguments."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pyro.infer.autoguide as auto
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    init_to_generated,
    init_to_sample,
    init_to_value,
)
from pyro.nn import PyroModule, PyroParam
from pyro.optim import SGD, Adam
from torch import Tensor, nn

import bdpvi
from bdpvi import Dataset, Ledger, PrivateSVI, guides
from bdpvi.federated.parties import Client, Server, blank
from bdpvi.federated.rounds import Rounds
from bdpvi.models.losses import LossBound
from bdpvi.models.own import OwnRegression
from bdpvi.models.reachable import check_reach

pytestmark = pytest.mark.usefixtures("fresh_store")

_generator = torch.Generator().manual_seed(7)
X = torch.randn(500, 2, generator=_generator)
Y = (torch.rand(500, generator=_generator) < 0.5).float()
TABLE: dict[str, Any] = {"x": X}
LIST = [X]


def mixture(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("components", 3):
        locs = pyro.sample("locs", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ locs[0] + locs.sum(), 1.0), obs=y)


def first_rows() -> Tensor:
    result: Tensor = TABLE["x"][:3]
    return result


class Holding:
    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def __call__(self, site: Any) -> Tensor:
        return self.rows[:3]

    def start(self, site: Any) -> Tensor:
        return self.rows[:3]


class Located(PyroModule):  # type: ignore[misc]
    def __init__(self, start: Tensor, rows: Tensor | None = None) -> None:
        super().__init__()
        self.loc = nn.Parameter(start)
        self.register_buffer("rows", rows)

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        with pyro.plate("components", 3):
            pyro.sample("locs", dist.Normal(self.loc, 1.0).to_event(1))


def one_by_one(rows: Tensor) -> Iterator[Tensor]:
    yield from rows


def starting(init: Any) -> Callable[[Path], AutoDelta]:
    return lambda _: AutoDelta(mixture, init_loc_fn=init)


def closure(x: Tensor) -> Any:
    return lambda site: x[:3]


def default(site: Any, start: Tensor = X) -> Tensor:
    return start[:3]


def keyword(site: Any, *, start: Tensor = X) -> Tensor:
    return start[:3]


def array(x: Any) -> Any:
    return lambda site: torch.as_tensor(x[:3])


def frame(x: pd.DataFrame) -> Any:
    return lambda site: torch.tensor(x[["a", "b"]].to_numpy()[:3])


def attribute(x: Any) -> Any:
    return lambda site: x.inner.rows[:3]


def some(rows: Iterator[Tensor]) -> Any:
    return lambda site: torch.stack([next(rows) for _ in range(3)])


def written(folder: Path) -> AutoDelta:
    torch.save(X, folder / "x.pt")
    return AutoDelta(mixture, init_loc_fn=lambda site: torch.load(folder / "x.pt")[:3])


def by_param(_: Path) -> Any:
    def guide(x: Tensor, y: Tensor | None = None) -> None:
        loc = pyro.param("loc", lambda: first_rows().clone())
        with pyro.plate("components", 3):
            pyro.sample("locs", dist.Normal(loc, 1.0).to_event(1))

    return guide


@functools.lru_cache
def cached(seed: int) -> Tensor:
    return X.clone()


_CHOSEN = X[torch.randperm(500, generator=_generator)[:3]].clone()
_FRAME = pd.DataFrame(X.numpy().copy(), columns=["a", "b"]).assign(c="text", d=1)
_START = {"locs": X[:3].clone()}

WAYS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "closure": (starting(closure(X)), "guide.init_loc_fn, its closure variable x:"),
    "closure of a copy": (starting(closure(X.clone())), "closure variable x:"),
    "closure of chosen rows": (starting(closure(_CHOSEN)), "closure variable x:"),
    "init_to_value": (starting(init_to_value(values=_START)), r"values\['locs'\]:"),
    "init_to_generated": (
        starting(init_to_generated(generate=lambda: init_to_value(values={"locs": first_rows()}))),
        "guide.init_loc_fn.generate, its global first_rows, its global",
    ),
    "default argument": (starting(default), "its default argument start:"),
    "keyword default": (starting(keyword), "its default argument start:"),
    "global dict": (starting(lambda site: TABLE["x"][:3]), r"its global TABLE\['x'\]:"),
    "global list": (starting(lambda site: LIST[0][:3]), r"its global LIST\[0\]:"),
    "helper": (starting(lambda site: first_rows()), r"its global first_rows, its global TABLE"),
    "numpy memory": (starting(array(X.numpy())), "closure variable x:"),
    "numpy copy": (starting(array(X.numpy().astype(np.float64))), "closure variable x:"),
    "rows as lists": (starting(array(X.tolist())), r"closure variable x\[0\]:"),
    "frame": (starting(frame(_FRAME)), "closure variable x:"),
    "object's attribute": (
        starting(attribute(SimpleNamespace(inner=Holding(X)))),
        "closure variable x.inner.rows:",
    ),
    "callable object": (starting(Holding(X)), "guide.init_loc_fn.rows:"),
    "bound method": (starting(Holding(X.double()).start), "guide.init_loc_fn.rows:"),
    "built-in method": (starting(functools.partial(X.narrow, 0, 0, 3)), "guide.init_loc_fn"),
    "partial": (starting(functools.partial(default, start=X)), "its argument start:"),
    "generator": (starting(some(one_by_one(X.clone()))), "rows, its variable rows:"),
    "iterator": (starting(some(iter([*X[:3].clone()]))), r"its closure variable rows\[0\]:|rows"),
    "cache": (starting(lambda site: cached(0)[:3]), "its global cached"),
    "file": (written, "start of parameter 'AutoDelta.locs':"),
    "pyro.param": (by_param, "its global first_rows, its global TABLE"),
    "weights": (lambda _: Located(X[:3].clone()), "guide.loc:"),
    "buffer": (lambda _: Located(torch.zeros(3, 2), X[:3].clone()), "guide.rows:"),
}


def step(model: Any, guide: Any, x: Any = X, y: Tensor = Y, **given: Any) -> PrivateSVI:
    optim = given.pop("optim", Adam({"lr": 0.01}))
    settings: dict[str, Any] = {"clip": 1.0, "noise_multiplier": 2.0, "rate": 0.1, **given}
    svi = PrivateSVI(model, guide, optim, Trace_ELBO(), **settings)
    svi.step(x, y)
    return svi


REMEDY = "Take records from the arguments alone, .*public values; .* seed. Nothing was charged"


@pytest.mark.parametrize("way", WAYS)
def test_a_start_out_of_the_records_is_refused_by_its_way(way: str, tmp_path: Path) -> None:
    make, named = WAYS[way]
    cached(0)
    ledger = Ledger()
    with pytest.raises(ValueError, match=rf"({named}).* these are records, .*{REMEDY}"):
        step(mixture, make(tmp_path), ledger=ledger)
    assert not ledger.entries()


@pytest.mark.parametrize("way", ["closure of a copy", "default argument", "frame", "file"])
def test_any_route_to_a_release_refuses_it(way: str, tmp_path: Path) -> None:
    make, named = WAYS[way]
    guide = auto.AutoNormal(mixture, init_loc_fn=make(tmp_path).init_loc_fn)
    data = Dataset(X, Y)
    named = named.replace("AutoDelta.locs", "AutoNormal.locs.locs")
    with pytest.raises(ValueError, match=named):
        bdpvi.fit_private(mixture, data, epsilon=1.0, guide=guide, route=bdpvi.DPVI(rows=500))
    assert not data.ledger.entries()


def test_records_by_index_are_found_too() -> None:
    both = torch.utils.data.TensorDataset(X, Y)
    for hidden in (both, X[:3].clone(), torch.utils.data.DataLoader(both)):

        def model(x: Tensor, y: Tensor, _own: Any = hidden) -> None:
            mixture(x, y)

        with pytest.raises(ValueError, match="model, its default argument _own"):
            PrivateSVI(
                model, AutoDelta(mixture), Adam({}), Trace_ELBO(),
                clip=1.0, noise_multiplier=1.0, rate=0.1,
            ).step(both)  # fmt: skip


def prior_of(middle: Any) -> Any:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(middle.mean(0).to(x), 1.0).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    return model


def family_of(rows: Tensor) -> Any:
    def family(predictors: Tensor) -> Any:
        return dist.Bernoulli(logits=predictors + 0 * rows.sum())

    return family


def through_fit(rows: Tensor) -> None:
    model = prior_of(rows)
    training = bdpvi.Training(steps=5)
    bdpvi.fit(
        model, guides.MeanField(model), (X.double(), Y.double()), training=training, progress=False
    )


def through_private_fit(rows: Tensor) -> None:
    bdpvi.fit_private(prior_of(rows), (X, Y), epsilon=1.0, route=bdpvi.DPVI(rows=500, steps=20))


def through_own_regression(rows: Tensor) -> None:
    bound = LossBound(score=1.0, curvature=0.25, concordance=1.0)
    model = OwnRegression(family=family_of(rows), targets=(0, 1), whole=True, bound=bound)
    bdpvi.fit(model, guides.Laplace(model), (X, Y), progress=False)


def through_loss(rows: Tensor) -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(out[:, 0] + rows[0, 0], y)

    module = nn.Linear(2, 1)
    bdpvi.make_private(
        module, torch.optim.SGD(module.parameters(), lr=0.1), loss=loss, data=(X, Y),
        rate=0.1, max_grad_norm=1.0, noise_multiplier=1.0,
    )  # fmt: skip


def through_client(rows: Tensor) -> None:
    rounds = Rounds(clients=2, size=2, clip=1.0, noise_multiplier=1.0)
    Client(prior_of(rows), Dataset(X, Y), rounds)


def through_optimiser(rows: Tensor) -> None:
    def settings(name: str) -> dict[str, float]:
        return {"lr": float(rows.std())}

    step(mixture, AutoDelta(mixture), optim=SGD(settings))


@pytest.mark.parametrize(
    "through",
    [
        through_fit,
        through_private_fit,
        through_own_regression,
        through_loss,
        through_client,
        through_optimiser,
    ],
)
def test_every_function_of_a_user_s_is_searched(through: Callable[[Tensor], None]) -> None:
    for rows in (X, X.clone(), X[40:60].clone()):
        with pytest.raises(ValueError, match=r"closure variable (rows|middle): these are records"):
            through(rows)
    through(torch.ones(3, 2))


# --- two made-up tables ---------------------------------------------------------------------------


class OfFirst(PyroModule):  # type: ignore[misc]
    """A guide that starts where its first records are."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        if not hasattr(self, "loc"):
            self.loc = PyroParam(x.mean(0).expand(3, 2).clone())
        with pyro.plate("components", 3):
            pyro.sample("locs", dist.Normal(self.loc, 1.0).to_event(1))


def of_arguments(x: Tensor, y: Tensor | None = None) -> None:
    loc = pyro.param("loc", x.mean(0).expand(3, 2).clone())
    with pyro.plate("components", 3):
        pyro.sample("locs", dist.Normal(loc, 1.0).to_event(1))


@pytest.mark.parametrize("guide", [of_arguments, OfFirst()])
def test_a_start_that_follows_from_records_is_refused(guide: Any) -> None:
    ledger = Ledger()
    with pytest.raises(ValueError, match=r"parameter 'loc' starts at values of the records"):
        step(mixture, guide, ledger=ledger)
    assert not ledger.entries()


def test_a_start_by_chance_is_public() -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        pyro.clear_param_store()
        step(mixture, AutoDelta(mixture, init_loc_fn=init_to_sample))
        pyro.clear_param_store()
        fresh = np.random.default_rng()  # as a start by NumPy's coins
        step(
            mixture,
            AutoDelta(
                mixture, init_loc_fn=lambda _, f=fresh: torch.tensor(f.normal(size=(3, 2))).float()
            ),
        )
    pyro.clear_param_store()
    step(mixture, auto.AutoIAFNormal(mixture))  # its weights draw by themselves


# --- coincidences ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "records",
    [
        torch.randint(0, 2, (400, 5), generator=_generator).float(),  # zeros and ones
        torch.randint(0, 100, (400, 1), generator=_generator).float(),  # whole numbers
        torch.randint(0, 7, (400, 2), generator=_generator) / 6,  # few levels of many digits
        torch.randn(400, 3, generator=_generator).round(decimals=1),
    ],
)
def test_constants_that_some_records_have_are_no_refusal(records: Tensor) -> None:
    public = {
        "zeros": torch.zeros(400), "ones": torch.ones(5), "identity": torch.eye(5),
        "places": torch.arange(100.0), "levels": torch.linspace(0, 1, 7),
        "tenths": torch.arange(-20, 20) / 10, "scale": math.pi, "prior": [0.0, 2.5, 10.0],
        "row": records.new_tensor([0.0, 1.0, 0.0]), "words": ["a", "b"], "none": None,
    }  # fmt: skip
    check_reach([records], public=public)


def test_random_weights_are_no_refusal() -> None:
    records = torch.randn(1_000_000, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    check_reach([records], module=nn.Sequential(nn.Linear(200, 300), nn.Linear(300, 100)))


# --- guides ---------------------------------------------------------------------------------------

TRAINED = {
    "AutoDelta", "AutoDiagonalNormal", "AutoHierarchicalNormalMessenger", "AutoIAFNormal",
    "AutoLowRankMultivariateNormal", "AutoMultivariateNormal", "AutoNormal", "AutoNormalMessenger",
    "AutoRegressiveMessenger",
}  # fmt: skip
OF_PARTS = {"AutoGaussian", "AutoGuideList", "AutoCallable", "AutoStructured"}
"""They take more than a model; ``tests/programs/test_pyro_features.py`` trains them."""
ABSTRACT = {"AutoContinuous", "AutoGuide", "AutoMessenger", "AutoNormalizingFlow"}
DISCRETE = {"AutoDiscreteParallel"}


def simple(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def test_each_guide_of_pyro_is_trained_or_refused_by_name() -> None:
    every = {name for name in dir(auto) if isinstance(getattr(auto, name), type)}
    known = TRAINED | OF_PARTS | ABSTRACT | DISCRETE | {"AutoLaplaceApproximation"}
    assert every == known
    for name in TRAINED:
        pyro.clear_param_store()
        step(simple, getattr(auto, name)(simple))


class Own(auto.AutoLaplaceApproximation):  # type: ignore[misc]
    """A guide of a user's."""


def of_parts() -> auto.AutoGuideList:
    made = auto.AutoGuideList(mixture)
    made.append(auto.AutoLaplaceApproximation(poutine.block(mixture, hide=["other"])))
    return made


AGAIN = r"laplace_approximation reads.*AutoMultivariateNormal"


@pytest.mark.parametrize(
    "make",
    [
        lambda: auto.AutoLaplaceApproximation(mixture),
        lambda: Own(mixture),
        of_parts,
        lambda: functools.partial(auto.AutoLaplaceApproximation(mixture)),
        lambda: auto.AutoLaplaceApproximation(mixture).forward,
    ],
)
def test_a_guide_that_reads_records_later_is_refused(make: Callable[[], Any]) -> None:
    data = Dataset(X.double(), Y.double())
    with pytest.raises(ValueError, match=AGAIN):
        bdpvi.fit_private(mixture, data, epsilon=1.0, guide=make(), route=bdpvi.DPVI(rows=500))
    assert not data.ledger.entries()
    ledger = Ledger()
    with pytest.raises(ValueError, match=AGAIN):
        step(mixture, Own(mixture), ledger=ledger)
    assert not ledger.entries()


@pytest.mark.parametrize("make", [lambda: auto.AutoLaplaceApproximation(mixture), of_parts])
def test_after_private_steps_it_does_not_read_them(make: Callable[[], Any]) -> None:
    guide = make()
    step(mixture, guide)
    (one,) = guide if isinstance(guide, auto.AutoGuideList) else [guide]
    with pytest.raises(ValueError, match=AGAIN):
        one.laplace_approximation(X, Y)
    pyro.clear_param_store()


@pytest.mark.parametrize("name", ["AutoNormal", "AutoNormalMessenger"])
def test_a_guide_that_has_run_is_refused_even_after_the_store_is_cleared(name: str) -> None:
    guide = getattr(auto, name)(simple)
    guide(X, Y)
    pyro.clear_param_store()
    for given in (guide, functools.partial(guide)):
        with pytest.raises(ValueError, match="has been run"):
            step(simple, given)
    with pytest.raises(ValueError, match="has been run"):
        bdpvi.fit_private(simple, (X, Y), epsilon=1.0, guide=guide, route=bdpvi.DPVI(rows=500))


def test_a_server_s_guide_is_searched() -> None:
    model = bdpvi.BayesianLogisticRegression.unweighted()
    data = Dataset(X.double(), Y.double())
    guide = guides.MeanField(model)
    guide.start = {"loc": data.x[0].clone()}
    rounds = Rounds(clients=1, size=2, clip=1.0, noise_multiplier=1.0)
    federation = bdpvi.federated.Federation(rounds)
    with pytest.raises(ValueError, match=r"guide.start\['loc'\]: these are records"):
        bdpvi.federated.fit_federated(model, guide, [data], federation, progress=False)
    guide.start = {"loc": torch.tensor([0.5, -0.5]).double()}
    assert Server(model, guide, blank(data)).size == 2
