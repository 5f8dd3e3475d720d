"""Pyro's automatic guides, converted, against what Pyro says of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    init_to_value,
)
from simulated import logistic_data

import bdpvi
from bdpvi.guides import FullRank, GaussianGuide, LowRank, MeanField, of

PAIRS: list[tuple[type, type[GaussianGuide]]] = [
    (AutoDiagonalNormal, MeanField),
    (AutoNormal, MeanField),
    (AutoMultivariateNormal, FullRank),
    (AutoLowRankMultivariateNormal, LowRank),
]


def linear(x: torch.Tensor, y: torch.Tensor | None = None) -> None:
    noise = pyro.sample("noise", dist.LogNormal(x.new_tensor(0.5), x.new_tensor(1.0)))
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, noise), obs=y)


def other(x: torch.Tensor, y: torch.Tensor | None = None) -> None:
    b = pyro.sample("b", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


@pytest.mark.parametrize(("auto", "ours"), PAIRS)
def test_location_and_scale_are_taken_over(
    auto: Any, ours: type[GaussianGuide], data: bdpvi.Dataset
) -> None:
    values = {"noise": torch.tensor(2.0), "w": torch.tensor([0.5, -1.0, 3.0])}
    made = auto(linear, init_loc_fn=init_to_value(values=values), init_scale=0.25)
    guide = of(made, linear, data, grid=2.0**-12)
    assert type(guide) is ours
    assert guide.grid == 2.0**-12
    start = guide.posterior(guide.initial(data.x))
    expected = torch.cat([values["noise"].log()[None], values["w"]]).double()
    torch.testing.assert_close(start.mean, expected)
    assert float(start.variance.mean()) == pytest.approx(0.25**2)
    assert made.prototype_trace is None


@pytest.mark.parametrize(("auto", "ours"), PAIRS)
def test_no_record_has_a_part_in_the_start(auto: Any, ours: Any, data: bdpvi.Dataset) -> None:
    starts = [
        of(auto(linear), linear, records).initial(records.x)
        for records in (data, logistic_data(60, 3, seed=1), data.without(3))
    ]
    for one in starts[1:]:
        assert all(torch.equal(one[name], starts[0][name]) for name in one)


@pytest.mark.parametrize(("auto", "ours"), PAIRS)
def test_trained_parameters_are_the_start_if_they_are_public(
    auto: Any, ours: Any, data: bdpvi.Dataset
) -> None:
    public = logistic_data(40, 3, seed=5)
    with pyro.get_param_store().scope():
        torch.manual_seed(0)
        made = auto(linear)
        svi = SVI(linear, made, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
        for _ in range(20):
            svi.step(public.x.float(), public.y.float())
    with pytest.raises(ValueError, match=r"this Auto\w+ has been run"):
        bdpvi.fit(linear, made, data, training=bdpvi.Training(steps=1), progress=False)
    guide = of(made, linear, data, start_is_public=True)
    start = guide.posterior(guide.initial(data.x))
    if auto is AutoNormal:
        scale = torch.cat([made.scales.noise[None], made.scales.w])
        expected = dist.Normal(torch.cat([made.locs.noise[None], made.locs.w]), scale).to_event(1)
    else:
        expected = made.get_posterior()
    torch.testing.assert_close(start.mean.float(), expected.mean.detach())
    torch.testing.assert_close(start.variance.float(), expected.variance.detach())
    point = torch.full((4,), 0.3)
    torch.testing.assert_close(start.log_prob(point.double()).float(), expected.log_prob(point))


@pytest.mark.parametrize(("auto", "ours"), PAIRS)
def test_fit_converts_and_trains_as_from_the_same_start(
    auto: Any, ours: type[GaussianGuide], data: bdpvi.Dataset
) -> None:
    train = partial(
        bdpvi.fit,
        training=bdpvi.Training(steps=5, seed=0),
        neighbours=bdpvi.Coupled(bdpvi.bayesian.Remove(3)),
        progress=False,
    )
    converted = train(linear, auto(linear), data)
    assert type(converted.guide) is ours
    guide = of(auto(linear), linear, data)
    before = {name: value.clone() for name, value in guide.start.items()}
    twice = [train(linear, guide, data) for _ in range(2)]
    assert all(torch.equal(guide.start[name], value) for name, value in before.items())
    for fit in twice:
        for name, value in converted.parameters.items():
            assert torch.equal(fit.parameters[name], value)
    assert bdpvi.bayesian.preview(converted)["w"].shape == (1, 3)


def test_guides_that_cannot_be_converted(data: bdpvi.Dataset) -> None:
    with pytest.raises(ValueError, match="AutoDelta cannot be accounted for; use AutoDiagonal"):
        bdpvi.fit(linear, AutoDelta(linear), data, progress=False)
    with pytest.raises(ValueError, match=r"made for a model of \['b'\], the model has \['noise'"):
        of(AutoNormal(other), linear, data)

    class Mine(AutoNormal):  # type: ignore[misc]
        pass

    with pytest.raises(ValueError, match="Mine cannot be accounted for"):
        of(Mine(linear), linear, data)
