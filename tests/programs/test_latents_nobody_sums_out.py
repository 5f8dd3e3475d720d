"""A record's own latents: in the guide, summed out by the loss, or refused by name uncharged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO, config_enumerate
from pyro.infer.autoguide import AutoNormal
from pyro.optim import Adam
from torch import Tensor

import bdpvi
from bdpvi import DPVI, Dataset, Ledger, PrivateSVI

pytestmark = pytest.mark.usefixtures("fresh_store")

WEIGHTS = torch.tensor([0.5, 0.6, 0.0])


@config_enumerate  # type: ignore[untyped-decorator]
def zero_inflated(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        z = pyro.sample("z", dist.Bernoulli(x.new_tensor(0.6)))
        rate = (x @ w).clamp(max=6.0).exp() * z + 1e-6
        pyro.sample("y", dist.Poisson(rate), obs=y)


def unmarked(x: Tensor, y: Tensor | None = None) -> None:
    """No site is marked for enumeration."""
    with pyro.plate("records", len(x)):
        z = pyro.sample("z", dist.Bernoulli(x.new_tensor(0.6)))
        pyro.sample("y", dist.Normal(z, 1.0), obs=y)


def effects(x: Tensor, y: Tensor | None = None) -> None:
    """Each record has a latent of its own, which is continuous."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        own = pyro.sample("own", dist.Normal(x.new_zeros(()), 1.0))
        pyro.sample("y", dist.Normal(x @ w + own, 1.0), obs=y)


def hidden(x: Tensor, y: Tensor | None = None) -> None:
    """Each record has a number of its own, without end."""
    with pyro.plate("records", len(x)):
        own = pyro.sample("own", dist.Poisson(x.new_tensor(2.0)))
        pyro.sample("y", dist.Normal(own, 1.0), obs=y)


def holes(x: Tensor, y: Tensor | None = None) -> None:
    """Some targets are missing, which makes them latents."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y, obs_mask=x[:, 0] > 0)


def table(rows: int = 3000) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator).double()
    x[:, 0] = 1.0
    there = torch.rand(rows, generator=generator) < 0.6
    y = torch.poisson((x @ WEIGHTS.double()).exp(), generator=generator) * there
    return x, y


def guide_of(model: Any, *own: str) -> AutoNormal:
    return AutoNormal(poutine.block(model, hide=["z", "own", "y_unobserved", *own]))


def by_route(model: Any, loss: Any, ledger: Ledger) -> Any:
    route = DPVI(rows=200, steps=5, draws=2, loss=loss)
    return bdpvi.fit_private(
        model, table(200), epsilon=1.0, guide=guide_of(model), route=route, ledger=ledger
    )


def by_steps(model: Any, loss: Any, ledger: Ledger) -> Any:
    svi = PrivateSVI(
        model, guide_of(model), Adam({"lr": 0.05}), loss or Trace_ELBO(), clip=1.0,
        noise_multiplier=1.0, rate=0.1, ledger=ledger,
    )  # fmt: skip
    svi.step(*table(200))


@pytest.mark.parametrize("train", [by_route, by_steps])
@pytest.mark.parametrize(
    ("model", "loss", "message"),
    [
        (zero_inflated, None, "latent site 'z' is not in the guide.*TraceEnum_ELBO"),
        (zero_inflated, TraceMeanField_ELBO(), "latent site 'z' is not in the guide.*TraceEnum"),
        (unmarked, None, "latent site 'z' is not in the guide.*config_enumerate"),
        (unmarked, TraceEnum_ELBO(), "latent site 'z' is not in the guide.*config_enumerate"),
        (effects, None, "latent site 'own' is not in the guide.*sample it in the guide"),
        (
            effects,
            TraceEnum_ELBO(),
            "latent site 'own' is not in the guide.*sample it in the guide",
        ),
        (hidden, None, "latent site 'own' is not in the guide.*sum it out"),
        (
            holes,
            None,
            "latent site 'y_unobserved' is a target that obs_mask.*mask the distribution",
        ),
    ],
)
def test_a_latent_that_neither_guide_nor_loss_deals_with_is_refused(
    model: Any, loss: Any, message: str, train: Callable[..., Any]
) -> None:
    ledger = Ledger()
    with pytest.raises(ValueError, match=message):
        train(model, loss, ledger)
    assert ledger.entries() == ()


def test_check_says_the_same_of_it() -> None:
    data = Dataset(*table(20))
    with pytest.raises(ValueError, match=r"latent site 'z' .*config_enumerate.*TraceEnum_ELBO"):
        bdpvi.check(zero_inflated, bdpvi.guides.FullRank(zero_inflated), data)


def test_the_remedy_trains_it() -> None:
    """With the loss that the refusal names, the weights are found again."""
    route = DPVI(rows=3000, steps=400, batch=600, draws=200, loss=TraceEnum_ELBO())
    torch.manual_seed(0)
    release = bdpvi.fit_private(
        zero_inflated, table(), epsilon=8.0, guide=guide_of(zero_inflated), route=route
    )
    assert torch.allclose(release.latents["w"].mean(0).float(), WEIGHTS, atol=0.25)


def test_a_latent_of_the_guide_alone_is_refused() -> None:
    def guide(x: Tensor, y: Tensor | None = None) -> None:
        for name in ("w", "v"):
            at = pyro.param(f"{name}_at", x.new_zeros(3))
            pyro.sample(name, dist.Normal(at, 1.0).to_event(1))

    def linear(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(x.new_zeros(3), 1.0).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    svi = PrivateSVI(
        linear, guide, Adam({"lr": 0.05}), Trace_ELBO(), clip=1.0, noise_multiplier=1.0, rate=0.1
    )
    with pytest.raises(ValueError, match="latent site 'v' of the guide is not in the model"):
        svi.step(*table(200))
