"""Steps are replayed where they are alike, and run model and guide where something has changed."""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import random
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, JitTrace_ELBO, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.infer.autoguide.initialization import init_to_mean, init_to_value
from pyro.nn import PyroModule, PyroSample
from pyro.optim import SGD
from torch import Tensor, nn

from bdpvi import PrivateSVI
from bdpvi.programs import replays
from bdpvi.programs.recording import Recorded
from bdpvi.releases.noisy_sum import NoisySum

RECORDS, PAYS = 40, 3


@pytest.fixture(autouse=True)
def early(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, in_double: None
) -> None:
    monkeypatch.setattr(replays, "PAYS", PAYS)
    caplog.set_level(logging.INFO, "bdpvi")


def table() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(RECORDS, 2, generator=generator)
    return x, x.sum(1) + torch.randn(RECORDS, generator=generator)


def regression(x: Tensor, y: Tensor, beta: Any = 1.0, prior: Any = 1.0) -> None:
    with poutine.scale(scale=beta):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), prior).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


Step = Callable[[int], tuple[Any, ...]]
Made = tuple[Any, Step]
"""A model, and what changes before a step with this number and returns its other arguments."""


def by_argument() -> Made:
    return regression, lambda number: (0.05 * (number + 1), 0.5 + number / 100)


def by_tensor() -> Made:
    return regression, lambda number: (torch.tensor(0.05 * (number + 1)),)


def by_whole_number() -> Made:
    def model(x: Tensor, y: Tensor, power: int) -> None:
        regression(x / power, y)

    return model, lambda number: (1 + number // 8,)


def by_branch() -> Made:
    def model(x: Tensor, y: Tensor, beta: float) -> None:
        regression(x, y, 1.0 if beta < 0.55 else 0.2)

    return model, lambda number: (0.1 * (number // 2),)


class Held:
    """A model with an attribute."""

    def __init__(self) -> None:
        self.beta: Any = 0.1

    def __call__(self, x: Tensor, y: Tensor) -> None:
        regression(x, y, self.beta)


def by_attribute() -> Made:
    held = Held()

    def change(number: int) -> tuple[Any, ...]:
        held.beta = 0.1 + 0.1 * (number // 9)
        return ()

    return held, change


def by_method() -> Made:
    held, change = by_attribute()
    return held.__call__, change


def by_closure() -> Made:
    beta = 0.1

    def model(x: Tensor, y: Tensor) -> None:
        regression(x, y, beta)

    def change(number: int) -> tuple[Any, ...]:
        nonlocal beta
        beta = 0.1 * (1 + number // 7)
        return ()

    return model, change


BETA = 0.1


def by_global() -> Made:
    def model(x: Tensor, y: Tensor) -> None:
        regression(x, y, BETA)

    def change(number: int) -> tuple[Any, ...]:
        globals()["BETA"] = 0.1 * (1 + number // 7)
        return ()

    return model, change


def by_mapping() -> Made:
    settings = {"inner": [0.1, "text"]}

    def model(x: Tensor, y: Tensor) -> None:
        regression(x, y, settings["inner"][0])

    def change(number: int) -> tuple[Any, ...]:
        settings["inner"][0] = 0.1 * (1 + number // 7)
        return ()

    return model, change


def of_settings(given: Any) -> Made:
    given.beta = 0.1

    def model(x: Tensor, y: Tensor) -> None:
        regression(x, y, given.beta)

    def change(number: int) -> tuple[Any, ...]:
        given.beta = 0.1 * (1 + number // 7)
        return ()

    return model, change


def by_parsed_argument() -> Made:
    return of_settings(argparse.Namespace())


class Slotted:
    """Settings without a dictionary."""

    __slots__ = ("beta",)
    beta: float


def by_slot() -> Made:
    return of_settings(Slotted())


class Classed:
    """Settings of a class."""

    beta: float


def by_class() -> Made:
    return of_settings(Classed)


def by_array() -> Made:
    beta = np.full(2, 0.1)

    def model(x: Tensor, y: Tensor) -> None:
        regression(x, y, float(beta[1]))

    def change(number: int) -> tuple[Any, ...]:
        beta[1] = 0.1 * (1 + number // 7)
        return ()

    return model, change


class Buffered(PyroModule):  # type: ignore[misc]
    """A model with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("beta", torch.tensor(0.1))

    def forward(self, x: Tensor, y: Tensor) -> None:
        regression(x, y, self.beta)


def by_buffer() -> Made:
    held = Buffered()

    def change(number: int) -> tuple[Any, ...]:
        if number % 6 == 0:
            held.beta.mul_(1.5)
        return ()

    return held, change


def by_another_buffer() -> Made:
    held = Buffered()

    def change(number: int) -> tuple[Any, ...]:
        held.beta = torch.tensor(0.1 * (1 + number // 6))
        return ()

    return held, change


class Sampled(PyroModule):  # type: ignore[misc]
    """Pyro's own way to write a regression."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = PyroModule[nn.Linear](2, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 2]).to_event(2))
        self.linear.bias = PyroSample(lambda own: dist.Normal(torch.zeros(1), 1.0).to_event(1))
        self.noise = PyroSample(dist.LogNormal(0.0, 0.5))

    def forward(self, x: Tensor, y: Tensor) -> None:
        mean, noise = self.linear(x).squeeze(-1), self.noise
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(mean, noise), obs=y)


def by_nothing() -> Made:
    return Sampled(), lambda number: ()


CASES: dict[Callable[[], Made], range] = {
    by_argument: range(PAYS, 24),
    by_tensor: range(PAYS, 24),
    by_whole_number: range(3, 8),
    by_branch: range(3, 4),
    by_attribute: range(3, 9),
    by_method: range(3, 9),
    by_closure: range(3, 7),
    by_global: range(3, 7),
    by_mapping: range(3, 7),
    by_parsed_argument: range(3, 7),
    by_slot: range(3, 7),
    by_class: range(3, 7),
    by_array: range(3, 7),
    by_buffer: range(3, 6),
    by_another_buffer: range(3, 6),
    by_nothing: range(PAYS, 24),
}
"""The steps that are replayed, before others that may be."""


def trained_by_svi(made: Made, steps: int) -> dict[str, Tensor]:
    (model, change), (x, y) = made, table()
    svi = SVI(model, AutoNormal(model, init_loc_fn=init_to_mean), SGD({"lr": 0.005}), Trace_ELBO())
    for number in range(steps):
        given = change(number)
        torch.manual_seed(number)
        svi.step(x, y, *given)
    return {name: value.detach().clone() for name, value in pyro.get_param_store().items()}


class Private:
    """Private steps without noise, and which of them were replayed."""

    def __init__(self, model: Any, guide: Any = None, loss: Any = None, **given: Any) -> None:
        settings = {"clip": 1e9, "noise_multiplier": 1e-6, "rate": 1.0, **given}
        guide = AutoNormal(model, init_loc_fn=init_to_mean) if guide is None else guide
        optim = SGD({"lr": 0.005})
        self.svi = PrivateSVI(model, guide, optim, loss or Trace_ELBO(), **settings)
        self.replayed: list[bool] = []

    def step(self, *given: Any) -> None:
        """Take a step."""
        with (
            patch.object(NoisySum, "noisy", lambda mechanism, totals, key: totals),
            patch.object(NoisySum, "seed_of", lambda mechanism, number: number),
            patch("bdpvi.programs.descent.stir", lambda _: None),
        ):
            self.svi.step(*given)
        descent = self.svi._descent
        assert descent is not None
        self.replayed.append(descent.replays.made is not None)

    def at(self) -> list[int]:
        """Return the steps that were replayed."""
        return [number for number, one in enumerate(self.replayed) if one]


@pytest.mark.parametrize("make", CASES)
def test_whatever_changes_the_parameters_are_those_of_svi(make: Callable[[], Made]) -> None:
    plain = trained_by_svi(make(), 24)
    pyro.clear_param_store()
    (model, change), (x, y) = make(), table()
    private = Private(model)
    for number in range(24):
        private.step(x, y, *change(number))
    for name, value in pyro.get_param_store().items():
        torch.testing.assert_close(value, plain[name], rtol=1e-6, atol=1e-6)
    wanted = CASES[make]
    assert private.at()[: len(wanted)] == [*wanted]
    if wanted and wanted.stop < 24:
        assert wanted.stop not in private.at()
    else:
        assert private.at() == [*wanted]


def test_a_change_rests_twice_as_long_before_steps_are_replayed_again() -> None:
    held, (x, y) = Held(), table()
    private = Private(held)
    for number in range(30):
        if number in (5, 12):
            held.beta *= 2
        private.step(x, y)
    # 3 steps first; 3 after the change before step 5, and 6 after that before step 12
    assert private.at() == [3, 4, *range(8, 12), *range(18, 30)]


def counted() -> Any:
    held = Held()

    def model(x: Tensor, y: Tensor) -> None:
        held.beta += 1e-9
        regression(x, y, max(held.beta, 1.0))

    return model


def counted_in_an_argument() -> Any:
    def model(x: Tensor, y: Tensor, *, state: list[float]) -> None:
        state[0] += 1e-9
        regression(x, y, max(*state, 1.0))

    return partial(model, state=[0.0, 0.0])


def counted_by_an_iterator() -> Any:
    counter = itertools.count()

    def model(x: Tensor, y: Tensor) -> None:
        regression(x, y, max(1.0, 1e-6 * next(counter)))

    return model


class Moving(nn.Module):
    """A buffer that a run moves, but whose value has no part in the first runs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0.0))

    count: Tensor

    def forward(self, x: Tensor, y: Tensor) -> None:
        self.count = self.count + 1
        regression(x, y, self.count.clamp(min=1e6) * 1e-6)


def tossed() -> Any:
    def model(x: Tensor, y: Tensor) -> None:
        regression(x, y, 1.0 if random.random() < 0.999999 else 0.5)

    return model


def tossed_by_numpy() -> Any:
    generator = np.random.default_rng(0)

    def model(x: Tensor, y: Tensor) -> None:
        regression(x, y, 1.0 if generator.random() < 0.999999 else 0.5)

    return model


def kept() -> Any:
    seen: list[Any] = []

    def model(x: Tensor, y: Tensor) -> None:
        seen.append(1)
        regression(x, y, 1.0 if len(seen) < 10_000 else 0.5)

    return model


NEVER: dict[Callable[[], Any], str] = {
    counted: "model, its closure variable held.beta",
    counted_in_an_argument: "model, its argument state",
    counted_by_an_iterator: "can move the iterator model, its closure variable counter",
    Moving: "changes model",
    tossed: "changes random",
    tossed_by_numpy: "changes model, its closure variable generator",
    kept: "model, its closure variable seen",
}


@pytest.mark.parametrize("make", NEVER)
def test_a_model_that_changes_as_it_runs_is_never_replayed_and_one_line_says_so(
    make: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    private = Private(make())
    for _ in range(8):
        private.step(*table())
    assert not private.at()
    (line,) = caplog.messages
    assert line.startswith("steps run model and guide, as one ")
    assert NEVER[make] in line
    assert caplog.records[0].levelno == logging.INFO
    pyro.clear_param_store()
    with pytest.raises(ValueError, match=r"loss=JitTrace_ELBO: a step .*use Trace_ELBO\(\)"):
        Private(make(), loss=JitTrace_ELBO()).step(*table())


def test_what_changes_unseen_is_found_by_the_next_comparison(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps are compared 1, 2, 4, 8 and 16 steps after step 3: the last of them finds it."""

    def model(x: Tensor, y: Tensor) -> None:
        regression(x, y, float(os.environ["BETA"]))

    monkeypatch.setenv("BETA", "0.5")
    private = Private(model)
    for number in range(40):
        if number == 14:
            monkeypatch.setenv("BETA", "0.7")
        private.step(*table())
    assert private.at() == [*range(PAYS, 19)]
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert "has another draw when it is replayed" in line.getMessage()
    assert "steps from 12 to 19 may have been by an old value" in line.getMessage()


class Dropping(nn.Module):
    """A network that drops units."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 1))

    def model(self, x: Tensor, y: Tensor) -> None:
        pyro.module("net", self.net)
        bias = pyro.sample("bias", dist.Normal(torch.tensor(0.0), 1.0))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(self.net(x).squeeze(-1) + bias, 1.0), obs=y)


def test_dropout_drops_anew_for_each_record_and_step_until_it_is_turned_off() -> None:
    torch.manual_seed(2)
    held = Dropping()
    x, y = torch.ones(6, 2), torch.ones(6)
    private = Private(held.model)
    for _ in range(6):
        private.step(x, y)
    descent = private.svi._descent
    assert descent is not None
    made = descent.replays.made
    assert isinstance(made, Recorded)
    assert made.each_draws
    draw = made.draw()
    first, again = (made.gradients(draw, (x, y)) for _ in range(2))
    assert len(first.unique(dim=0)) > 2
    assert not torch.equal(first, again)
    torch.manual_seed(5)
    wanted = descent.program.gradients(draw, (x, y))
    torch.manual_seed(5)
    torch.testing.assert_close(made.gradients(draw, (x, y)), wanted)
    held.eval()
    private.step(x, y)
    assert private.at() == [3, 4, 5]
    for _ in range(4):
        private.step(x, y)
    made = descent.replays.made
    assert isinstance(made, Recorded)
    assert len(made.gradients(draw, (x, y)).unique(dim=0)) == 1


def test_a_start_that_a_guide_holds_and_trains_is_no_change() -> None:
    start = {"w": torch.zeros(2)}
    guide = AutoNormal(regression, init_loc_fn=init_to_value(values=start))
    private = Private(regression, guide)
    for _ in range(6):
        private.step(*table())
    assert private.at() == [3, 4, 5]


def test_a_short_private_fit_is_not_recorded_and_a_long_one_from_its_first_step() -> None:
    program = Private(regression).svi._prepare(table(), {})[0].program
    plain = replays.Replays(program, 5, steps=PAYS)
    assert all(plain.program(program, number) is program for number in range(9))
    assert isinstance(replays.Replays(program, 5, steps=PAYS + 1).program(program, 0), Recorded)
    assert replays.Replays(program, 5).program(program, PAYS - 1) is program
    assert isinstance(replays.Replays(program, 5).program(program, PAYS), Recorded)


def test_an_experiment_repeats_to_the_bit_whenever_it_was_resumed() -> None:
    def run(stop: int) -> list[Tensor]:
        pyro.clear_param_store()
        torch.manual_seed(0)
        given: dict[str, Any] = {"noise_multiplier": 1.0, "clip": 1.0, "rate": 0.5, "seed": 3}
        loss = TraceMeanField_ELBO()
        svi = PrivateSVI(regression, AutoNormal(regression), SGD({"lr": 0.01}), loss, **given)
        for _ in range(stop):
            svi.step(*table())
        state = svi.state_dict()
        pyro.clear_param_store()
        torch.manual_seed(0)
        svi = PrivateSVI(regression, AutoNormal(regression), SGD({"lr": 0.01}), loss, **given)
        svi.load_state_dict(state, *table())
        for _ in range(9 - stop):
            svi.step(*table())
        return [value.detach().clone() for value in pyro.get_param_store().values()]

    whole = run(9)
    for stop in (1, PAYS, 6):
        assert all(map(torch.equal, run(stop), whole))
