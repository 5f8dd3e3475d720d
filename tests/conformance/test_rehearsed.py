"""What can fail without noise fails on made-up records, before a charge."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import (
    AutoHierarchicalNormalMessenger,
    AutoNormal,
    AutoNormalMessenger,
)
from pyro.nn import PyroModule, PyroParam
from pyro.optim import SGD, Adam, PyroOptim
from torch import Tensor, nn
from torch.distributions import constraints

import bdpvi
from bdpvi import Budget, Dataset, Ledger, PrivateSVI, guides
from bdpvi.federated import Federation, fit_federated
from bdpvi.federated.rounds import Rounds
from bdpvi.programs.dpvi import DPVI

pytestmark = pytest.mark.usefixtures("fresh_store")

_generator = torch.Generator().manual_seed(3)
X = torch.randn(300, 2, generator=_generator)
Y = X @ torch.tensor([0.5, -0.5]) + 0.1 * torch.randn(300, generator=_generator)
QUICK = DPVI(rows=300, steps=20)


def linear(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


class AtFirst(PyroModule):  # type: ignore[misc]
    """A guide that makes its parameters in its first run, or before."""

    def __init__(self, before: bool = False) -> None:
        super().__init__()
        if before:
            self.make()

    def make(self) -> None:
        self.loc = PyroParam(torch.zeros(2))
        self.scale = PyroParam(torch.ones(2), constraint=constraints.positive)

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        if not hasattr(self, "loc"):
            self.make()
        pyro.sample("w", dist.Normal(self.loc, self.scale).to_event(1))


class Network(nn.Module):
    """Targets whose mean is a network's output."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(2, 3)

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        pyro.module("network", self)
        w = pyro.sample("w", dist.Normal(x.new_zeros(3), 1.0).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(torch.tanh(self.hidden(x)) @ w, 1.0), obs=y)


def whole(model: Any, guide: Any, path: Path) -> Ledger:
    """Fit, write, load and predict."""
    data = Dataset(X, Y)
    release = bdpvi.fit_private(model, data, epsilon=1.0, route=QUICK, guide=guide)
    bdpvi.save_release(release, path / "release.json")
    again = bdpvi.load_release(path / "release.json", model)
    near: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6, "check_dtype": False}
    torch.testing.assert_close(again.predict_mean(X[:5]), release.predict_mean(X[:5]), **near)
    assert again.with_draws(3).predict_mean(X[:5]).shape == (5,)
    result: Ledger = data.ledger
    return result


@pytest.mark.parametrize(
    ("model", "make"),
    [
        (linear, lambda: AutoNormalMessenger(linear)),
        (linear, lambda: AutoHierarchicalNormalMessenger(linear)),
        (linear, lambda: AtFirst(before=True)),
        (linear, lambda: AutoNormal(linear)),
        (Network(), lambda: None),
    ],
)
def test_what_is_charged_is_written_read_and_predicts(
    model: Any, make: Callable[[], Any], tmp_path: Path
) -> None:
    assert len(whole(model, make(), tmp_path).entries()) == 1


@pytest.mark.parametrize("make", [AtFirst, lambda: functools.partial(AutoNormal(linear))])
def test_a_guide_that_makes_parameters_in_its_first_run_is_refused(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    """Its remedies are among the fits above."""
    data = Dataset(X, Y)
    message = "in its first run.*make it in __init__, and hand a guide of Pyro's over as it is"
    with pytest.raises(ValueError, match=rf"guide makes '.*' {message}.*Nothing was charged"):
        bdpvi.fit_private(linear, data, epsilon=1.0, route=QUICK, guide=make())
    assert not data.ledger.entries()


class OfItsOwn(torch.optim.SGD):
    """An optimiser that evaluates the loss itself."""

    def step(self, closure: Any = None) -> Any:
        return closure()


BROKEN: dict[str, Callable[[], PyroOptim]] = {
    "a name": lambda: Adam({"learning_rate": 0.1}),
    "a value": lambda: SGD({"lr": float("inf")}),
    "a closure": lambda: PyroOptim(OfItsOwn, {"lr": 0.1}),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_an_optimiser_that_fails_is_refused_before_a_charge(broken: str) -> None:
    ledger = Ledger()
    svi = PrivateSVI(
        linear, AutoNormal(linear), BROKEN[broken](), Trace_ELBO(),
        clip=1.0, noise_multiplier=2.0, rate=0.1, ledger=ledger,
    )  # fmt: skip
    with pytest.raises(ValueError, match="Nothing was charged"):
        svi.step(X, Y)
    model = bdpvi.BayesianLogisticRegression.unweighted()
    rounds = Rounds(clients=1, size=2, clip=1.0, noise_multiplier=1.0)
    data = Dataset(X.double(), (Y > 0).double())
    federation = Federation(rounds, ledger)
    with pytest.raises(ValueError, match=r"optim .*Nothing was charged"):
        fit_federated(
            model, guides.MeanField(model), [data], federation,
            optim=BROKEN[broken](), progress=False,
        )  # fmt: skip
    assert not ledger.entries()
    assert not data.ledger.entries()


def test_a_network_s_optimiser_that_fails_is_refused_before_a_charge() -> None:
    module, ledger = nn.Linear(2, 1), Ledger()
    before = module.weight.clone()
    given: dict[str, Any] = {
        "loss": lambda out, y: nn.functional.mse_loss(out[:, 0], y),
        "data": (X, Y), "rate": 0.1, "max_grad_norm": 1.0, "noise_multiplier": 1.0,
        "settings": bdpvi.networks.DPSGDSettings(ledger=ledger),
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"optimizer=OfItsOwn raised TypeError.*torch.optim"):
        bdpvi.make_private(module, OfItsOwn(module.parameters(), lr=0.1), **given)
    assert not ledger.entries()
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad):
        optimizer = kind(module.parameters(), lr=0.1)
        bdpvi.make_private(module, optimizer, **given)
        assert torch.equal(module.weight, before)
        assert all(weight.grad is None for weight in module.parameters())
        assert kind is torch.optim.Adagrad or not optimizer.state


def complex_weights(x: Tensor, y: Tensor | None = None) -> None:
    shift = pyro.param("shift", torch.zeros(1, dtype=torch.complex64))
    w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w + shift.abs(), 1.0), obs=y)


def test_what_no_file_can_hold_is_refused_before_a_charge() -> None:
    data = Dataset(X, Y)
    with pytest.raises(ValueError, match="Nothing was charged"):
        bdpvi.fit_private(complex_weights, data, epsilon=1.0, route=QUICK)
    assert not data.ledger.entries()


def test_a_rehearsal_leaves_modules_store_and_coins_as_they_are() -> None:
    model, spent = Network(), Ledger(budget=Budget(0.5, 1e-5))
    before, coins = model.hidden.weight.clone(), torch.random.get_rng_state()
    with pytest.raises(bdpvi.BudgetExceededError):
        bdpvi.fit_private(model, Dataset(X, Y), epsilon=1.0, route=QUICK, ledger=spent)
    assert torch.equal(model.hidden.weight, before)
    assert not dict(pyro.get_param_store().items())
    assert torch.equal(torch.random.get_rng_state(), coins)
    assert not spent.entries()
    guide = AutoNormal(linear)
    svi = PrivateSVI(
        linear, guide, Adam({"lr": 0.05}), Trace_ELBO(),
        clip=1.0, noise_multiplier=2.0, rate=0.1, ledger=spent,
    )  # fmt: skip
    svi.evaluate_loss(X, Y)
    assert not spent.entries()
    assert torch.equal(guide.locs.w, torch.zeros(2))
