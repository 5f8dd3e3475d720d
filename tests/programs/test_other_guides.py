"""Guides that are not Gaussian: what PrivateSVI trains, fit_private trains, and releases draws."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.contrib.easyguide import easy_guide
from pyro.infer import Trace_ELBO
from pyro.infer import autoguide as auto
from pyro.optim import Adam
from torch import Tensor
from torch.distributions import constraints

import bdpvi
from bdpvi._ground.host import HOST, drawing
from bdpvi.programs.arguments import Arguments
from bdpvi.programs.course import Course
from bdpvi.programs.descent import Descent, GradientClip
from bdpvi.programs.moments import drawn, is_gaussian, moments, standardised
from bdpvi.programs.reading import read
from bdpvi.releases.estimate import Gaussian
from bdpvi.releases.noisy_sum import NoisySum

pytestmark = pytest.mark.usefixtures("fresh_store")

N = 3000
TRUE = {"w": torch.tensor([0.5, -0.5]), "b": torch.tensor(0.3), "s": torch.tensor(0.5)}


def table() -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(5)
    x = torch.randn(N, 2, generator=chance)
    return x, x @ TRUE["w"] + TRUE["b"] + TRUE["s"] * torch.randn(N, generator=chance)


def model(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    s = pyro.sample("s", dist.LogNormal(0.0, 1.0))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w + b, s), obs=y)


def structured(of: Any) -> Any:
    kinds = {"w": "mvn", "b": "normal", "s": "normal"}
    return auto.AutoStructured(of, conditionals=kinds, dependencies={"b": {"s": "linear"}})


def in_parts(of: Any) -> Any:
    guide = auto.AutoGuideList(of)
    guide.append(auto.AutoDelta(poutine.block(of, hide=["w"])))
    guide.append(auto.AutoIAFNormal(poutine.block(of, expose=["w"]), hidden_dim=[4]))
    return guide


def easy(of: Any) -> Any:
    @easy_guide(of)  # type: ignore[untyped-decorator]
    def guide(self: Any, x: Tensor, y: Tensor | None = None) -> None:
        group = self.group(match="w|b")
        loc = pyro.param("loc", torch.zeros(group.event_shape))
        start = torch.full(group.event_shape, 0.1)
        scale = pyro.param("scale", start, constraint=constraints.positive)
        group.sample("wb", dist.Normal(loc, scale).to_event(1))
        self.map_estimate("s")

    return guide


def by_hand(_: Any) -> Any:
    """Return a guide of a law that is no transform of a normal, and of a site given another."""

    def guide(x: Tensor, y: Tensor | None = None) -> None:
        scale = pyro.param("scale", torch.full((4,), 0.1), constraint=constraints.positive)
        loc = pyro.param("loc", torch.zeros(4))
        w = pyro.sample("w", dist.Laplace(loc[:2], scale[:2]).to_event(1))
        pyro.sample("b", dist.Normal(loc[2] + 0.1 * w.sum(), scale[2]))
        pyro.sample("s", dist.LogNormal(loc[3], scale[3]))

    return guide


GUIDES: dict[str, Callable[[Any], Any]] = {
    "AutoDelta": auto.AutoDelta,
    "AutoIAFNormal": functools.partial(auto.AutoIAFNormal, hidden_dim=[8]),
    "AutoStructured": structured,
    "AutoRegressiveMessenger": auto.AutoRegressiveMessenger,
    "AutoGuideList": in_parts,
    "easyguide": easy,
    "by hand": by_hand,
}
GAUSSIAN = ("AutoNormalMessenger", "AutoHierarchicalNormalMessenger")


@pytest.mark.parametrize("name", GUIDES)
def test_a_release_has_draws_of_the_guide(name: str, tmp_path: Path) -> None:
    route = bdpvi.DPVI(rows=N, steps=150, draws=50)
    made = bdpvi.fit_private(model, table(), epsilon=2.0, guide=GUIDES[name](model), route=route)
    for site, value in TRUE.items():
        assert torch.allclose(made.latents[site].mean(0), value, atol=0.2), site
    assert made.guide is not None
    flat = made.guide.draws(50)
    mean, variances = (torch.tensor(one) for one in (made.guide.mean, made.guide.variances))
    torch.testing.assert_close(
        flat.mean(0).float(), mean, atol=0.01 * float(variances.max()) ** 0.5, rtol=0
    )
    bdpvi.save_release(made, tmp_path / "r.json")
    again = bdpvi.load_release(tmp_path / "r.json", model)
    assert again.guide == made.guide
    assert again.with_draws(20).latents["w"].shape == (20, 2)
    assert again.predict_mean(table()[0][:3]).shape == (3,)
    assert again.summary().reliable is not True
    with pytest.raises(ValueError, match=r"route=DPVI\(draws=51\)"):
        again.with_draws(51)
    with pytest.raises(ValueError, match="has draws and no distribution"):
        _ = made.guide.distribution


@pytest.mark.parametrize("name", GAUSSIAN)
def test_messengers_of_normals_are_gaussian(name: str) -> None:
    guide, route = getattr(auto, name)(model), bdpvi.DPVI(rows=N, steps=150)
    made = bdpvi.fit_private(model, table(), epsilon=2.0, guide=guide, route=route)
    assert made.guide is not None
    assert torch.allclose(made.guide.distribution.mean[:2].float(), TRUE["w"], atol=0.1)


def test_draws_are_those_of_the_guide_itself() -> None:
    program = read(
        model, auto.AutoNormal(model, init_scale=0.3), Trace_ELBO(), Arguments.of(table(), {})
    )
    assert is_gaussian(program)
    with drawing(HOST, seed=0):
        noise = torch.stack([torch.cat([torch.randn(2), torch.randn(2)]) for _ in range(30)])
    centre = torch.cat([value.flatten() for value in list(program.parameters.values())[::2]])
    torch.testing.assert_close(drawn(program, 30), (centre + 0.3 * noise).detach().double())


def test_a_normal_by_its_draws_is_that_by_its_moments() -> None:
    """The same training, with the guide taken as Gaussian and as one that has two draws."""
    program = read(model, auto.AutoNormal(model), Trace_ELBO(), Arguments.of(table(), {}))
    settings: dict[str, Any] = {"size": program.size, "records": 1, "length": N, "seed": 1}
    mechanism = NoisySum(rate=0.1, clip=1.0, noise_multiplier=1.0, **settings)
    descent = Descent(program, Adam({"lr": 0.05}), mechanism, GradientClip(bound=2.0))
    course = Course(descent, 40)
    course.run(range(40))
    course.products = course.products[:, :0, :0]  # draws of each latent tell of no pairs
    one = course.posterior()

    def two(program: Any, _: int) -> Tensor:
        mean, variances = moments(program)
        return mean + torch.tensor([[-1.0], [1.0]]) * (variances / 2).sqrt()

    course.gaussian = False
    with patch("bdpvi.programs.course.drawn", two):
        other = course.posterior()
    torch.testing.assert_close(other.mean, one.mean)
    torch.testing.assert_close(other.covariance, one.covariance)


def test_draws_of_a_release_have_its_mean_and_variances() -> None:
    points = standardised(torch.randn(9, 2).double() ** 3, torch.tensor([True, True]))
    guide = Gaussian(
        mean=(1.0, -2.0),
        variances=(4.0, 0.25),
        sites={"w": (2,)},
        shape=tuple(map(tuple, points.tolist())),
    )
    found = guide.draws(9)
    torch.testing.assert_close(found.mean(0), torch.tensor([1.0, -2.0]).double())
    torch.testing.assert_close(found.std(0, correction=0), torch.tensor([2.0, 0.5]).double())
    assert not torch.equal(found, guide.draws(9))  # in another order
    with pytest.raises(ValueError, match="coordinates"):
        Gaussian(mean=(1.0,), variances=(4.0,), sites={"w": ()}, shape=((0.0, 0.0),))
