"""Recorded steps are those of model and guide, or are refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import (
    JitTrace_ELBO,
    JitTraceEnum_ELBO,
    JitTraceMeanField_ELBO,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceMeanField_ELBO,
    config_enumerate,
)
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from pyro.optim import Adam, ExponentialLR
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import bdpvi
from bdpvi import DPVI, Dataset, Ledger, PrivateSVI
from bdpvi.bayesian.inference.optimisers import decay, together
from bdpvi.noise.keys import Key
from bdpvi.programs.arguments import Arguments
from bdpvi.programs.descent import Descent, GradientClip, clipped_sum
from bdpvi.programs.program import Program
from bdpvi.programs.reading import read
from bdpvi.programs.recording import recorded
from bdpvi.programs.sources import RecordBatch
from bdpvi.releases.route import planned
from bdpvi.releases.transaction import Before
from bdpvi.tables.prepared import Prepared

pytestmark = pytest.mark.usefixtures("in_double")

RECORDS = 90


def table() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(RECORDS, 3, generator=generator)
    return x, (x.sum(1) > 0).to(x)


def regression(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    bias = pyro.param("bias", torch.tensor(1.0), constraint=dist.constraints.positive)
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w + bias), obs=y)


@config_enumerate  # type: ignore[untyped-decorator]
def mixture(x: Tensor, y: Tensor | None = None) -> None:
    means = pyro.sample("means", dist.Normal(torch.tensor([-1.0, 1.0]), 1.0).to_event(1))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 0.3))
    with pyro.plate("records", len(x)):
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.5, 0.5])))
        pyro.sample("x", dist.Normal(means[z], scale), obs=x[:, 0])


class Coder(nn.Module):
    """An autoencoder: weights of modules, and a latent of each record."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(3, 2), nn.Linear(1, 3)

    def model(self, x: Tensor, y: Tensor | None = None) -> None:
        pyro.module("decoder", self.decoder)
        with pyro.plate("records", len(x)):
            z = pyro.sample("z", dist.Normal(x.new_zeros(len(x), 1), 1.0).to_event(1))
            pyro.sample("x", dist.Normal(self.decoder(z), 1.0).to_event(1), obs=x)

    def guide(self, x: Tensor, y: Tensor | None = None) -> None:
        pyro.module("encoder", self.encoder)
        with pyro.plate("records", len(x)):
            loc, scale = self.encoder(x).chunk(2, -1)
            pyro.sample("z", dist.Normal(loc, scale.exp()).to_event(1))


def coder() -> tuple[Any, Any]:
    torch.manual_seed(2)
    one = Coder()
    return one.model, one.guide


CASES: dict[str, tuple[Callable[[], tuple[Any, Any]], Any, Any, float]] = {
    "regression": (lambda: (regression, AutoNormal(regression)), Trace_ELBO, JitTrace_ELBO, 0.3),
    "whole covariance": (
        lambda: (regression, AutoMultivariateNormal(regression)),
        TraceMeanField_ELBO,
        JitTraceMeanField_ELBO,
        0.3,
    ),
    "mixture": (
        lambda: (mixture, AutoNormal(pyro.poutine.block(mixture, hide=["z"]))),
        TraceEnum_ELBO,
        JitTraceEnum_ELBO,
        0.3,
    ),
    "autoencoder": (coder, Trace_ELBO, JitTrace_ELBO, 1.0),  # no row is added: the same draws
}


def trained(make: Any, loss: Any, rate: float) -> dict[str, Tensor]:
    pyro.clear_param_store()
    torch.manual_seed(0)
    model, guide = make()
    settings: dict[str, Any] = {"clip": 1.0, "noise_multiplier": 1.0, "rate": rate, "seed": 3}
    svi = PrivateSVI(model, guide, Adam({"lr": 0.05}), loss(), **settings)
    x, y = table()
    for _ in range(6):
        svi.step(x, y)
    return {name: value.detach().clone() for name, value in pyro.get_param_store().items()}


@pytest.mark.parametrize("name", CASES)
def test_the_parameters_are_those_of_unrecorded_steps(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, plain, jit, rate = CASES[name]
    wanted, found = trained(make, plain, rate), [trained(make, jit, rate)]
    monkeypatch.setattr("bdpvi.programs.replays.PAYS", 2)
    found.append(trained(make, plain, rate))
    for other in found:
        assert wanted.keys() == other.keys()
        for one, value in wanted.items():
            assert torch.allclose(other[one], value, 1e-9, 1e-12), one


def test_no_kernel_is_made_after_the_trials() -> None:
    """As torch does on CUDA in a third run; here it raises, as there is no compiler for this."""
    torch._C._jit_override_can_fuse_on_cpu(True)
    try:
        trained(CASES["regression"][0], JitTrace_ELBO, 0.5)
    finally:
        torch._C._jit_override_can_fuse_on_cpu(False)


@pytest.mark.parametrize("name", CASES)
def test_torch_has_fresh_randomness_for_records_that_draw(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What records draw may not follow from the seed that the parameters may reveal."""
    stirred: list[Key] = []
    monkeypatch.setattr("bdpvi.programs.descent.stir", stirred.append)
    make, plain, jit, _ = CASES[name]
    records = table()
    for loss, draws in ((plain, True), (jit, name == "autoencoder")):
        pyro.clear_param_store()
        settings: dict[str, Any] = {"clip": 1.0, "noise_multiplier": 1.0, "rate": 0.3}
        svi = PrivateSVI(*make(), Adam({"lr": 0.05}), loss(), **settings)
        for _ in range(3):
            svi.step(*records)
        assert len({bytes(key.secret) for key in stirred}) == 3 * draws
        stirred.clear()


class Blurred:
    """Records that draw as they are read."""

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        x, y = table()
        return x[at] + 0.1 * torch.randn(3), y[at]


def test_records_that_draw_as_they_are_read_have_fresh_randomness(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stirred: list[Key] = []
    monkeypatch.setattr("bdpvi.programs.descent.stir", stirred.append)
    settings: dict[str, Any] = {"clip": 1.0, "noise_multiplier": 1.0, "rate": 0.3}
    guide, loss = AutoNormal(regression), JitTrace_ELBO()
    svi = PrivateSVI(regression, guide, Adam({"lr": 0.05}), loss, **settings)
    svi.step(Blurred())
    assert len(stirred) == 1


def test_one_record_moves_a_recorded_sum_by_its_clip_at_most() -> None:
    x, y = table()
    _, made = programs(regression, 10 * x[:12], y[:12], rows=5)
    draw, clip = made.draw(), GradientClip(bound=0.1)

    def summed(kept: list[int]) -> Tensor:
        return clipped_sum(made, draw, RecordBatch.of((10 * x[kept], y[kept])), clip, 0.1)[0]

    every = [*range(12)]
    moved = [summed(every) - summed([j for j in every if j != i]) for i in every]
    norms = torch.stack(moved).norm(dim=1)
    assert float(norms.max()) <= 1.0
    assert float(norms.min()) > 0.99


def lookup(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(4), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(w[x], 1.0), obs=y)


def programs(model: Any, *given: Tensor, rows: int) -> tuple[Program, Program]:
    made = read(model, AutoNormal(model), JitTrace_ELBO(), Arguments.of(given, {}))
    return made, recorded(made, rows)


def test_rows_that_fill_a_batch_up_have_no_part_in_it() -> None:
    x, y = table()
    plain, made = programs(regression, x, y, rows=32)
    draw = made.draw()
    whole = plain.gradients(draw, (x[:32], y[:32]))
    for count in (1, 7, 31, 32):
        found = made.gradients(draw, (x[:count], y[:count]))
        assert torch.equal(found, whole[:count])


def test_a_record_that_fails_or_is_not_finite_counts_as_zero_as_ever() -> None:
    x, y = torch.tensor([0, 1, 9, 3, 2, 1, 0]), torch.linspace(-2.0, 3.0, 7)
    y[4] = torch.inf
    plain, made = programs(lookup, x, y, rows=5)
    draw, clip = made.draw(), GradientClip(bound=0.5)
    batch = RecordBatch.of((x, y))
    wanted, ignored = clipped_sum(plain, draw, batch, clip, 0.5)
    found, also = clipped_sum(made, draw, batch, clip, 0.5)
    assert ignored == also == 2
    assert torch.allclose(found, wanted, 1e-12, 1e-15)


def counting() -> tuple[Any, Any]:
    taken = [0]

    def model(x: Tensor, y: Tensor | None = None) -> None:
        taken[0] += 1
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0 + 1e-4 * taken[0]), obs=y)

    return model, AutoNormal(model)


def tossing() -> tuple[Any, Any]:
    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("records", len(x)):
            logits = (x @ w) * (1.0 + random.random())
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    return model, AutoNormal(model)


def branching() -> tuple[Any, Any]:
    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("records", len(x)):
            logits = x @ w if w[0] > 0 else x[:, 0] * w[0]
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    return model, AutoNormal(model)


def outside_of_torch() -> tuple[Any, Any]:
    def guide(x: Tensor, y: Tensor) -> None:
        loc = pyro.param("loc", torch.zeros(3))
        wide = 1.0 + abs(float(loc.detach().numpy().sum()))
        pyro.sample("w", dist.Normal(loc, wide).to_event(1))

    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    return model, guide


REFUSED = {
    counting: "has another gradient of a record",
    tossing: "has another gradient of a record",
    branching: "cannot be recorded",
    outside_of_torch: "has another draw",
}


@pytest.mark.parametrize("make", REFUSED)
def test_what_a_record_would_freeze_is_refused_and_trained_without_one(make: Any) -> None:
    ledger = Ledger()
    settings: dict[str, Any] = {"clip": 1.0, "noise_multiplier": 1.0, "rate": 0.3}
    optim = Adam({"lr": 0.05})
    model, guide = make()
    svi = PrivateSVI(model, guide, optim, JitTrace_ELBO(), ledger=ledger, **settings)
    said = rf"loss=JitTrace_ELBO: a step {REFUSED[make]}.*; or use Trace_ELBO\(\)"
    with pytest.raises(ValueError, match=said):
        svi.step(*table())
    assert not ledger.entries()
    pyro.clear_param_store()
    model, guide = make()
    svi = PrivateSVI(model, guide, optim, Trace_ELBO(), ledger=ledger, **settings)
    svi.step(*table())
    assert ledger.entries()


def mean_of(model: Any, loss: Any) -> Tensor:
    route = DPVI(rows=RECORDS, steps=20, batch=30, draws=10, loss=loss)
    prepared = Prepared.of(model, Dataset(*table()), route)
    plan = planned(prepared.route, model, 3, Before(prepared.ledger.book()), 3.0, 1e-5)
    trained = prepared.route.draw(model, prepared.data, plan, Key.of_seed(0))
    assert trained.guide is not None
    return torch.tensor(trained.guide.mean)


def test_a_private_fit_is_the_same_by_recorded_steps() -> None:
    means = [mean_of(regression, loss) for loss in (Trace_ELBO(), JitTrace_ELBO())]
    assert torch.allclose(means[0], means[1], 1e-9, 1e-12)


OWN: dict[str, Any] = {
    "logistic": bdpvi.BayesianLogisticRegression,
    "linear": lambda: bdpvi.BayesianLinearRegression(largest=5.0),
    "poisson": lambda: bdpvi.BayesianPoissonRegression(largest=5),
    "negative binomial": lambda: bdpvi.BayesianNegativeBinomialRegression(largest=5),
    "multinomial": lambda: bdpvi.BayesianMultinomialRegression(classes=3),
    "ordinal": lambda: bdpvi.BayesianOrdinalRegression(classes=3),
    "survival": lambda: bdpvi.BayesianSurvivalRegression(cuts=(1, 2)),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "ordinal" else pytest.mark.slow) for name in OWN],
)
def test_regressions_are_recorded_where_it_pays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    step = Descent.step

    def stepped(self: Descent, number: int) -> Any:
        found = step(self, number)
        seen.append(self.replays.made is not None)
        return found

    monkeypatch.setattr(Descent, "step", stepped)
    plain = mean_of(OWN[name](), None)
    assert not any(seen)
    monkeypatch.setattr("bdpvi.programs.replays.PAYS", 19)
    assert torch.allclose(mean_of(OWN[name](), None), plain, 1e-6, 1e-9)
    assert all(seen[20:])


OPTIMISERS: dict[str, Callable[[], Any]] = {
    "Adam": lambda: Adam({"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.01}),
    "schedule": lambda: ExponentialLR(
        {"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.1}, "gamma": 0.5}
    ),
    "clipped": lambda: Adam({"lr": 0.1}, {"clip_norm": 0.1}),
    "a rate each": lambda: Adam(lambda name: {"lr": 0.1 if name == "a" else 0.3}),
    "other": lambda: pyro.optim.SGD({"lr": 0.1}),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_one_call_moves_all_parameters_as_pyro_moves_each(name: str) -> None:
    moved, states = [], []
    for step in (together, lambda optim, values: optim(values)):
        pyro.clear_param_store()
        generator = torch.Generator().manual_seed(0)
        for one in "ab":
            pyro.param(one, torch.ones(2, 3))
        values = [pyro.get_param_store()._params[one] for one in "ab"]
        optim = OPTIMISERS[name]()
        for _ in range(5):
            for value in values:
                value.grad = torch.randn(2, 3, generator=generator)
            step(optim, values)
            decay(optim)
        moved.append(torch.stack([value.detach() for value in values]))
        states.append(optim.get_state())
    assert torch.allclose(moved[0], moved[1], 1e-12, 1e-14)
    assert all(map(equal, *map(tree_leaves, states)))


def equal(one: object, other: object) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return one == other
    return torch.allclose(one, other, 1e-12, 1e-14)
