"""The private examples: every record alone has a gradient, densities are right, and models learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import _example
import autoencoder
import factors
import gaussian_process
import group_effects
import hidden_classes
import matplotlib.pyplot as plt
import mixture
import negative_binomial
import numpy as np
import ordinal
import pyro
import pytest
import robust
import spline
import survival
import torch
import two_layers
from _example import Draws, Example
from pyro import poutine
from scipy import interpolate, stats
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from bdpvi import Dataset
from bdpvi._runtime.isolation import isolated

EXAMPLES: list[Example] = [
    group_effects, ordinal, negative_binomial, spline, robust, mixture, factors, autoencoder,
    two_layers, gaussian_process, survival, hidden_classes,
]  # fmt: skip
every = pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.__name__)
RECORDS = 2000
STEPS = {autoencoder: 300, two_layers: 300}


class Swapped(TorchFunctionMode):
    """Put values where torch is handed parameters."""

    def __init__(self, parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.values = {id(one): values[name] for name, one in parameters.items()}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        swap: Callable[[Any], Any] = lambda one: self.values.get(id(one), one)  # noqa: E731
        return function(*tree_map(swap, args), **tree_map(swap, kwargs or {}))


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
def test_each_record_alone_has_a_gradient_in_every_parameter(
    example: Example, dtype: torch.dtype
) -> None:
    """As private training takes it: one record at a time, under vmap."""
    data = example.simulated(8, 0).to("cpu", dtype)
    with isolated(data.x), pyro.validation_enabled(False):
        torch.manual_seed(0)
        model, guide = example.fresh()
        example.LOSS.loss(model, guide, data.x, data.y)  # fills the store
        parameters = dict(pyro.get_param_store().named_parameters())
        assert {one.dtype for one in parameters.values()} == {dtype}

        def loss(values: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            with Swapped(parameters, values):
                drawn = poutine.trace(guide).get_trace(x[None], y[None])
                replayed = poutine.replay(model, trace=drawn)
                joint = poutine.trace(poutine.enum(replayed, first_available_dim=-2)).get_trace(
                    x[None], y[None]
                )
                each = _example.local_log_density(joint, 1).sum()
                sites = [one for one in joint.nodes.values() if one["type"] == "sample"]
                prior = sum(one["log_prob"].sum() for one in sites if not _example.local(one))
                return drawn.log_prob_sum() - each - prior  # type: ignore[no-any-return]

        start = {name: one.detach() for name, one in parameters.items()}
        gradient = torch.func.vmap(
            torch.func.grad(loss), in_dims=(None, 0, 0), randomness="same"
        )(start, data.x, data.y)
    for name, value in gradient.items():
        assert value.shape == (8, *start[name].shape)
        assert value.dtype == dtype
        assert bool(value.isfinite().all()), name
        assert bool((value != 0).any()), name


@every
def test_targets_left_out_are_simulated_for_every_record(example: Example) -> None:
    data = example.simulated(300, 0)
    model, _ = example.fresh()
    torch.manual_seed(0)
    with isolated(data.x), torch.no_grad():
        trace = poutine.trace(model).get_trace(data.x)
    observed = [
        site["value"] for name, site in trace.nodes.items() if name[0] in "yq" and name != "yes"
    ]
    assert observed
    assert all(len(value) == 300 and bool(value.isfinite().all()) for value in observed)


@pytest.fixture(scope="module")
def fitted() -> Callable[[Example], _example.Fitted]:
    """Return a short fit without privacy, made once."""
    kept: dict[Example, _example.Fitted] = {}

    def of(example: Example) -> _example.Fitted:
        if example not in kept:
            steps = STEPS.get(example, 150)
            data = example.simulated(RECORDS, 0)
            kept[example] = _example.non_private(example, data, steps=steps, lr=0.1, draws=20)
        return kept[example]

    return of


@every
def test_an_example_learns_more_than_its_baseline(
    example: Example, fitted: Callable[[Example], Draws]
) -> None:
    found, test = fitted(example), example.simulated(RECORDS, 1)
    assert not list(pyro.get_param_store())
    baseline = example.baseline(example.simulated(RECORDS, 0), test)
    print(example.__name__, baseline, _example.score(example, found, test))
    assert _example.score(example, found, test) > baseline + 0.08


@every
def test_a_figure_shows_draws(example: Example, fitted: Callable[[Example], Draws]) -> None:
    figure, axes = plt.subplots()
    example.figure(fitted(example), axes)
    assert axes.has_data()
    plt.close(figure)


