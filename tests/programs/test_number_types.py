"""Releases of programs in float32, float64 and both: from a file they predict the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import Tensor, nn

import bdpvi
from bdpvi._ground.promotion import Promotion

SINGLE, DOUBLE = torch.float32, torch.float64
N = 300


def observed(mean: Tensor, y: Tensor | None, scale: Any = 1.0) -> None:
    with pyro.plate("records", len(mean)):
        pyro.sample("y", dist.Normal(mean, scale), obs=y)


def plain(x: Tensor, y: Tensor | None = None) -> None:
    observed(x @ pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1)), y)


def constants(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1))
    scale = pyro.sample("scale", dist.LogNormal(torch.tensor(0.0), torch.tensor(1.0)))
    turned = x * torch.tensor([1.0, 0.5])
    observed(turned @ w + x @ torch.tensor([0.25, -0.5]), y, scale)


def trained(x: Tensor, y: Tensor | None = None) -> None:
    shift = pyro.param("shift", torch.zeros(()))
    spread = pyro.param("spread", torch.ones(()), constraint=dist.constraints.positive)
    w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    observed(x @ w + shift, y, spread)


def trained_in_double(x: Tensor, y: Tensor | None = None) -> None:
    shift = pyro.param("shift", torch.zeros(2, dtype=DOUBLE))
    observed(x @ (pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1)) + shift), y)


def prior(kind: torch.dtype) -> Callable[..., None]:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        law = dist.Normal(torch.zeros(2, dtype=kind), 1.0).to_event(1)
        observed(x @ pyro.sample("w", law), y)

    return model


def network(kind: torch.dtype) -> Callable[..., None]:
    """Have the weights of a network that is no part of a Pyro module."""
    net = nn.Sequential(nn.Linear(2, 3, dtype=kind), nn.Tanh(), nn.Linear(3, 2, dtype=kind))

    def model(x: Tensor, y: Tensor | None = None) -> None:
        pyro.module("net", net)
        observed(net(x) @ pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1)), y)

    return model


class Layer(PyroModule):  # type: ignore[misc]
    """Have latent weights alone, with priors in torch's default type."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = PyroModule[nn.Linear](2, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 2]).to_event(2))
        self.linear.bias = PyroSample(dist.Normal(0.0, 1.0).expand([1]).to_event(1))

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        observed(self.linear(x).squeeze(-1), y)


class Scaled(PyroModule):  # type: ignore[misc]
    """Have a parameter of Pyro's, a latent and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = PyroParam(torch.tensor(1.0), constraint=dist.constraints.positive)
        self.w = PyroSample(dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        self.register_buffer("turn", torch.tensor([1.0, 0.5]))

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        observed(x @ self.w + x @ self.turn, y, self.scale)


class Recurrent(PyroModule):  # type: ignore[misc]
    """Have a layer that checks types by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 2, batch_first=True)

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        observed(self.lstm(x.unsqueeze(-1))[0][:, -1].sum(-1) + shift, y)


class StartsInDouble(PyroModule):  # type: ignore[misc]
    """Have latents in double that are the state and the input of a recurrent layer in single."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 2, batch_first=True)

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=DOUBLE), 1.0).to_event(1))
        start = w.expand(1, len(x), 2).contiguous()
        found, _ = self.lstm((x * w).unsqueeze(-1), (start, torch.zeros_like(start)))
        observed(found[:, -1].sum(-1), y)


class InPart(PyroModule):  # type: ignore[misc]
    """Have a recurrent layer one of whose weights has another type."""

    def __init__(self, kind: torch.dtype = DOUBLE) -> None:
        super().__init__()
        self.lstm = PyroModule[nn.LSTM](1, 2, batch_first=True)
        law = dist.Normal(torch.zeros(8, 1, dtype=kind), 1.0).to_event(2)
        self.lstm.weight_ih_l0 = PyroSample(law)

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        observed(self.lstm(x.unsqueeze(-1))[0][:, -1].sum(-1), y)


class Mixed(PyroModule):  # type: ignore[misc]
    """Have layers of two types, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 1, dtype=DOUBLE)

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        observed(self.second(self.first(x)).squeeze(-1) + shift, y)


class Cast(Mixed):
    """Have casts of its own, which nothing must undo."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        observed(self.second(self.first(x.float()).double()).squeeze(-1) + shift, y)


def by_name(a: Tensor, ward: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with pyro.plate("wards", 3):
        effect = pyro.sample("effect", dist.Normal(0.0, 1.0))
    observed(a @ w + effect[ward], y)


PROGRAMS: dict[str, Callable[[], Any]] = {
    "plain": lambda: plain,
    "constants": lambda: constants,
    "trained": lambda: trained,
    "trained in double": lambda: trained_in_double,
    "prior in single": lambda: prior(SINGLE),
    "prior in double": lambda: prior(DOUBLE),
    "network in single": lambda: network(SINGLE),
    "network in double": lambda: network(DOUBLE),
    "layer": Layer,
    "scaled": Scaled,
    "recurrent": Recurrent,
    "starts in double": StartsInDouble,
    "mixed": Mixed,
    "cast": Cast,
    "by name": lambda: by_name,
}


def in_type(x: Any, kind: torch.dtype) -> Any:
    """Return features with their floating numbers in this type."""
    if isinstance(x, dict):
        return {name: in_type(one, kind) for name, one in x.items()}
    return x.to(kind) if x.is_floating_point() else x


def drawn(release: bdpvi.Release, x: Any) -> Tensor:
    """Return the mean of Pyro's own predictions, whose noise follows from a seed."""
    torch.manual_seed(1)
    predict = Predictive(release.model, posterior_samples=release.latents)
    found = predict(**x) if isinstance(x, dict) else predict(x)
    return found["y"].double().mean(0)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [SINGLE, DOUBLE])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_file_predicts_what_was_released(name: str, kind: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, ward = torch.randn(N, 2, dtype=kind), torch.arange(N) % 3
    y = x.sum(1) + torch.randn(N, dtype=kind)
    data: Any = {"a": x, "ward": ward, "y": y} if name == "by name" else (x, y)
    given: Any = {"a": x[:4], "ward": ward[:4]} if name == "by name" else x[:4]
    route = bdpvi.DPVI(rows=N, steps=4, draws=5, progress=False)
    fresh = bdpvi.fit_private(PROGRAMS[name](), data, epsilon=3.0, route=route)
    bdpvi.save_release(fresh, tmp_path / "release.json")
    torch.manual_seed(5)  # the weights of another start
    again = bdpvi.load_release(tmp_path / "release.json", PROGRAMS[name]())
    for one, other in ((fresh.latents, again.latents), (fresh.parameters, again.parameters)):
        assert {n: value.dtype for n, value in one.items()} == {
            n: value.dtype for n, value in other.items()
        }
    assert fresh.samples.dtype == again.samples.dtype
    means = []
    for asked in (SINGLE, DOUBLE):
        means.append(fresh.predict_mean(in_type(given, asked)))
        for release in (fresh, again):
            there = in_type(given, asked)
            torch.testing.assert_close(release.predict_mean(there), means[-1], rtol=0, atol=1e-6)
            torch.testing.assert_close(
                drawn(release, there), drawn(fresh, there), rtol=0, atol=1e-6
            )
            more = release.with_draws(7)
            assert more.samples.dtype == fresh.samples.dtype
            assert more.predict_draws(there).shape == (7, 4)
            groups = release.to_inference_data(there)
            assert groups["posterior_predictive"]["y"].shape == (1, 5, 4)
    torch.testing.assert_close(means[0].double(), means[1].double(), rtol=1e-6, atol=1e-6)


def test_a_given_model_has_the_values_of_the_file(tmp_path: Path) -> None:
    """Also if it is a release's, which has values of its own."""
    torch.manual_seed(0)
    x = torch.randn(N, 2)
    route = bdpvi.DPVI(rows=N, steps=4, draws=5, progress=False)
    one, other = (
        bdpvi.fit_private(network(SINGLE), (x, x.sum(1) + shift), epsilon=3.0, route=route)
        for shift in (0.0, 1.0)
    )
    bdpvi.save_release(one, tmp_path / "release.json")
    again = bdpvi.load_release(tmp_path / "release.json", other.model)
    torch.testing.assert_close(again.predict_mean(x), one.predict_mean(x))


def test_what_torch_refuses_is_done_in_the_wider_type() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(5, 3), torch.randn(3, dtype=DOUBLE)
    layers = (
        (nn.Linear(3, 2), x),
        (nn.Conv1d(3, 2, 2), torch.randn(4, 3, 5)),
        (nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), torch.randn(4, 5, 4)),
    )
    with Promotion():
        torch.testing.assert_close(x @ w, x.double() @ w)
        each = torch.vmap(lambda row: row @ w)(x)
        torch.testing.assert_close(each, x.double() @ w)
        assert (x @ x.T).dtype == SINGLE
        for layer, given in layers:
            found = layer(given.double())
            torch.testing.assert_close(found, layer.double()(given.double()))


def stepped(model: Any, x: Tensor, steps: int = 90) -> Tensor:
    """Return what seeded steps have trained, the last of which are replayed."""
    pyro.clear_param_store()
    torch.manual_seed(0)
    settings: dict[str, Any] = {"clip": 1.0, "noise_multiplier": 1e-3, "rate": 0.5, "seed": 1}
    guide, optim = AutoNormal(model), pyro.optim.Adam({"lr": 0.02})
    svi = bdpvi.PrivateSVI(model, guide, optim, Trace_ELBO(), **settings)
    for _ in range(steps):
        svi.step(x, x.sum(1))
    assert math.isfinite(svi.evaluate_loss(x, x.sum(1)))
    found = torch.cat([one.detach().flatten().double() for one in guide.parameters()])
    pyro.clear_param_store()
    return found


@pytest.mark.parametrize("name", ["plain", "constants", "mixed", "recurrent", "starts in double"])
def test_steps_mend_types_as_releases_do(name: str) -> None:
    """And train what they train where all types are one."""
    torch.manual_seed(0)
    x = torch.randn(N, 2, dtype=DOUBLE)
    torch.manual_seed(3)
    mixed = stepped(PROGRAMS[name](), x)
    torch.manual_seed(3)
    model: Any = PROGRAMS[name]()
    default = torch.get_default_dtype()
    torch.set_default_dtype(DOUBLE)
    try:
        same = stepped(model.double() if isinstance(model, nn.Module) else model, x)
    finally:
        torch.set_default_dtype(default)
    torch.testing.assert_close(mixed, same, rtol=1e-2, atol=1e-2)


def test_a_layer_whose_weights_differ_in_type_is_refused_with_a_remedy_that_works() -> None:
    x = torch.randn(N, 2)
    route = bdpvi.DPVI(rows=N, steps=4, draws=5, progress=False)
    with pytest.raises(ValueError, match="give all tensors one type of numbers"):
        bdpvi.fit_private(InPart(), (x, x.sum(1)), epsilon=3.0, route=route)
    with pytest.raises(ValueError, match="give all tensors one type of numbers"):
        stepped(InPart(), x)
    bdpvi.fit_private(InPart(x.dtype), (x, x.sum(1)), epsilon=3.0, route=route)
    layer = nn.LSTM(2, 2)
    layer.bias_ih_l0.data = layer.bias_ih_l0.data.double()
    with Promotion(), pytest.raises(ValueError, match="LSTM has weights of"):
        layer(x)


def test_nothing_is_written_into_a_copy() -> None:
    total, w = torch.zeros(2, 2), torch.ones(2, 2, dtype=DOUBLE)
    with Promotion():
        with pytest.raises(RuntimeError):
            total.addmm_(w, w)
        with pytest.raises(RuntimeError):
            torch.mm(w, w, out=total)
        with pytest.raises(RuntimeError):
            total += w.to(torch.complex128)
    assert not total.any()
